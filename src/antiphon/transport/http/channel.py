"""The channel that a request is read from and replied through: the messages of ASGI 3, on any server.

A server may offer the direct extension (`antiphon.direct`): synchronous writes, flow control and disconnects, which
save a message per event and a task per stream. Without it the channel uses messages alone, and watches for a disconnect
while work takes longer than `_WATCH_DELAY`.

Writes to a client that is gone are dropped. A method that returns an awaitable requires its caller to await it, since
the client has too much unread data.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, MutableMapping, Sequence
from types import TracebackType
from typing import Any, Protocol
from urllib.parse import quote

Header = tuple[bytes, bytes]
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

CLOSE: Header = (b"connection", b"close")  # in a reply: the connection is closed after it (RFC 9112 §9.6)
WEBSOCKET = "WEBSOCKET"  # not an HTTP method: marks WebSocket handshakes for the router
_DIRECT = "antiphon.direct"
_WATCH_DELAY = 0.05  # seconds of work before disconnects are watched for


class ClientGone(Exception):
    """The client disconnected before the request was complete; there is no reply."""


class FlowControl(Protocol):
    """Flow control of the bytes to a client, as servers with the direct extension have it."""

    @property
    def write_paused(self) -> bool:
        """Whether the client has too much unread data."""

    def drain(self) -> Awaitable[None]:
        """Wait until the client has read enough, or is gone."""


class DirectBody(FlowControl, Protocol):
    """The direct extension of an HTTP response (http_server/http_exchange.py)."""

    def write(self, data: bytes) -> None:
        """Write a piece of the body."""

    def on_disconnect(self, callback: Callable[[], None] | None) -> None:
        """Set the callback for a disconnect before the end of the reply, also an earlier one."""


class HttpChannel:
    """One request and its reply, of an `http` scope; or the handshake of a `websocket` scope.

    Inside `with channel:` the current task is bound to the client: a disconnect, also an earlier one, cancels it, and
    it sees ClientGone.
    """

    __slots__ = (
        "_cancelled", "_receive", "_timer", "_worker", "direct", "fields", "method", "more", "path", "query",
        "repeated", "send", "watch",
    )  # fmt: skip

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: list[Header] = scope["headers"]
        self.method: str = scope.get("method", WEBSOCKET)
        # below the mount point, as it was received, not decoded
        self.path: bytes = (not scope.get("root_path") and scope.get("raw_path")) or _get_path(scope)
        self.query: bytes = scope.get("query_string", b"")
        self.fields = dict(headers)  # the headers by lower-case name; the last value of a repeated one
        # names of headers that were sent more than once
        self.repeated: Collection[bytes] = find_repeated(headers) if len(self.fields) != len(headers) else ()
        self.more = True  # whether there is more of the body than was read
        self.direct: Any = (scope.get("extensions") or {}).get(_DIRECT)
        self._receive = receive
        self.send = send
        self._worker: asyncio.Task[None] | None = None  # the task inside `with channel:`
        self._cancelled: asyncio.Task[None] | None = None  # the task that was cancelled because of a disconnect
        self._timer: asyncio.TimerHandle | None = None
        self.watch: asyncio.Task[None] | None = None  # waits for a disconnect

    async def read(self) -> bytes:
        """Return the next piece of the body, perhaps empty. Raises ClientGone."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        self.more = message.get("more_body", False)
        piece: bytes = message.get("body", b"")
        return piece

    async def begin(self, status: int, headers: Sequence[Header]) -> None:
        """Send the head of a reply whose body follows, and an empty piece, for which a server may wait."""
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": b"", "more_body": True})

    def write(self, piece: bytes) -> Awaitable[None] | None:
        direct: DirectBody | None = self.direct
        if direct is None:
            return self.send({"type": "http.response.body", "body": piece, "more_body": True})
        direct.write(piece)
        return direct.drain() if direct.write_paused else None

    def end(self, piece: bytes = b"") -> Awaitable[None]:
        """Send the last piece of the body."""
        return self.send({"type": "http.response.body", "body": piece})

    def __enter__(self) -> None:
        self._worker = asyncio.current_task()
        if self.direct is not None:
            self.direct.on_disconnect(self._cancel)
        else:
            self._timer = asyncio.get_running_loop().call_later(_WATCH_DELAY, self._watch_disconnect)

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raise ClientGone in place of the CancelledError of a disconnect."""
        self._worker = None
        if self.direct is not None:
            self.direct.on_disconnect(None)
        elif self._timer is not None:
            self._timer.cancel()
        if self._cancelled is not None:
            cancelled, self._cancelled = self._cancelled, None
            if cancelled.uncancel() == 0 and error_type is asyncio.CancelledError:
                raise ClientGone from error

    async def stop_watch(self) -> None:
        """Stop watching for a disconnect, after the reply."""
        if self.watch is not None:
            self.watch.cancel()
            await asyncio.wait([self.watch])

    def _cancel(self) -> None:
        """Cancel the task of a client that disconnected."""
        if self._worker is not None:
            self._cancelled, self._worker = self._worker, None
            self._cancelled.cancel()

    def _watch_disconnect(self) -> None:
        """Start the watch, once per request; cancel the task if the client is already gone."""
        if self.watch is None:
            self.watch = asyncio.get_running_loop().create_task(self._wait_for_disconnect())
        elif self.watch.done():
            self._cancel()

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._cancel()


def find_repeated(headers: Iterable[Header]) -> frozenset[bytes]:
    """Return the names that occur more than once."""
    return frozenset(name for name, times in Counter(name for name, _ in headers).items() if times > 1)


def _get_path(scope: Scope) -> bytes:
    """Return the path below the mount point, which is the `root_path` (ASGI, HTTP scope)."""
    path: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    root: str = scope.get("root_path", "")
    for prefix in (root.encode(), quote(root).encode()) if root else ():
        if path.startswith(prefix + b"/"):
            return path[len(prefix) :]
    return path

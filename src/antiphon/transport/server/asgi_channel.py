"""A request on any ASGI 3 server: its messages as an HttpChannel.

A disconnect is only watched for while work takes longer than `_WATCH_DELAY`.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from types import TracebackType
from typing import Any

from antiphon.transport.http.channel import ClientGone, Header, find_repeated
from antiphon.transport.server.client_task import ClientTask

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_WATCH_DELAY = 0.05  # seconds of work before disconnects are watched for


class AsgiChannel(ClientTask):
    """The channel of one `http` scope."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: bytes = scope.get("raw_path") or scope["path"].encode()
        self.query: bytes = scope.get("query_string", b"")
        self.fields: dict[bytes, bytes] = dict(scope["headers"])
        self.repeated = find_repeated(scope["headers"])
        self.more = True
        self._receive = receive
        self._send = send
        self._worker: asyncio.Task[None] | None = None
        self._cancelled: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._disconnect_watch: asyncio.Task[None] | None = None

    async def read(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        self.more = message.get("more_body", False)
        piece: bytes = message.get("body", b"")
        return piece

    async def reply(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        await self.begin(status, headers)
        await self.end(body)

    def begin(self, status: int, headers: Sequence[Header]) -> Awaitable[None]:
        return self._send({"type": "http.response.start", "status": status, "headers": headers})

    def write(self, piece: bytes) -> Awaitable[None]:
        return self._send({"type": "http.response.body", "body": piece, "more_body": True})

    def end(self, piece: bytes = b"") -> Awaitable[None]:
        return self._send({"type": "http.response.body", "body": piece})

    def __enter__(self) -> None:
        self._worker = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(_WATCH_DELAY, self._watch_disconnect)

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        super().__exit__(error_type, error, trace)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def aclose(self) -> None:
        """Stop watching for a disconnect, after the reply."""
        if self._disconnect_watch is not None:
            self._disconnect_watch.cancel()
            await asyncio.wait([self._disconnect_watch])

    def _watch_disconnect(self) -> None:
        """Start the watch, once per request; cancel the task if the client is already gone."""
        if self._disconnect_watch is None:
            self._disconnect_watch = asyncio.get_running_loop().create_task(self._wait_for_disconnect())
        elif self._disconnect_watch.done():
            self._cancel()

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._cancel()

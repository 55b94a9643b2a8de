"""One request and its reply on our own server: a Line on top of a connection.

A whole reply is one write. The head of one that comes in pieces goes out together with what follows it in the same turn
of the event loop. Nothing is made here to wait with before somebody has to wait.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from uvicorn.server import ServerState

from antiphon.transport.heads import Heads
from antiphon.transport.line import CLOSE, ClientGone, Header

_CHUNKED: Header = (b"transfer-encoding", b"chunked")
_WITHOUT_BODY = (204, 304)
_EXPECTS = b"expect"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_LAST = b"0\r\n\r\n"


class Carrier(Protocol):
    """The connection, as a cycle knows it."""

    heads: Heads
    state: ServerState  # with the headers that every reply has, and the tasks that answer
    transport: asyncio.Transport
    write_paused: bool  # has the client too much unread?

    async def drain(self) -> None:
        """Until it has not, or is gone."""

    def resume_reading(self) -> None: ...

    def replied(self) -> None:
        """A reply is over: the next one's turn."""

    def left_open(self, cycle: "Cycle") -> None:
        """Nothing more will be said, and the reply is not over."""


class Cycle:
    __slots__ = (
        "_body", "_first", "_gone", "_news", "carrier", "chunked", "complete", "fields", "gone", "head", "headers",
        "keep_alive", "method", "more", "path", "query", "started", "task",
    )  # fmt: skip

    def __init__(self, carrier: Carrier, method: str, path: bytes, query: bytes, headers: list[Header]) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers
        self.fields = dict(headers)
        self.more = True
        self.keep_alive = True  # is the connection to be kept after it?
        self.started = self.complete = False  # of the reply
        self.chunked = False
        self.gone = False  # there is nobody any more
        self.head = b""  # of a reply, as long as it is held back
        self.task: asyncio.Task[None] | None = None
        self.carrier = carrier
        self._body: bytes | bytearray = b""
        self._news: asyncio.Event | None = None  # for who waits for the body
        self._gone: Callable[[], None] | None = None
        self._first: Callable[[], None] | None = None

    def read(self) -> bytes | Awaitable[bytes]:
        if self.gone or self.complete:
            raise ClientGone
        if self.more and not self._body:
            return self._read_next()
        body, self._body = self._body, b""
        self.carrier.resume_reading()
        return bytes(body)

    def take(self, piece: bytes) -> int:
        """Of the body, from the client. How much of it waits to be read?"""
        if self._body:
            if isinstance(self._body, bytes):  # a client may send it byte by byte
                self._body = bytearray(self._body)
            self._body += piece
        else:
            self._body = piece
        if self._news is not None:
            self._news.set()
        return len(self._body)

    def take_end(self) -> None:
        """Of the body."""
        self.more = False
        if self._news is not None:
            self._news.set()

    def leave(self) -> None:
        """The client has, before its reply was over."""
        self.gone = True
        if self._news is not None:
            self._news.set()
        self._tell_gone()

    def reply(self, status: int, headers: Sequence[Header], body: bytes) -> Awaitable[None] | None:
        carrier = self.carrier
        if carrier.write_paused and not self.gone:
            return self._when_read(self.reply, status, headers, body)
        if not self.gone:
            carrier.transport.write(self._begun(status, headers, b"" if self.method == "HEAD" else body))
            self._complete()
        return None

    def begin(self, status: int, headers: Sequence[Header]) -> Awaitable[None] | None:
        if self.carrier.write_paused and not self.gone:
            return self._when_read(self.begin, status, headers)
        if not self.gone:
            self.chunked = self.method != "HEAD" and status not in _WITHOUT_BODY
            self.head = self._begun(status, [*headers, _CHUNKED] if self.chunked else headers)
            asyncio.get_running_loop().call_soon(self._send_head)
        return None

    def write(self, piece: bytes) -> Awaitable[None] | None:
        if self.carrier.write_paused and not self.gone:
            return self._when_read(self.write, piece)
        if piece and self.chunked and self.is_open():  # an empty chunk would be taken for the end
            self.put(b"%x\r\n%b\r\n" % (len(piece), piece))
        return None

    def end(self, piece: bytes = b"") -> Awaitable[None] | None:
        if self.carrier.write_paused and not self.gone:
            return self._when_read(self.end, piece)
        if not self.gone:
            chunk = b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""
            self.put(chunk + _LAST if self.chunked else b"")
            self._complete()
        return None

    def put(self, data: bytes) -> None:
        """Bytes, behind the head if that is still here."""
        if self.head:
            data, self.head = self.head + data, b""
        self.carrier.transport.write(data)

    def follow(self, first: Callable[[], None]) -> None:
        """Called before the head goes out alone: it may have something to go with it."""
        self._first = first

    def is_open(self) -> bool:
        return not self.gone and not self.carrier.transport.is_closing()

    def watch(self, gone: Callable[[], None] | None) -> None:
        self._gone = gone
        if gone is not None:
            self.carrier.resume_reading()  # who does not read does not notice either
            if self.gone:
                asyncio.get_running_loop().call_soon(self._tell_gone)

    def close(self) -> None:
        if self.task is not None:
            self.carrier.state.tasks.discard(self.task)
            self.task = None
        if not self.complete and not self.gone:
            self.carrier.left_open(self)

    def send_head(self) -> None:
        """If it is still here."""
        if self.head and self.is_open():
            self.put(b"")

    def _begun(self, status: int, headers: Sequence[Header], body: bytes = b"") -> bytes:
        """The head, with what follows it."""
        if self.started:
            raise RuntimeError("A reply was begun twice.")
        if CLOSE in headers:
            self.keep_alive = False
        elif not self.keep_alive:
            headers = [*headers, CLOSE]
        carrier = self.carrier
        head = carrier.heads.make(status, carrier.state.default_headers, headers, body)
        self.started = True
        return head

    def _complete(self) -> None:
        if self.complete:
            raise RuntimeError("A reply was ended twice.")
        self.complete = True
        if not self.keep_alive:
            self.carrier.transport.close()
        self.carrier.replied()

    def _send_head(self) -> None:
        first, self._first = self._first, None
        if self.head and first is not None:
            first()
        self.send_head()

    async def _when_read(self, step: Callable[..., Awaitable[None] | None], *said: Any) -> None:
        await self.carrier.drain()
        if (again := step(*said)) is not None:
            await again

    async def _read_next(self) -> bytes:
        """Who wants to be told to go on is told now."""
        if self._news is None:
            self._news = asyncio.Event()
            if self.fields.get(_EXPECTS, b"").lower() == b"100-continue" and self.is_open():
                self.carrier.transport.write(_CONTINUE)
        while self.more and not self._body and not self.gone:
            self._news.clear()
            self.carrier.resume_reading()
            await self._news.wait()
        piece = self.read()
        assert isinstance(piece, bytes)
        return piece

    def _tell_gone(self) -> None:
        gone, self._gone = self._gone, None
        if gone is not None:
            gone()

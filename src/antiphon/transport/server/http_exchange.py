"""One request and its reply on our own server: a Line on top of a connection.

A whole reply is one write. The head of one that comes in pieces goes out together with what follows it in the same turn
of the event loop. Nothing is made here to wait with before somebody has to wait.

The heads of replies, as bytes. What the server says in each of them is put together once a second at most.

A client with too much unread: a slow one is patiently written to, one that reads nothing is hung up on.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from http import HTTPStatus
from typing import Any, Protocol

from msgspec import Struct
from uvicorn.server import ServerState

from antiphon.transport.http.channel import CLOSE, ClientGone, Header
from antiphon.transport.server.client_task import Attended

_CONTROLS = bytes(byte for byte in (*range(0x20), 0x7F) if byte != ord("\t"))


class Heads:
    def __init__(self) -> None:
        self._own: Sequence[Header] = ()
        self._begun: dict[int, bytes] = {}  # by status, with the server's own headers

    def make(self, status: int, own: Sequence[Header], headers: Sequence[Header], body: bytes = b"") -> bytes:
        """And what follows it. `own`: the server's, another list whenever they change. Raises ValueError for what would
        be no header."""
        if own is not self._own:
            self._own, self._begun = own, {}
        begun = self._begun.get(status) or self._begin(status)
        head = b"\r\n".join([begun, *map(b": ".join, headers)])
        # Two bytes before each header, and no others: else a value could end its header and begin another.
        if len(head.translate(None, _CONTROLS)) != len(head) - 2 * (len(own) + len(headers)):
            raise ValueError("A header of a reply has control characters in it.")
        return b"%b\r\n\r\n%b" % (head, body)

    def _begin(self, status: int) -> bytes:
        line = b"HTTP/1.1 %d %b" % (status, HTTPStatus(status).phrase.encode())
        self._begun[status] = begun = b"\r\n".join([line, *map(b": ".join, self._own)])
        return begun


class Unread:
    """From the moment at which the buffer of its transport was full."""

    __slots__ = ("_left", "_since", "_transport")

    def __init__(self, transport: asyncio.Transport, now: float) -> None:
        self._transport = transport
        self._since = now
        self._left = transport.get_write_buffer_size()

    def check(self, now: float, patience: float) -> None:
        left = self._transport.get_write_buffer_size()
        if left < self._left:
            self._left, self._since = left, now
        elif now - self._since > patience:
            self._transport.abort()


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
    waiting: "deque[Cycle]"  # those whose turn it is after this one
    read_paused: bool  # is the client let wait, since enough of what it sent waits?
    write_paused: bool  # has the client too much unread?

    async def drain(self) -> None:
        """Until it has not, or is gone."""

    def resume_reading(self) -> None: ...

    def replied(self, cycle: "Cycle") -> None:
        """Its reply is over: the next one's turn, if there is one and the connection is to be kept."""

    def left_open(self, cycle: "Cycle") -> None:
        """Nothing more will be said, and the reply is not over."""


class Cycle(Attended, Struct, eq=False):
    carrier: Carrier
    method: str
    path: bytes
    query: bytes
    fields: dict[bytes, bytes]
    repeated: Collection[bytes] = ()
    keep_alive: bool = True  # is the connection to be kept after it?
    body: bytes | bytearray = b""  # what nobody has read yet of it
    more: bool = True
    started: bool = False  # the reply is
    complete: bool = False
    chunked: bool = False
    gone: bool = False  # there is nobody any more
    head: bytes = b""  # of a reply, as long as it is held back
    task: asyncio.Task[None] | None = None
    _news: asyncio.Event | None = None  # for who waits for the body
    _worker: asyncio.Task[None] | None = None
    _cancelled: asyncio.Task[None] | None = None
    _first: Callable[[], None] | None = None

    def read(self) -> bytes | Awaitable[bytes]:
        if self.gone or self.complete:
            raise ClientGone
        if self.more and not self.body:
            return self._read_next()
        body, self.body = self.body, b""
        if self.carrier.read_paused:
            self.carrier.resume_reading()
        return bytes(body)

    def take(self, piece: bytes) -> int:
        """Of the body, from the client. How much of it waits to be read?"""
        if self.body:
            if isinstance(self.body, bytes):  # a client may send it byte by byte
                self.body = bytearray(self.body)
            self.body += piece
        else:
            self.body = piece
        if self._news is not None:
            self._news.set()
        return len(self.body)

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
        self._cancel()

    def reply(self, status: int, headers: Sequence[Header], body: bytes) -> Awaitable[None] | None:
        carrier = self.carrier
        if self.gone:
            return None
        if carrier.write_paused:
            return self._when_read(self.reply, status, headers, body)
        carrier.transport.write(self._begun(status, headers, b"" if self.method == "HEAD" else body))
        self.complete = True
        if carrier.waiting or carrier.read_paused or not self.keep_alive:  # as a rule nothing follows from it
            carrier.replied(self)
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
            if self.complete:
                raise RuntimeError("A reply was ended twice.")
            self.put(chunk + _LAST if self.chunked else b"")
            self.complete = True
            self.carrier.replied(self)
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

    def __enter__(self) -> None:
        self._worker = self.task
        if self.carrier.read_paused:  # who does not read does not notice either
            self.carrier.resume_reading()
        if self.gone:
            asyncio.get_running_loop().call_soon(self._cancel)

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
        while self.more and not self.body and not self.gone:
            self._news.clear()
            self.carrier.resume_reading()
            await self._news.wait()
        piece = self.read()
        assert isinstance(piece, bytes)
        return piece

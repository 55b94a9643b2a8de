"""One HTTP/1.1 connection to an engine: a request goes out whole, its answer is taken in pieces.

    idle ──send──▶ waiting ──headers──▶ reading ──last byte──▶ idle (or gone, if the engine does not keep it)
                      └──────────────── lost, nonsense, too slow ───────────────▶ gone

What one read brought is handed over together: to who asks for it, or, while it pours, to a callback at once. What is
not taken is bounded: reading pauses until it is. Bytes that answer no request make the connection useless for the next.

Where an engine is: a unix socket, or a host and a port, with TLS or without.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from typing import Protocol, cast

import httptools
from msgspec import Struct

from antiphon.errors import EngineFailed

MAX_UNREAD_BYTES = 256 * 1024
MAX_HEAD_BYTES = 64 * 1024
MOST_RETRY_AFTER = 600.0
HTTP_OK = 200
BODILESS = frozenset({204, 304})
SIZES = frozenset({b"content-length", b"transfer-encoding"})

Take = Callable[[bytes], Awaitable[None] | None]  # gives what has to be awaited before more, if anything
Hope = Callable[[float], bool]  # may an engine that was asked then, and is silent, be waited for as long again?


class Lost(EngineFailed):
    """The engine hung up before it had answered a word: it may never have seen the request."""


class Broken(EngineFailed):
    """The engine hung up or fell silent in the middle of its answer."""


class Connection(asyncio.Protocol):
    """`streams`, `status` and `complete` are about the answer: whether it is a stream of events, its HTTP status once
    all its headers are there, and whether it is all there. `kept`: it is, and another request may follow it."""

    __slots__ = (
        "_due", "_error", "_expected", "_feed", "_headers", "_hope", "_looks_at", "_loop", "_parser", "_parts",
        "_patience", "_paused", "_settled", "_since", "_take", "_timer", "_told", "_transport", "_unread", "_waiter",
        "_who", "complete", "idle_since", "kept", "on_body", "on_header", "on_message_begin", "status", "streams",
    )  # fmt: skip

    def __init__(self, who: str) -> None:
        self._who = who
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = self._looks_at = self._since = 0.0
        self._error: EngineFailed | None = None
        self._take: Take | None = None  # while it pours
        self._told: Awaitable[None] | None = None  # what has to be awaited before more is taken
        self._patience = 0.0  # seconds of silence, while it pours
        self._hope: Hope | None = None
        self._settled: Callable[[Connection], None] | None = None
        self._paused = self.kept = self.streams = False
        self._unread = 0  # bytes that came and were not taken, of whatever they are
        self.idle_since = 0.0
        self.complete, self.status = True, 0  # nothing was asked for
        # What the parser calls, too, without a function of ours: that would cost more than what it has to do.
        self._parts: list[bytes] = []
        self.on_body = self._parts.append
        self._headers: dict[bytes, bytes] = {}  # as they are spelled
        self.on_header = self._headers.setdefault
        self._expected: list[None] = []  # answers: whoever begins one more is stopped by an IndexError
        self.on_message_begin = self._expected.pop
        self._parser = httptools.HttpResponseParser(self)
        self._feed = self._parser.feed_data

    # What the client calls.

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def content_type(self) -> str:
        return self._header(b"content-type").decode("latin-1")

    @property
    def metadata(self) -> bytes:
        return self._header(b"metadata")

    @property
    def retry_after(self) -> float | None:
        """Seconds that the engine asked for, within reason."""
        said = self._header(b"retry-after").strip()
        return min(max(float(said), 1.0), MOST_RETRY_AFTER) if said.isdigit() else None

    def ask(self, request: bytes, seconds: float, hope: Hope | None = None) -> "asyncio.Future[None]":
        """Done once all headers are there, within that time, however slowly they drip; or while there is hope."""
        self.complete = self.kept = False
        self.status = self._unread = 0
        self._parts.clear()
        self._headers.clear()
        self._expected.append(None)
        self._hope, self._patience = hope, seconds
        self._since = self._loop.time()
        waiting = self._wait(self._since + seconds)
        if self._transport is not None:
            self._transport.write(request)
        return waiting

    async def read(self, seconds: float) -> bytes:
        """What came since the last time, at least a byte of it; nothing at the end."""
        while not self._parts and not self.complete:
            await self._wait(self._loop.time() + seconds)
        if self._paused:
            self._resume()
        return self.taken()

    def taken(self) -> bytes:
        """What came since the last time, without waiting; all that is left, of an answer that is complete."""
        parts = self._parts
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        self._unread = 0
        return data

    async def pour(self, take: Take, seconds: float) -> None:
        """Give what comes to `take` as it comes, from the very callback that brought it.

        Until the end of the answer, its failure or `halt`: what is left then, and what went wrong, is for `read`.
        Silence may last so many seconds. What `take` gives is awaited here before it is called again.
        """
        self._take, self._patience = take, seconds
        try:
            while True:
                if self._told is not None:
                    await self._told
                    self._told = None
                    self._resume()
                elif self._take is None or (self.complete and not self._parts):
                    return
                elif self._parts:
                    self._told = take(self.taken())
                else:
                    await self._wait(self._loop.time() + self._patience)
        except EngineFailed:
            if self._error is None:
                raise
        finally:
            told, self._take, self._told = self._told, None, None
            if isinstance(told, Coroutine):
                told.close()

    def halt(self) -> None:
        """Pour no more; what comes is kept for `read`."""
        self._take = None
        self._wake()

    def hurry(self, seconds: float) -> None:
        """While it pours: from now on silence may last only this long."""
        self._patience, self._due = seconds, self._loop.time() + seconds
        if self._timer is not None and self._due < self._looks_at:
            self._look_later()

    def settle(self, seconds: float, settled: "Callable[[Connection], None]") -> None:
        """All that was wanted has come; only the very end of the answer is still to be read, within that time."""
        if self.complete or not self.open:
            settled(self)
            return
        self._settled = settled
        self._stop_timer()
        self._timer = self._loop.call_later(seconds, self.close)
        self._resume()

    def close(self) -> None:
        """At once, whatever is under way: for engines that means cancel."""
        self.kept = False
        self._stop_timer()
        if self._transport is not None:
            self._transport.abort()

    def _resume(self) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self, due: float) -> "asyncio.Future[None]":
        """Until something new came. One timer serves many waits: a timeout for each would cost more than the rest."""
        if self._error is not None:
            raise self._error
        self._due = due
        if self._timer is None or due < self._looks_at:
            self._look_later()
        self._waiter = waiter = self._loop.create_future()
        return waiter

    def _look_later(self) -> None:
        self._stop_timer()
        self._looks_at = self._due
        self._timer = self._loop.call_at(self._due, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        if self._loop.time() < self._due or self._hopes():
            self._look_later()
        elif self.status:
            self._fail(Broken(f"{self._who} went silent in the middle of its answer."))
        else:
            self._fail(EngineFailed(f"{self._who} did not answer in time."))

    def _hopes(self) -> bool:
        if self.status or self._hope is None or not self._hope(self._since):
            return False
        self._due = self._loop.time() + self._patience
        return True

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: EngineFailed) -> None:
        """What came before it is read first."""
        self._error = self._error or error
        if self._parts:
            self._wake()
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(self._error)
        self.close()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.complete:
            self._fail(EngineFailed(f"{self._who} spoke without being asked."))
            return
        self._unread += len(data)
        try:
            self._feed(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self.complete:
                self._fail(EngineFailed(f"{self._who} does not speak HTTP: {error}."))
                return
            self.kept = False  # what came after the answer is nonsense, or a second one; the answer is neither
        if not self.status:
            if self._unread > MAX_HEAD_BYTES:
                self._fail(EngineFailed(f"{self._who} sent headers without an end."))
            return  # nothing that anybody waits for
        if self._take is not None and self._told is None and self._parts:
            self._due = self._loop.time() + self._patience
            self._told = self._take(self.taken())
            if self._told is None and not self.complete:
                return  # nobody has to be woken up
        elif self._unread > MAX_UNREAD_BYTES and not (self._paused or self.complete) and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        if (waiter := self._waiter) is not None and not waiter.done():
            waiter.set_result(None)

    def eof_received(self) -> None:
        self.kept = False

    def connection_lost(self, error: Exception | None) -> None:
        if not self.status and not self._unread:
            self._fail(Lost(f"{self._who} hung up."))
        elif self.status and not self._sized() and error is None and not self.complete:
            self.complete = True  # an answer without a length ends with its connection
            self._wake()
            self.close()
        elif not self.complete:
            self._fail(Broken(f"{self._who} hung up in the middle of its answer."))
        else:
            self.close()
        self._tell_settled()

    def _sized(self) -> bool:
        """Whether it is known where the answer ends, other than with the connection."""
        return self.status in BODILESS or any(name.lower() in SIZES for name in self._headers)

    def _header(self, name: bytes) -> bytes:
        """As it was sent, however its name is spelled; nothing if there is none."""
        return next((value for key, value in self._headers.items() if key.lower() == name), b"")

    def _tell_settled(self) -> None:
        settled, self._settled = self._settled, None
        if settled is not None:
            self._stop_timer()
            self._parts.clear()
            settled(self)

    # What the parser calls.

    def on_headers_complete(self) -> None:
        status, headers = self._parser.get_status_code(), self._headers
        if status < HTTP_OK:  # it only says that an answer will come
            self._expected.append(None)
            headers.clear()
            return
        kind = headers.get(b"content-type") or headers.get(b"Content-Type") or self._header(b"content-type")
        self.status, self.streams = status, kind.lower().startswith(b"text/event-stream")

    def on_message_complete(self) -> None:
        if self.status:
            self.complete, self.kept = True, self._parser.should_keep_alive()
            if self._settled is not None:
                self._tell_settled()


class Address(Protocol):
    async def connect(self, who: str) -> Connection:
        """A new one. OSError if that cannot be; `who` is for its sentences."""


class UnixAddress(Struct, frozen=True):
    path: str

    async def connect(self, who: str) -> Connection:
        _, connection = await asyncio.get_running_loop().create_unix_connection(lambda: Connection(who), self.path)
        return connection


class TcpAddress(Struct, frozen=True):
    """`tls` holds what is trusted; None for a connection in the clear."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None

    async def connect(self, who: str) -> Connection:
        loop = asyncio.get_running_loop()
        name = None if self.tls is None else self.host
        _, connection = await loop.create_connection(
            lambda: Connection(who), self.host, self.port, ssl=self.tls, server_hostname=name
        )
        return connection


def trusted(authorities: str | None = None) -> ssl.SSLContext:
    """Certificates and names are checked, against the system's authorities or those of a file."""
    context = ssl.create_default_context(cafile=authorities)
    context.set_alpn_protocols(["http/1.1"])
    return context

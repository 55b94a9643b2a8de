"""The one HTTP client for engines: JSON in and out, server-sent events by the read, connections kept for the next time.

Everything that came in one read is handed over in one list. Closing a stream closes its connection at once.
Whatever goes wrong is an EngineFailed or an Unavailable, within a deadline. A client speaks to one address only: no
redirect is followed, so its key cannot get elsewhere.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Generic, TypeVar, overload

from msgspec import MsgspecError, Struct
from msgspec.json import Decoder

from antiphon.engines.base import JSON
from antiphon.engines.connection import Address, Connection, Hope, Lost
from antiphon.engines.connection import UnixAddress as UnixAddress
from antiphon.engines.sse import EventSplitter
from antiphon.errors import EngineFailed, Unavailable
from antiphon.observe.spans import CURRENT, handed_on

T = TypeVar("T")

MAX_BODY_BYTES = 64 * 1024 * 1024
MAX_REFUSAL_BYTES = 64 * 1024
MAX_STREAM_BYTES = 512 * 1024 * 1024  # two million tokens, as most engines send them
UNREADABLE = (MsgspecError, UnicodeDecodeError, RecursionError)  # what is raised by JSON that is none
HUSH = b"***"
KEPT_SECONDS = 4.0  # llama.cpp hangs up on a connection that was idle for 5, and so does uvicorn
_HEADS = 64
_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (ssl.SSLError, "it does not speak TLS as we do"),
    (TimeoutError, "it does not answer"),
    (socket.gaierror, "its name is not known"),
    (ConnectionRefusedError, "nobody listens there"),
    (FileNotFoundError, "there is no such socket"),
    (PermissionError, "this server may not"),
)
LAST_BYTES_SECONDS = 1.0  # between the last event of a stream and the end of its answer


class Deadlines(Struct, frozen=True, kw_only=True):
    """Seconds to connect, from the request to the end of the headers of its answer, and between two pieces of it."""

    connect: float = 5.0
    first: float = 60.0
    idle: float = 60.0


class Refused(EngineFailed):
    """An answer that is not 2xx. Who knows the engine makes a better error of it."""

    def __init__(self, who: str, status: int, body: bytes, retry_after: float | None = None) -> None:
        redirects = ", and no redirect is followed" if 300 <= status < 400 else ""
        super().__init__(f"{who} refused with HTTP status {status}{redirects}.", retry_after=retry_after)
        self.answered = status
        self.body = body


class Client:
    def __init__(
        self,
        address: Address,
        who: str,
        deadlines: Deadlines | None = None,
        keep: int = 4,
        host: str = "engine",
        key: str | None = None,
    ) -> None:
        """`who` begins the sentences about what went wrong: «The engine». `host` and `key` go into the headers."""
        self._address = address
        self.who = who
        self.deadlines = deadlines or Deadlines()
        self._keep = keep
        self._headers = f"Host: {host}\r\nUser-Agent: antiphon\r\n" + (
            f"Authorization: Bearer {key}\r\n" if key else ""
        )
        self._key = key.encode() if key else b""
        self._heads: dict[str, bytes] = {}  # of requests with JSON, by their paths
        self._kept: list[Connection] = []
        self._open: set[Connection] = set()  # these, and those at work

    async def get(self, path: str, decoder: Decoder[T]) -> T:
        return await self._call(f"GET {path} HTTP/1.1\r\n{self._headers}\r\n".encode(), decoder)

    async def post(self, path: str, body: bytes, decoder: Decoder[T]) -> T:
        return await self._call(self.request(path, body), decoder)

    def unreadable(self, error: Exception) -> EngineFailed:
        """What is said of an answer that is UNREADABLE."""
        return EngineFailed(f"{self.who} sent an answer that cannot be read: {error}.")

    async def relay(self, path: str, body: bytes, media_type: str) -> tuple[bytes, str, bytes]:
        """What it answers as it comes, and what it calls and tells of that; not decoded, so nobody here has to know its
        shape."""
        connection = await self.ask(self.request(path, body, media_type))
        return await self._read(connection), connection.content_type, connection.metadata

    async def stream(self, path: str, body: bytes, decoder: Decoder[T]) -> "EventStream[T]":
        """Once the answer has begun. Whoever awaits it closes it."""
        return await self.listen(self.request(path, body), decoder)

    async def listen(self, request: bytes, decoder: Decoder[T]) -> "EventStream[T]":
        """The same, for a body that may be large: it should not be here twice while an answer takes its time."""
        connection = await self.ask(request)
        if connection.streams:
            return EventStream(self, connection, decoder)
        self.release(connection)
        raise EngineFailed(f"{self.who} answered without a stream of events.")

    def request(self, path: str, body: bytes, media_type: str = JSON) -> bytes:
        """A POST, as `ask` sends it."""
        head = self._heads.get(path) if media_type == JSON else None
        if head is None:
            head = self._head(path, media_type)
        if CURRENT.get() is not None:
            head += "".join([f"{name}: {value}\r\n" for name, value in handed_on()]).encode()
        return b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body)

    def _head(self, path: str, media_type: str) -> bytes:
        head = f"POST {path} HTTP/1.1\r\n{self._headers}Content-Type: {media_type}\r\n".encode()
        if media_type == JSON and len(self._heads) < _HEADS:  # forms have a media type of their own each time
            self._heads[path] = head
        return head

    def hushed(self, said: bytes) -> bytes:
        """What an engine says, without the key if it repeats that: it is none of its clients' business."""
        return said.replace(self._key, HUSH) if self._key else said

    @property
    def busy(self) -> int:
        """Connections that are at work."""
        return len(self._open) - len(self._kept)

    def close(self) -> None:
        for connection in [*self._open]:
            connection.close()
        self._open.clear()
        self._kept.clear()

    async def _call(self, request: bytes, decoder: Decoder[T]) -> T:
        said = await self.ask(request, MAX_BODY_BYTES)
        data = said if isinstance(said, bytes) else await self._read(said)
        try:
            return decoder.decode(data)
        except UNREADABLE as error:
            raise self.unreadable(error) from None

    async def _read(self, connection: Connection) -> bytes:
        try:
            return await self._whole(connection, MAX_BODY_BYTES)
        finally:
            self.release(connection)

    @overload
    async def ask(self, request: bytes) -> Connection: ...

    @overload
    async def ask(
        self, request: bytes, whole: int, hope: Hope | None = None, *, again: bool = False
    ) -> bytes | Connection: ...

    async def ask(
        self, request: bytes, whole: int = 0, hope: Hope | None = None, *, again: bool = False
    ) -> bytes | Connection:
        """An answer that has begun well: its connection, which is to be released; or all of it, as it came, in so many
        bytes, if it is wanted `whole` and is no stream. Who streams all the same is not told otherwise.

        While there is `hope` it may take longer to begin than other answers. A kept connection may have been closed
        meanwhile: then it is a new one.
        """
        kept = None if again else self._take()
        connection = kept or await self._connect()
        handed_over = False
        try:
            await connection.ask(request, self.deadlines.first, hope)
            if not 200 <= (status := connection.status) < 300:
                body = await self._whole(connection, MAX_REFUSAL_BYTES)
                raise Refused(self.who, status, self.hushed(body), connection.retry_after)
            handed_over = not whole or connection.streams
            if handed_over:
                return connection
            data = connection.taken() if connection.complete else await self._whole(connection, whole)
            if len(data) > whole:
                raise self._endless()
            return data
        except Lost:
            if kept is None:
                raise
        finally:
            if not handed_over:
                self.release(connection)
        return await self.ask(request, whole, hope, again=True)

    async def _connect(self) -> Connection:
        try:
            async with asyncio.timeout(self.deadlines.connect):
                connection = await self._address.connect(self.who)
        except ssl.SSLCertVerificationError as error:
            reason = error.verify_message.rstrip(".")
            raise Unavailable(f"The certificate of {_within(self.who)} is not trusted: {reason}.", retry_after=30.0)
        except (OSError, UnicodeError) as error:  # a host name that cannot be is a UnicodeError
            raise Unavailable(f"{self.who} cannot be reached{_why(error)}.", retry_after=1.0) from None
        self._open.add(connection)
        return connection

    async def _whole(self, connection: Connection, most: int) -> bytes:
        """All of it, in the time that it may take to begin: who drips is not silent, and still too slow."""
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(max(self.deadlines.first, self.deadlines.idle)):
                while data := await connection.read(self.deadlines.idle):
                    parts.append(data)
                    size += len(data)
                    if size > most:
                        raise self._endless()
        except TimeoutError:
            raise EngineFailed(f"{self.who} did not answer in time.") from None
        return b"".join(parts)

    def _endless(self) -> EngineFailed:
        return EngineFailed(f"{self.who} sent an answer without an end.")

    def _take(self) -> Connection | None:
        kept = self._kept
        while kept:
            connection = kept.pop()
            if connection.kept and monotonic() - connection.idle_since < KEPT_SECONDS:
                return connection
            self._drop(connection)
        return None

    def leave(self, connection: Connection) -> None:
        """No more is wanted of this answer, but its end, so that the connection can be used again."""
        connection.settle(LAST_BYTES_SECONDS, self.release)

    def release(self, connection: Connection) -> None:
        if connection.kept and len(self._kept) < self._keep:
            connection.idle_since = monotonic()
            self._kept.append(connection)
        else:
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        self._open.discard(connection)
        connection.close()


class EventStream(Generic[T]):
    """Lists of events, decoded. What came before an event that cannot be read is handed over before that is said."""

    def __init__(self, client: Client, connection: Connection, decoder: Decoder[T]) -> None:
        self._client = client
        self._connection: Connection | None = connection
        self._decode = decoder.decode
        self._splitter = EventSplitter()
        self._bytes = 0
        self._begun = False
        self._patience = client.deadlines.first  # until there is an event
        self._fault: EngineFailed | None = None

    def __aiter__(self) -> "EventStream[T]":
        return self

    async def __anext__(self) -> list[T]:
        while self._connection is not None:
            if self._fault is not None:
                raise self._fault
            data = await self._connection.read(self._patience)
            decoded = self._decoded(data)
            if not data or self._splitter.done:
                self.leave()
            if decoded:
                if not self._begun:
                    self._begun, self._patience = True, self._client.deadlines.idle
                return decoded
        if self._fault is not None:
            raise self._fault
        raise StopAsyncIteration

    async def pour(self, take: Callable[[list[T]], Awaitable[None] | None]) -> None:
        """Give each list to `take` from the very callback that brought it, and wait for what that gives.

        Until `halt`, or until there is no more: what is left then, and what went wrong, is told who asks.
        """
        connection = self._connection
        if connection is None or self._splitter.done or self._fault is not None:
            return

        def taken(data: bytes) -> Awaitable[None] | None:
            try:
                events = self._decoded(data)
            except EngineFailed as error:
                self._fault, events = error, []
            if self._fault is not None or self._splitter.done:
                connection.halt()
            return take(events) if events else None

        await connection.pour(taken, self._patience)
        if self._splitter.done:
            self.leave()

    def halt(self) -> None:
        """Pour no more."""
        if self._connection is not None:
            self._connection.halt()

    def hurry(self, seconds: float) -> None:
        """What is still to come has to come within that time."""
        self._patience = min(self._patience, seconds)
        if self._connection is not None:
            self._connection.hurry(self._patience)

    def leave(self) -> None:
        """The rest is not wanted; the connection may be, if the answer ends by itself very soon."""
        if self._connection is not None:
            self._client.leave(self._connection)
            self._connection = None

    def close(self) -> None:
        """Cancels what is under way; nothing to cancel after the last event."""
        if self._connection is not None:
            self._client.release(self._connection)
            self._connection = None

    def _decoded(self, data: bytes) -> list[T]:
        """All that is whole now. No data: the answer is over."""
        self._bytes += len(data)
        if self._bytes > MAX_STREAM_BYTES:
            raise EngineFailed(f"{self._client.who} sent an answer without an end.")
        whole = self._splitter.cut(data or b"\n\n")
        decode = self._decode
        try:
            if events := [decode(event) for event in self._splitter.guess(whole)]:
                return events
        except UNREADABLE:
            pass  # it is not what was guessed, or cannot be read
        return self._readable(whole) if whole else []

    def _readable(self, whole: bytes) -> list[T]:
        """Those before the first that cannot be read."""
        decoded: list[T] = []
        for event in self._splitter.split(whole):
            try:
                decoded.append(self._decode(event))
            except UNREADABLE as error:
                self._fault = EngineFailed(f"{self._client.who} sent an event that cannot be read: {error}.")
                break
        return decoded


def _why(error: Exception) -> str:
    """As far as it is known; the words of the error itself may have an address in them."""
    return next((f": {why}" for kind, why in _REASONS if isinstance(error, kind)), "")


def _within(who: str) -> str:
    """A subject within a sentence: «The engine» → «the engine»."""
    return who[:1].lower() + who[1:]

"""The one HTTP client for engines: JSON in and out, server-sent events by the read, connections kept for the next time.

Everything that came in one read is handed over in one list. Closing the iterator closes the connection at once.
Whatever goes wrong is an EngineFailed or an Unavailable, within a deadline.
"""

import asyncio
from typing import Generic, TypeVar

from msgspec import MsgspecError, Struct
from msgspec.json import Decoder

from antiphon.engines.connection import Connection, Lost
from antiphon.engines.sse import EventSplitter
from antiphon.errors import EngineFailed, Unavailable

T = TypeVar("T")

MAX_BODY_BYTES = 64 * 1024 * 1024
KEPT_SECONDS = 4.0  # llama.cpp hangs up on a connection that was idle for 5


class UnixAddress(Struct, frozen=True):
    path: str

    async def connect(self, who: str) -> Connection:
        _, connection = await asyncio.get_running_loop().create_unix_connection(lambda: Connection(who), self.path)
        return connection


Address = UnixAddress


class Deadlines(Struct, frozen=True, kw_only=True):
    """Seconds to connect, from the request to the first byte of its answer, and between two pieces of it."""

    connect: float = 5.0
    first: float = 60.0
    idle: float = 60.0


class Refused(EngineFailed):
    """An answer that is not 2xx. Who knows the engine makes a better error of it."""

    def __init__(self, who: str, status: int, body: bytes) -> None:
        super().__init__(f"{who} refused with HTTP status {status}.")
        self.answered = status
        self.body = body


class Client:
    def __init__(self, address: Address, who: str, deadlines: Deadlines | None = None, keep: int = 4) -> None:
        """`who` begins the sentences about what went wrong: «The engine»."""
        self._address = address
        self.who = who
        self.deadlines = deadlines or Deadlines()
        self._keep = keep
        self._kept: list[Connection] = []
        self._busy: set[Connection] = set()

    async def get(self, path: str, decoder: Decoder[T]) -> T:
        return await self._call(f"GET {path} HTTP/1.1\r\nHost: engine\r\n\r\n".encode(), decoder)

    async def post(self, path: str, body: bytes, decoder: Decoder[T]) -> T:
        return await self._call(_post(path, body), decoder)

    async def stream(self, path: str, body: bytes, decoder: Decoder[T]) -> "EventStream[T]":
        """Once the answer has begun. Whoever awaits it closes it."""
        connection = await self._answering(_post(path, body))
        if connection.streams:
            return EventStream(self, connection, decoder)
        self.release(connection)
        raise EngineFailed(f"{self.who} answered without a stream of events.")

    def close(self) -> None:
        for connection in [*self._kept, *self._busy]:
            connection.close()
        self._kept.clear()

    async def _call(self, request: bytes, decoder: Decoder[T]) -> T:
        connection = await self._answering(request)
        try:
            return decoder.decode(await self._body(connection))
        except MsgspecError as error:
            raise EngineFailed(f"{self.who} sent an answer that cannot be read: {error}.") from None
        finally:
            self.release(connection)

    async def _answering(self, request: bytes) -> Connection:
        """A connection whose answer has begun well. A kept one may have been closed meanwhile: then it is a new one."""
        kept = self._take()
        if kept is not None:
            try:
                return await self._ask(kept, request)
            except Lost:
                pass
        return await self._ask(await self._connect(), request)

    async def _ask(self, connection: Connection, request: bytes) -> Connection:
        self._busy.add(connection)
        well = False
        try:
            connection.send(request)
            status = await connection.status(self.deadlines.first)
            well = 200 <= status < 300
            if not well:
                raise Refused(self.who, status, await self._body(connection))
        finally:
            if not well:
                self.release(connection)
        return connection

    async def _connect(self) -> Connection:
        try:
            async with asyncio.timeout(self.deadlines.connect):
                return await self._address.connect(self.who)
        except OSError:  # TimeoutError is one
            raise Unavailable(f"{self.who} cannot be reached.", retry_after=1.0) from None

    async def _body(self, connection: Connection) -> bytes:
        parts: list[bytes] = []
        size = 0
        while data := await connection.read(self.deadlines.idle):
            parts.append(data)
            size += len(data)
            if size > MAX_BODY_BYTES:
                raise EngineFailed(f"{self.who} sent an answer without an end.")
        return b"".join(parts)

    def _take(self) -> Connection | None:
        now = asyncio.get_running_loop().time()
        while self._kept:
            connection = self._kept.pop()
            if connection.open and now - connection.idle_since < KEPT_SECONDS:
                return connection
            connection.close()
        return None

    def release(self, connection: Connection) -> None:
        self._busy.discard(connection)
        if connection.reusable and len(self._kept) < self._keep:
            connection.idle_since = asyncio.get_running_loop().time()
            self._kept.append(connection)
        else:
            connection.close()


class EventStream(Generic[T]):
    """Lists of events, decoded."""

    def __init__(self, client: Client, connection: Connection, decoder: Decoder[T]) -> None:
        self._client = client
        self._connection: Connection | None = connection
        self._decode = decoder.decode
        self._splitter = EventSplitter()
        self._idle = client.deadlines.idle

    def __aiter__(self) -> "EventStream[T]":
        return self

    async def __anext__(self) -> list[T]:
        while self._connection is not None:
            data = await self._connection.read(self._idle)
            events = self._splitter.feed(data) if data else self._splitter.finish()
            if not data:
                self.close()
            if events:
                return self._decoded(events)
        raise StopAsyncIteration

    def close(self) -> None:
        """Cancels what is under way; nothing to cancel after the last event."""
        if self._connection is not None:
            self._client.release(self._connection)
            self._connection = None

    def _decoded(self, events: list[bytes]) -> list[T]:
        decode = self._decode
        try:
            return [decode(event) for event in events]
        except MsgspecError as error:
            raise EngineFailed(f"{self._client.who} sent an event that cannot be read: {error}.") from None


def _post(path: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: engine\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body

"""A network that plays what a test wrote, without a network: requests are answered by pieces of bytes, in order."""

import asyncio
from collections.abc import Sequence
from typing import Any

from antiphon.engines.connection import Connection
from antiphon.engines.http.base import HttpEngine, HttpSettings

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
BARE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"  # ends with the connection


class Tape(asyncio.Transport):
    """Each piece is one read. After the last of them it hangs up, or is silent."""

    def __init__(self, connection: Connection, pieces: Sequence[bytes], hangs_up: bool) -> None:
        super().__init__()
        self._connection = connection
        self._pieces = list(pieces)
        self._hangs_up = hangs_up
        self._closed = self._playing = self._paused = False

    def write(self, data: Any) -> None:
        if not self._playing:
            self._playing = True
            self._next()

    def is_closing(self) -> bool:
        return self._closed

    def abort(self) -> None:
        if not self._closed:
            self._closed = True
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._next()

    def _next(self) -> None:
        asyncio.get_running_loop().call_soon(self._play)

    def _play(self) -> None:
        if self._closed or self._paused:
            return
        if self._pieces:
            self._connection.data_received(self._pieces.pop(0))
            self._next()
        elif self._hangs_up:
            self.abort()


class Player:
    """The address of an engine that answers every connection with the same pieces."""

    def __init__(self, pieces: Sequence[bytes], hangs_up: bool = True) -> None:
        self._pieces = pieces
        self._hangs_up = hangs_up
        self.connections = 0

    async def connect(self, who: str) -> Connection:
        self.connections += 1
        connection = Connection(who)
        connection.connection_made(Tape(connection, self._pieces, self._hangs_up))
        return connection


def playing(
    kind: type[HttpEngine], *pieces: bytes, hangs_up: bool = True, idle: float | None = None, first: float | None = None
) -> HttpEngine:
    """An engine that need not be opened: nobody asks it what it can do. Only who is silent in the end is waited for."""
    brief = 30.0 if hangs_up else 0.2
    settings = HttpSettings(
        engine=f"{kind.name}://nowhere",
        model=("m",),
        first_token_timeout=brief if first is None else first,
        idle_timeout=brief if idle is None else idle,
    )
    return kind(settings, Player(pieces, hangs_up))


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)

"""A scripted transport in place of a network: every connection receives the same pieces of bytes, in order."""

import asyncio
from collections.abc import Sequence
from typing import Any

from antiphon.engines.connection import EngineConnection
from antiphon.engines.http.base import HttpEngine, HttpSettings

CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
UNCHUNKED_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"  # the body ends with the connection


class ScriptedTransport(asyncio.Transport):
    """Delivers each piece as one read. After the last one it closes the connection, or stays silent."""

    def __init__(self, connection: EngineConnection, pieces: Sequence[bytes], hangs_up: bool) -> None:
        super().__init__()
        self._connection = connection
        self._pieces = list(pieces)
        self._hangs_up = hangs_up
        self._closed = self._started = self._paused = False

    def write(self, data: Any) -> None:
        if not self._started:
            self._started = True
            self._schedule()

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
        self._schedule()

    def _schedule(self) -> None:
        asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
        if self._closed or self._paused:
            return
        if self._pieces:
            self._connection.data_received(self._pieces.pop(0))
            self._schedule()
        elif self._hangs_up:
            self.abort()


class ScriptedAddress:
    """The address of an engine that answers every connection with the same pieces."""

    def __init__(self, pieces: Sequence[bytes], hangs_up: bool = True) -> None:
        self._pieces = pieces
        self._hangs_up = hangs_up
        self.connections = 0

    async def connect(self, label: str) -> EngineConnection:
        self.connections += 1
        connection = EngineConnection(label)
        connection.connection_made(ScriptedTransport(connection, self._pieces, self._hangs_up))
        return connection


def make_scripted_engine(
    kind: type[HttpEngine], *pieces: bytes, hangs_up: bool = True, idle: float | None = None, first: float | None = None
) -> HttpEngine:
    """Return an engine that need not be opened: it is not probed. Timeouts are short only if it stays silent at the
    end.
    """
    timeout = 30.0 if hangs_up else 0.2
    settings = HttpSettings(
        engine=f"{kind.name}://nowhere",
        model=("m",),
        first_token_timeout=timeout if first is None else first,
        idle_timeout=timeout if idle is None else idle,
    )
    return kind(settings, ScriptedAddress(pieces, hangs_up))


def http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)

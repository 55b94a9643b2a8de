"""Connections of code in a container to its proxy, while a call runs: the server takes their bytes and sends others.

The sandbox process needs no network for it: every byte goes through the connection between it and the server.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from antiphon.egress.proxy import ByteStream
from antiphon.errors import AntiphonError
from antiphon.sandbox.connection import SandboxConnection
from antiphon.sandbox.worker.frames import Frame

_SECONDS = 600.0  # that code may be silent; the end of its call ends a connection in any case
_END_SECONDS = 10.0

ServeConnection = Callable[[ByteStream], Awaitable[None]]


class RelayedConnection:
    """Implements ByteStream."""

    def __init__(self, connection: SandboxConnection, container_id: str, number: int) -> None:
        self._connection = connection
        self._container_id = container_id
        self._number = number

    async def receive(self) -> bytes:
        return (await self._request("receive"))[1]

    async def send(self, data: bytes) -> None:
        await self._request("send", data)

    async def end(self) -> None:
        with suppress(OSError):
            await self._request("end", seconds=_END_SECONDS)

    async def _request(self, op: str, data: bytes = b"", seconds: float = _SECONDS) -> Frame:
        try:
            return await self._connection.request(op, seconds, data, id=self._container_id, connection=self._number)
        except AntiphonError as error:
            raise ConnectionResetError(error.message) from None


class Relays:
    """The connections of one call."""

    def __init__(self, connection: SandboxConnection, container_id: str, serve: ServeConnection | None) -> None:
        self._connection = connection
        self._container_id = container_id
        self._serve = serve
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self, number: int) -> None:
        task = asyncio.get_running_loop().create_task(self._run(number))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, number: int) -> None:
        relayed = RelayedConnection(self._connection, self._container_id, number)
        try:
            if self._serve is not None:
                await self._serve(relayed)
        finally:
            await relayed.end()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

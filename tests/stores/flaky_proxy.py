"""A proxy in front of a PostgreSQL server that can stop forwarding, drop its connections, or withhold a reply."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from urllib.parse import quote

_CHUNK = 1 << 16
_ERROR_FIELDS = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection due to administrator command\0\0"
_SHUTDOWN_MESSAGE = b"E" + (len(_ERROR_FIELDS) + 4).to_bytes(4, "big") + _ERROR_FIELDS


class FlakyProxy:
    """Forwards connections of clients to the Unix socket of the server.

    The next request that contains `drop_reply_to` is forwarded, but instead of its reply the connection breaks.
    """

    def __init__(self, target: Path) -> None:
        self._target = target
        self._tasks: set[asyncio.Task[None]] = set()
        self._clients: set[asyncio.StreamWriter] = set()
        self.silent = False  # True: data is read but not forwarded
        self.drop_reply_to: bytes | None = None  # once: a request with these bytes breaks the connection

    async def handle_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_unix_connection(self._target)
        reply_dropped = False

        async def forward_request(chunk: bytes) -> bool:
            nonlocal reply_dropped
            if self.drop_reply_to is not None and self.drop_reply_to in chunk:
                self.drop_reply_to, reply_dropped = None, True
            server_writer.write(chunk)
            return True

        async def forward_reply(chunk: bytes) -> bool:
            if not reply_dropped:
                writer.write(chunk)
            return not reply_dropped

        sides = [
            asyncio.create_task(self._forward(*side))
            for side in ((reader, forward_request), (server_reader, forward_reply))
        ]
        self._tasks |= set(sides)
        self._clients.add(writer)
        try:
            await asyncio.wait(sides, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in sides:
                task.cancel()
            await asyncio.wait(sides)
            self._tasks -= set(sides)
            self._clients.discard(writer)
            writer.transport.abort()
            server_writer.transport.abort()

    async def drop_connections(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.sleep(0)

    async def announce_shutdown(self) -> None:
        """Send every client the error of a server shutdown (admin_shutdown, 57P01) without closing its connection."""
        for writer in self._clients:
            writer.write(_SHUTDOWN_MESSAGE)
        for _ in range(20):  # until the clients have read it
            await asyncio.sleep(0)

    async def _forward(self, source: asyncio.StreamReader, handler: Callable[[bytes], Awaitable[bool]]) -> None:
        with contextlib.suppress(OSError):
            while chunk := await source.read(_CHUNK):
                if not self.silent and not await handler(chunk):
                    return


@contextlib.asynccontextmanager
async def run_flaky_proxy(target: Path, database: str) -> AsyncIterator[tuple[FlakyProxy, str]]:
    """Yield the proxy and the URL of a database behind it."""
    proxy = FlakyProxy(target)
    with tempfile.TemporaryDirectory(prefix="antiphon-line-") as folder:
        server = await asyncio.start_unix_server(proxy.handle_connection, Path(folder) / target.name)
        try:
            yield proxy, f"postgresql://postgres@/{database}?host={quote(folder, safe='')}"
        finally:
            server.close()
            await proxy.drop_connections()

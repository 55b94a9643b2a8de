"""A PostgreSQL server at the end of a bad line: a proxy that can fall silent, hang up, and keep an answer to itself."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from urllib.parse import quote

_CHUNK = 1 << 16
_SAYS = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection due to administrator command\0\0"
_GOODBYE = b"E" + (len(_SAYS) + 4).to_bytes(4, "big") + _SAYS


class BadLine:
    """Between clients and the server's socket."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._calls: set[asyncio.Task[None]] = set()
        self._near: set[asyncio.StreamWriter] = set()
        self.silent = False  # takes everything and passes nothing on
        self.swallows: bytes | None = None  # what holds this is passed on, its answer is not: the line breaks; once

    async def call(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_unix_connection(self._target)
        doomed = False

        async def ask(chunk: bytes) -> bool:
            nonlocal doomed
            if self.swallows is not None and self.swallows in chunk:
                self.swallows, doomed = None, True
            far_writer.write(chunk)
            return True

        async def answer(chunk: bytes) -> bool:
            if not doomed:
                writer.write(chunk)
            return not doomed

        sides = [asyncio.create_task(self._pass(*side)) for side in ((reader, ask), (far_reader, answer))]
        self._calls |= set(sides)
        self._near.add(writer)
        try:
            await asyncio.wait(sides, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in sides:
                task.cancel()
            await asyncio.wait(sides)
            self._calls -= set(sides)
            self._near.discard(writer)
            writer.transport.abort()
            far_writer.transport.abort()

    async def hang_up(self) -> None:
        for task in list(self._calls):
            task.cancel()
        await asyncio.sleep(0)

    async def say_goodbye(self) -> None:
        """As a server that is stopped does, on every line; that it hangs up is not noticed yet."""
        for writer in self._near:
            writer.write(_GOODBYE)
        for _ in range(20):  # until it is read
            await asyncio.sleep(0)

    async def _pass(self, source: asyncio.StreamReader, on: Callable[[bytes], Awaitable[bool]]) -> None:
        with contextlib.suppress(OSError):
            while chunk := await source.read(_CHUNK):
                if not self.silent and not await on(chunk):
                    return


@contextlib.asynccontextmanager
async def bad_line(target: Path, database: str) -> AsyncIterator[tuple[BadLine, str]]:
    """The line, and the address of a database behind it."""
    line = BadLine(target)
    with tempfile.TemporaryDirectory(prefix="antiphon-line-") as folder:
        server = await asyncio.start_unix_server(line.call, Path(folder) / target.name)
        try:
            yield line, f"postgresql://postgres@/{database}?host={quote(folder, safe='')}"
        finally:
            server.close()
            await line.hang_up()

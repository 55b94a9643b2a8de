"""Content in a folder: one file each, written under a temporary name and renamed when it is on disk.

    incoming/KEY ── fsync, rename ──▶ XX/KEY       XX: the last two characters of the key

Several processes on one machine, or on a shared file system, may use the same folder.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ParamSpec, TypeVar

from antiphon.errors import StartupError, Unavailable
from antiphon.stores.contents.base import MAX_KEYS
from antiphon.stores.sqlite_file import sync_folder

P = ParamSpec("P")
T = TypeVar("T")

_BLOCK_BYTES = 1024 * 1024  # written or read at a time, in a thread
_INCOMING = "incoming"


class FolderContents:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def open(self) -> None:
        if not hasattr(os, "pread"):
            raise StartupError("Files cannot be kept in a folder on this system: set --files store.")
        try:
            await asyncio.to_thread(self._make_folder)
        except OSError as error:
            raise StartupError(f"The folder {self._folder} for files cannot be created: {error.strerror}.") from None

    async def write(self, key: str, pieces: AsyncIterator[bytes]) -> None:
        temporary = self._folder / _INCOMING / key
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                await _write_pieces(descriptor, pieces)
                await _run_to_end(self._commit, descriptor, temporary, self._path(key))
            finally:
                os.close(descriptor)
                temporary.unlink(missing_ok=True)  # after a failure
        except OSError as error:
            raise Unavailable(f"The file cannot be stored: {error.strerror}.", retry_after=5.0) from None

    async def read(self, key: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        try:
            descriptor = os.open(self._path(key), os.O_RDONLY)
        except OSError as error:
            raise _unreadable_error(error.strerror) from None
        try:
            while start < end:
                block = await _run_to_end(os.pread, descriptor, min(_BLOCK_BYTES, end - start), start)
                if not block:
                    raise _unreadable_error("it is shorter than it was")
                start += len(block)
                yield block
        except OSError as error:
            raise _unreadable_error(error.strerror) from None
        finally:
            os.close(descriptor)

    async def delete(self, keys: Sequence[str]) -> None:
        await asyncio.to_thread(self._unlink, [self._path(key) for key in keys])

    async def list_keys(self, before: float) -> AsyncIterator[list[str]]:
        """Also removes temporary files that no process has written to since then."""
        await asyncio.to_thread(self._unlink, _list_files(self._folder / _INCOMING, before))
        for shard in await asyncio.to_thread(os.listdir, self._folder):
            if shard != _INCOMING:
                found = [path.name for path in await asyncio.to_thread(_list_files, self._folder / shard, before)]
                for start in range(0, len(found), MAX_KEYS):
                    yield found[start : start + MAX_KEYS]

    def _path(self, key: str) -> Path:
        return self._folder / key[-2:] / key

    def _make_folder(self) -> None:
        (self._folder / _INCOMING).mkdir(mode=0o700, parents=True, exist_ok=True)

    def _commit(self, descriptor: int, temporary: Path, path: Path) -> None:
        os.fsync(descriptor)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        temporary.rename(path)
        for folder in (path.parent, self._folder):  # the names have to survive a power failure like the content
            sync_folder(folder)

    def _unlink(self, paths: Sequence[Path]) -> None:
        for path in paths:
            with suppress(OSError):  # content that cannot be deleted is found by the next sweep
                path.unlink()


async def _run_to_end(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function in a thread, and wait for its end also if the task is cancelled, however often: until then its
    descriptor must not be closed, because the number could be that of another file already.
    """
    job = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(job)
    except asyncio.CancelledError:
        while not job.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([job])
        raise


async def _write_pieces(descriptor: int, pieces: AsyncIterator[bytes]) -> None:
    buffer = bytearray()
    async for piece in pieces:
        buffer += piece
        if len(buffer) >= _BLOCK_BYTES:
            await _run_to_end(_write_all, descriptor, buffer)
            buffer = bytearray()
    await _run_to_end(_write_all, descriptor, buffer)


def _write_all(descriptor: int, data: bytearray) -> None:
    remaining = memoryview(data)
    while remaining:
        remaining = remaining[os.write(descriptor, remaining) :]


def _list_files(folder: Path, before: float) -> list[Path]:
    """Return the files that were last written before a time; some may be removed meanwhile."""
    found = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.stat().st_mtime < before:
                    found.append(folder / entry.name)
    return found


def _unreadable_error(reason: str | None) -> Unavailable:
    return Unavailable(f"The content of the file cannot be read: {reason}.", retry_after=5.0)

"""How a disk goes bad under a server that runs, and gets well again: its system calls fail from the k-th on, or none of
its files may grow, or its disk is full. The server knows nothing of it, and is not touched otherwise.
"""

import asyncio
import contextlib
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Literal

from msgspec import Struct

File = Literal["", "-wal", "-shm"]  # the database itself, its log of changes, and what processes share of that
Felt = Callable[[], bool]  # has anything come of it yet?
_ATTACH_SECONDS = 10.0
_POLL_SECONDS = 0.005
_SETTLE_SECONDS = 30.0


class Fault(Struct, frozen=True, kw_only=True):
    """`nth`: of the calls on that file, counted from the moment at which it begins. `lasts`: all that follow too."""

    calls: str  # as strace names them, with commas
    file: File
    error: str
    nth: int = 1
    lasts: bool = True

    @property
    def reading(self) -> bool:
        """Reading fails too."""
        return "pread64" in self.calls

    def __str__(self) -> str:
        when = f"from the {self.nth}. on" if self.lasts else f"at the {self.nth}."
        return f"{self.calls} on the file{self.file} gives {self.error} {when}"

    def arguments(self, store: Path, log: Path) -> list[str]:
        """For strace. A call that names no such file passes by untouched."""
        when = f"{self.nth}+" if self.lasts else str(self.nth)
        return [
            *("strace", "-f", "-qq", "-o", str(log), "-P", f"{store}{self.file}"),
            *("-e", f"trace={self.calls}", "-e", f"inject={self.calls}:error={self.error}:when={when}"),
        ]


@contextlib.asynccontextmanager
async def failing(store: Path, fault: Fault, pid: int) -> AsyncIterator[Felt]:
    """For so long the server's calls fail like that."""
    with tempfile.TemporaryDirectory(prefix="antiphon-strace-") as folder:
        log = Path(folder) / "calls"
        tracer = await asyncio.to_thread(_trace, [*fault.arguments(store, log), "-p", str(pid)])
        try:
            await asyncio.to_thread(_await_attached, tracer, pid)
            yield lambda: log.exists() and b"(INJECTED)" in log.read_bytes()
        finally:
            tracer.send_signal(signal.SIGTERM)  # it lets go of whom it watches
            await asyncio.to_thread(tracer.communicate, timeout=_ATTACH_SECONDS)


def _trace(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stderr=subprocess.PIPE)


def _await_attached(tracer: subprocess.Popen[bytes], pid: int) -> None:
    """All of its threads are watched."""
    deadline = time.monotonic() + _ATTACH_SECONDS
    while not all(_is_traced(status) for status in Path(f"/proc/{pid}/task").glob("*/status")):
        if tracer.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"strace does not get hold of the server: {_last_words(tracer)}")
        time.sleep(_POLL_SECONDS)


def _is_traced(status: Path) -> bool:
    with contextlib.suppress(OSError):  # a thread that has ended
        return "\nTracerPid:\t0\n" not in status.read_text()
    return True


def _last_words(tracer: subprocess.Popen[bytes]) -> str:
    tracer.kill()
    return tracer.communicate()[1].decode(errors="replace")


@contextlib.asynccontextmanager
async def stinted(most: int, pid: int) -> AsyncIterator[Felt]:
    """No file of the server may grow beyond so many bytes: what crosses that is written in part, then not at all."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield lambda: True
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))


class SmallDisk:
    """A disk of a few megabytes in a world of its own: servers are started `within`, and others see it `outside`."""

    def __init__(self, holder: subprocess.Popen[bytes], inside: Path) -> None:
        into = ("nsenter", "--target", str(holder.pid), "--user", "--mount", "--preserve-credentials")
        self.within = (*into, f"--wd={os.getcwd()}")
        self.outside = Path(f"/proc/{holder.pid}/root{inside}")
        self._ballast = self.outside / "ballast"

    def free(self) -> int:
        found = os.statvfs(self.outside)
        return found.f_bavail * found.f_frsize

    def leave(self, free: int) -> None:
        """So many bytes, and no more, are free."""
        self.clear()
        with self._ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, self.free() - free))

    def is_settled(self) -> bool:
        """No store has room left in its log of changes: whatever is written needs more of the disk."""
        return not any(log.stat().st_size for log in self.outside.glob("*-wal"))

    def clear(self) -> None:
        self._ballast.unlink(missing_ok=True)


@contextlib.asynccontextmanager
async def filled(disk: SmallDisk, free: int, _: int) -> AsyncIterator[Felt]:
    """Somebody else writes until so little is free; and then deletes it again."""
    async with asyncio.timeout(_SETTLE_SECONDS):
        while not disk.is_settled():  # noqa: ASYNC110 - another process does it
            await asyncio.sleep(0.02)
    disk.leave(free)
    try:
        yield lambda: True
    finally:
        disk.clear()


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[SmallDisk]:
    """At this empty folder. Raises RuntimeError where nobody may mount."""
    mount = f"mount -t tmpfs -o size={size} none {folder} && echo mounted && exec sleep 1000000"
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stderr is not None
            if holder.stdout.readline() != b"mounted\n":
                raise RuntimeError(f"no disk can be mounted: {holder.stderr.read().decode().strip()}")
            yield SmallDisk(holder, folder)
        finally:
            holder.kill()


def can_trace() -> bool:
    """May this user watch the system calls of his own processes?"""
    if shutil.which("strace") is None:
        return False
    return (
        subprocess.run(["strace", "-qq", "-o", "/dev/null", "true"], capture_output=True, check=False).returncode == 0
    )


def can_mount() -> bool:
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        return False
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(RuntimeError), small_disk(Path(folder), 1 << 20):
        return True
    return False

"""Disk faults under a running server, and their end: system calls fail from the k-th on, files cannot grow, or the disk
is full. The server itself is not modified.
"""

import asyncio
import contextlib
import errno
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

DatabaseFile = Literal["", "-wal", "-shm"]  # suffix: the database, its write-ahead log, or the shared memory of the log
HasEffect = Callable[[], bool]  # whether the fault has occurred yet
_ATTACH_SECONDS = 10.0
_POLL_SECONDS = 0.005
_SETTLE_SECONDS = 30.0


class Fault(Struct, frozen=True, kw_only=True):
    """A fault of system calls. `nth`: number of the failing call on that file, counted from the start of the fault.
    `persistent`: all later calls fail too.
    """

    calls: str  # names as in strace, separated by commas
    file: DatabaseFile
    error: str
    nth: int = 1
    persistent: bool = True

    @property
    def affects_reads(self) -> bool:
        """Whether reads fail too."""
        return "pread64" in self.calls

    @property
    def must_occur(self) -> bool:
        """Whether a server that stores anything makes these calls: every commit writes and syncs the log, and a
        checkpoint syncs the database.
        """
        if self.file == "-wal":
            return "fdatasync" in self.calls or "pwrite64" in self.calls
        return "fdatasync" in self.calls and self.nth == 1

    def __str__(self) -> str:
        when = f"from call {self.nth} on" if self.persistent else f"at call {self.nth} only"
        return f"{self.calls} on the database{self.file} fails with {self.error} {when}"

    def strace_command(self, store: Path, log: Path) -> list[str]:
        """Return the strace command. Calls on other files are not affected."""
        when = f"{self.nth}+" if self.persistent else str(self.nth)
        return [
            *("strace", "-f", "-qq", "-o", str(log), "-P", f"{store}{self.file}"),
            *("-e", f"trace={self.calls}", "-e", f"inject={self.calls}:error={self.error}:when={when}"),
        ]


@contextlib.asynccontextmanager
async def inject_fault(store: Path, fault: Fault, pid: int) -> AsyncIterator[HasEffect]:
    """Make the server's calls fail within this context."""
    with tempfile.TemporaryDirectory(prefix="antiphon-strace-") as folder:
        log = Path(folder) / "calls"
        tracer = await asyncio.to_thread(_start_tracer, [*fault.strace_command(store, log), "-p", str(pid)])
        try:
            await asyncio.to_thread(_wait_until_attached, tracer, pid)
            yield lambda: log.exists() and b"(INJECTED)" in log.read_bytes()
        finally:
            tracer.send_signal(signal.SIGTERM)  # strace detaches from the server
            await asyncio.to_thread(tracer.communicate, timeout=_ATTACH_SECONDS)


def _start_tracer(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stderr=subprocess.PIPE)


def _wait_until_attached(tracer: subprocess.Popen[bytes], pid: int) -> None:
    """Wait until all threads of the server are traced."""
    deadline = time.monotonic() + _ATTACH_SECONDS
    while not all(_is_traced(status) for status in Path(f"/proc/{pid}/task").glob("*/status")):
        if tracer.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"strace cannot attach to the server: {_kill_and_read(tracer)}")
        time.sleep(_POLL_SECONDS)


def _is_traced(status: Path) -> bool:
    with contextlib.suppress(OSError):  # the thread has ended
        return "\nTracerPid:\t0\n" not in status.read_text()
    return True


def _kill_and_read(tracer: subprocess.Popen[bytes]) -> str:
    tracer.kill()
    return tracer.communicate()[1].decode(errors="replace")


@contextlib.asynccontextmanager
async def limit_file_size(limit: int, pid: int) -> AsyncIterator[HasEffect]:
    """Limit the size of the server's files: a write across the limit is partial, and later writes fail."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield lambda: True
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))


class SmallDisk:
    """A disk of a few megabytes in its own mount namespace. `command_prefix` starts servers inside; `path` is the disk
    as seen from outside.
    """

    def __init__(self, holder: subprocess.Popen[bytes], inside: Path) -> None:
        enter = ("nsenter", "--target", str(holder.pid), "--user", "--mount", "--preserve-credentials")
        self.command_prefix = (*enter, f"--wd={os.getcwd()}")
        self.path = Path(f"/proc/{holder.pid}/root{inside}")
        self._ballast = self.path / "ballast"

    def free_bytes(self) -> int:
        stats = os.statvfs(self.path)
        return stats.f_bavail * stats.f_frsize

    def leave_free(self, free: int) -> None:
        """Fill the disk except for `free` bytes. The server may write meanwhile, and then less is filled."""
        self.clear()
        with self._ballast.open("wb") as file:
            while True:
                try:
                    return os.posix_fallocate(file.fileno(), 0, max(1, self.free_bytes() - free))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def is_settled(self) -> bool:
        """Return whether all write-ahead logs are empty, so that every write needs more of the disk."""
        return not any(log.stat().st_size for log in self.path.glob("*-wal"))

    def clear(self) -> None:
        self._ballast.unlink(missing_ok=True)


@contextlib.asynccontextmanager
async def fill_disk(disk: SmallDisk, free: int, _: int) -> AsyncIterator[HasEffect]:
    """Fill the disk from outside except for `free` bytes, and delete the data at the end."""
    async with asyncio.timeout(_SETTLE_SECONDS):
        while not disk.is_settled():  # noqa: ASYNC110 - another process changes it
            await asyncio.sleep(0.02)
    disk.leave_free(free)
    try:
        yield lambda: True
    finally:
        disk.clear()


@contextlib.contextmanager
def mount_small_disk(folder: Path, size: int) -> Iterator[SmallDisk]:
    """Mount a disk on this empty folder. Raises RuntimeError if mounting is not permitted."""
    mount = f"mount -t tmpfs -o size={size} none {folder} && echo mounted && exec sleep 1000000"
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stderr is not None
            if holder.stdout.readline() != b"mounted\n":
                raise RuntimeError(f"mounting a disk failed: {holder.stderr.read().decode().strip()}")
            yield SmallDisk(holder, folder)
        finally:
            holder.kill()


def can_trace() -> bool:
    """Return whether strace is installed and permitted."""
    if shutil.which("strace") is None:
        return False
    return (
        subprocess.run(["strace", "-qq", "-o", "/dev/null", "true"], capture_output=True, check=False).returncode == 0
    )


def can_mount() -> bool:
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        return False
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.suppress(RuntimeError),
        mount_small_disk(Path(folder), 1 << 20),
    ):
        return True
    return False

"""A disk that fails while a server starts on it: it serves, or it says in a sentence why not, and harms nothing."""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from antiphon.errors import StartupError
from antiphon.stores.sqlite import SqliteStore
from drills.disk.bad_disk import Fault, File
from drills.disk.trials import Tally, look_at
from drills.harness.findings import Findings

_NUMBERS = (1, 2, 4, 8)
_FAULTS: tuple[tuple[str, File, str], ...] = (
    ("openat", "", "EIO"),
    ("openat", "-wal", "ENOSPC"),
    ("openat", "-shm", "ENOSPC"),
    ("pread64", "", "EIO"),
    ("pread64", "-wal", "EIO"),
    ("pwrite64", "", "ENOSPC"),
    ("pwrite64", "-wal", "ENOSPC"),
    ("pwrite64,ftruncate", "-shm", "ENOSPC"),
    ("mmap", "-shm", "ENOMEM"),
    ("fdatasync,fsync", "-wal", "EIO"),
    ("fcntl", "", "EIO"),
)
_SECONDS = 30.0
_SERVES = b"http://127.0.0.1:"
_REFUSED = 2  # the exit code of one that cannot start


async def starts(step: int, tally: Tally, findings: Findings) -> None:
    """On a new file, and on one with a log of changes that a killed server left."""
    with tempfile.TemporaryDirectory(prefix="antiphon-drill-") as folder:
        left = Path(folder) / "left.db"
        findings.all_violated(filter(None, [await asyncio.to_thread(_started, left)]))
        for number, fault in enumerate(_every_fault()):
            if number % step == 0:
                store = Path(folder) / f"{number}.db"
                if number % 2:
                    for end in ("", "-wal"):
                        shutil.copy(f"{left}{end}", f"{store}{end}")
                findings.tried()
                findings.all_violated(await asyncio.to_thread(_tried, store, fault))
                await _open(store, fault, findings)
                look_at(store, f"when a server started, {fault}", tally, findings)


async def _open(store: Path, fault: Fault, findings: Findings) -> None:
    """When it is over, as the next server does it."""
    opened = SqliteStore(str(store), ttl=60.0)
    try:
        await opened.open()
    except StartupError as error:
        findings.violated(f"when a server started, {fault}; and now it cannot be opened: {error}")
    else:
        await opened.close()


def _every_fault() -> Iterator[Fault]:
    for calls, file, error in _FAULTS:
        for nth in _NUMBERS:
            yield Fault(calls=calls, file=file, error=error, nth=nth)


def _tried(store: Path, fault: Fault) -> list[str]:
    said = _started(store, fault)
    if not said or (said.count("\n") == 1 and said.startswith("antiphon: The ")):
        return []
    return [f"when a server started, {fault}, and it said {said!r}"]


def _started(store: Path, fault: Fault | None = None) -> str:
    """Start a server, and kill it as soon as it serves. What it said if it did not."""
    traced = [] if fault is None else [*fault.arguments(store, Path("/dev/null")), "--seccomp-bpf", "-D"]
    serve = [str(Path(sys.executable).with_name("antiphon")), "serve", "--port", "0", "--engine", "fake"]
    with tempfile.TemporaryFile() as file:
        process = subprocess.Popen([*traced, *serve, "--store", str(store)], stdout=file, stderr=file)
        deadline = time.monotonic() + _SECONDS
        try:
            while process.poll() is None and time.monotonic() < deadline:
                if _SERVES in _said(file):
                    return ""
                time.sleep(0.02)
            ended = "" if process.poll() == _REFUSED else f"(exit {process.poll()}) "
            return ended + _said(file).decode(errors="replace")
        finally:
            process.kill()
            process.wait(timeout=_SECONDS)


def _said(file: IO[bytes]) -> bytes:
    return os.pread(file.fileno(), 1 << 20, 0)

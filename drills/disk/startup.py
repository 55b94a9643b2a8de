"""Disk faults while a server starts: it serves, or it reports the reason in one sentence, and damages nothing."""

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
from drills.disk.bad_disk import DatabaseFile, Fault
from drills.disk.trials import DiskTally, check_integrity
from drills.harness.findings import Findings

_CALL_NUMBERS = (1, 2, 4, 8)
_FAULTS: tuple[tuple[str, DatabaseFile, str], ...] = (
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
_TIMEOUT_SECONDS = 30.0
_ADDRESS = b"http://127.0.0.1:"
_STARTUP_FAILED = 2  # exit code of a server that cannot start


async def check_startup(step: int, tally: DiskTally, findings: Findings) -> None:
    """Start servers on new files, and on a file with the write-ahead log of a killed server."""
    with tempfile.TemporaryDirectory(prefix="antiphon-drill-") as folder:
        leftover = Path(folder) / "left.db"
        findings.add_violations(filter(None, [await asyncio.to_thread(_start_server, leftover)]))
        for number, fault in enumerate(_every_fault()):
            if number % step == 0:
                store = Path(folder) / f"{number}.db"
                if number % 2:
                    for end in ("", "-wal"):
                        shutil.copy(f"{leftover}{end}", f"{store}{end}")
                findings.add_trials()
                findings.add_violations(await asyncio.to_thread(_check_start, store, fault))
                await _check_open(store, fault, findings)
                check_integrity(store, f"during startup, {fault}", tally, findings)


async def _check_open(store: Path, fault: Fault, findings: Findings) -> None:
    """Open the store after the fault, as the next server would."""
    reopened = SqliteStore(str(store), ttl=60.0)
    try:
        await reopened.open()
    except StartupError as error:
        findings.add_violation(f"during startup, {fault}; afterwards the store cannot be opened: {error}")
    else:
        await reopened.close()


def _every_fault() -> Iterator[Fault]:
    for calls, file, error in _FAULTS:
        for nth in _CALL_NUMBERS:
            yield Fault(calls=calls, file=file, error=error, nth=nth)


def _check_start(store: Path, fault: Fault) -> list[str]:
    output = _start_server(store, fault)
    if not output or (output.count("\n") == 1 and output.startswith("antiphon: The ")):
        return []
    return [f"during startup, {fault}; the server wrote {output!r}"]


def _start_server(store: Path, fault: Fault | None = None) -> str:
    """Start a server and kill it as soon as it serves; return its output if it does not."""
    tracer = [] if fault is None else [*fault.strace_command(store, Path("/dev/null")), "--seccomp-bpf", "-D"]
    serve = [str(Path(sys.executable).with_name("antiphon")), "serve", "--port", "0", "--engine", "fake"]
    with tempfile.TemporaryFile() as file:
        process = subprocess.Popen([*tracer, *serve, "--store", str(store)], stdout=file, stderr=file)
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        try:
            while process.poll() is None and time.monotonic() < deadline:
                if _ADDRESS in _read_output(file):
                    return ""
                time.sleep(0.02)
            exit_note = "" if process.poll() == _STARTUP_FAILED else f"(exit {process.poll()}) "
            return exit_note + _read_output(file).decode(errors="replace")
        finally:
            process.kill()
            process.wait(timeout=_TIMEOUT_SECONDS)


def _read_output(file: IO[bytes]) -> bytes:
    return os.pread(file.fileno(), 1 << 20, 0)

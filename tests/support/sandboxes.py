"""Sandboxes for tests, drills and measurements."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from msgspec import Struct

from antiphon.config.areas import SandboxLevel
from antiphon.errors import SandboxUnavailable
from antiphon.sandbox.base import CodeResult, ContainerLimits, Figure, PrintedText
from antiphon.sandbox.client import CodeSandbox
from antiphon.sandbox.local import LocalSandbox, SandboxSettings
from antiphon.sandbox.relays import ServeConnection
from antiphon.sandbox.worker import frames
from antiphon.sandbox.worker_pool import WorkerPool
from tests.support.paths import ROOT

LEVELS: tuple[SandboxLevel, ...] = ("namespaces", "landlock", "gvisor")
LIMITS = ContainerLimits(memory=512 << 20, disk=32 << 20, files=500, processes=24)
WORKER_KEY = "k" * 24
PACKAGES_PYTHON = ROOT / "build/sandbox/bin/python"  # made by `make sandbox-packages`


def find_python() -> str:
    """Return an interpreter that every user of this machine can run: the one of the tests may be below /root."""
    folders = Path(os.path.realpath(sys.executable)).parents
    if all(folder.stat().st_mode & 1 for folder in folders):
        return sys.executable
    return "/usr/bin/python3"


@asynccontextmanager
async def run_sandbox(level: SandboxLevel, python: str = "", max_containers: int = 64) -> AsyncIterator[LocalSandbox]:
    """A sandbox process of its own."""
    # Many containers may end after close() has stopped waiting, on a busy machine.
    with TemporaryDirectory(prefix="sandbox-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o711)
        settings = SandboxSettings(
            folder=Path(folder), level=level, python=python or find_python(), max_containers=max_containers
        )
        sandbox = LocalSandbox(settings)
        try:
            yield sandbox
        finally:
            await sandbox.close()


@contextmanager
def keep_sandbox(level: SandboxLevel, python: str = "") -> Iterator[SandboxSettings | str]:
    """A sandbox process that outlives event loops: its settings, or why there is none."""
    with TemporaryDirectory(prefix="sandbox-") as folder, socket.socket(socket.AF_UNIX) as holder:
        os.chmod(folder, 0o711)
        sandbox = LocalSandbox(SandboxSettings(folder=Path(folder), level=level, python=python or find_python()))

        async def start() -> "subprocess.Popen[bytes]":
            await sandbox.status()
            holder.connect(str(sandbox.folder / "socket"))
            holder.sendall(frames.pack({"call": 1, "op": "stat"}))
            frames.receive(holder)  # it has been accepted: without another client the process would end
            process, sandbox.process = sandbox.process, None
            await sandbox.close()
            assert process is not None
            return process

        try:
            process = asyncio.run(start())
        except SandboxUnavailable as error:
            yield str(error)
            return
        yield sandbox.settings
        holder.close()
        process.wait(20)


class WorkerProcess(Struct, frozen=True):
    """`antiphon sandbox-worker`, on a free port."""

    process: "subprocess.Popen[str]"
    url: str
    folder: Path

    def make_pool(self, key: str = WORKER_KEY, *others: "WorkerProcess") -> WorkerPool:
        """Return what a server with a key uses, of this worker and of others."""
        return make_pool(*(one.url for one in (self, *others)), key=key)


def make_pool(*urls: str, key: str = WORKER_KEY) -> WorkerPool:
    return WorkerPool([*map(urlsplit, urls)], key)


@contextmanager
def run_worker(*flags: str, keys: Sequence[str] = (WORKER_KEY,)) -> Iterator[WorkerProcess | str]:
    """A worker and its sandbox process, or why there is none."""
    with TemporaryDirectory(prefix="worker-") as folder:
        os.chmod(folder, 0o711)
        Path(folder, "keys").write_text("\n".join(keys))
        options = (
            "--sandbox-folder",
            folder,
            "--sandbox-key-file",
            f"{folder}/keys",
            "--sandbox-python",
            find_python(),
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "antiphon", "sandbox-worker", "--listen", "127.0.0.1:0", *options, *flags],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield WorkerProcess(process, line.split()[-1], Path(folder)) if "://" in line else line
        finally:
            process.stdout.close()
            process.terminate()
            process.wait(30)


def find_processes(folder: Path) -> list[int]:
    """Return the sandbox process, its zygote, then guards and kernels: by their start, as numbers may start again."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() in (entry / "cmdline").read_bytes():
                started = int((entry / "stat").read_text().rpartition(")")[2].split()[19])
                found.append((started, int(entry.name)))
        except OSError:
            continue
    return [pid for _, pid in sorted(found)]


class RunRecord(Struct, frozen=True):
    """All events of a call."""

    stdout: str
    stderr: str
    figures: Sequence[bytes]
    result: CodeResult


async def run_code(
    sandbox: CodeSandbox, code: str, seconds: float = 20.0, container: str = "c", serve: ServeConnection | None = None
) -> RunRecord:
    events = [event async for event in sandbox.run(container, code, seconds, serve)]
    texts = {
        name: "".join(one.text for one in events if isinstance(one, PrintedText) and one.stream == name)
        for name in ("stdout", "stderr")
    }
    result = events[-1]
    assert isinstance(result, CodeResult)
    figures = [one.png for one in events if isinstance(one, Figure)]
    return RunRecord(texts["stdout"], texts["stderr"], figures, result)

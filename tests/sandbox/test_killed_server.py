"""kill -9 of a server, or of a worker, leaves no process, no mount and no file of its sandbox."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from antiphon.sandbox.base import PrintedText
from antiphon.sandbox.worker.processes import list_tree
from tests.support.sandboxes import LEVELS, LIMITS, find_processes, find_python, make_pool, run_worker

MARK = f"86399.{os.getpid()}"  # seconds that a program in a container sleeps: no other process has this argument
BUSY = f"import subprocess\nsubprocess.Popen(['sleep', '{MARK}'])\nprint('running')\nwhile True: pass"
SERVER = f"""
import asyncio, sys
from pathlib import Path
from antiphon.errors import SandboxUnavailable
from antiphon.sandbox.base import ContainerLimits
from antiphon.sandbox.local import LocalSandbox, SandboxSettings

async def serve(folder, level, python):
    sandbox = LocalSandbox(SandboxSettings(folder=Path(folder), level=level, python=python))
    try:
        await sandbox.start("idle", ContainerLimits())
        await sandbox.start("busy", ContainerLimits())
    except SandboxUnavailable as error:
        print("refused:", error, flush=True)
    async for event in sandbox.run("busy", {BUSY!r}, 600):
        print(event.text.strip(), flush=True)

asyncio.run(serve(*sys.argv[1:]))
"""


def find_marked() -> list[str]:
    """Return the processes of programs that code has started."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if MARK.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                found.append(entry.name)
        except OSError:
            continue
    return found


def list_mounts(folder: str) -> list[str]:
    """Return mounts below a folder, in the namespaces of all processes."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/mountinfo"):
        try:
            found |= {line for line in path.read_text().splitlines() if folder in line}
        except OSError:
            continue
    return sorted(found)


def await_condition(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        os.sched_yield()


def await_nothing(folder: str) -> None:
    """Wait until nothing of a sandbox remains."""
    await_condition(lambda: not find_processes(Path(folder)) and not find_marked())
    await_condition(lambda: not list_mounts(folder))  # a process has no command line any more before its mounts go
    assert [*Path(folder).glob("*/containers/*")] == []


@pytest.fixture
def folder() -> Iterator[str]:
    with TemporaryDirectory(prefix="sandbox-") as path:
        os.chmod(path, 0o711)
        yield path


@pytest.mark.parametrize("level", LEVELS)
def test_nothing_remains_of_a_server_that_is_killed(level: str, folder: str) -> None:
    command = [sys.executable, "-c", SERVER, folder, level, find_python()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        if line.startswith("refused"):
            server.kill()
            pytest.skip(f"permission: no sandbox of this level: {line}")
        assert line == "running\n"
        processes = find_processes(Path(folder))
        assert len(processes) >= 5  # the server, the sandbox process, the zygote, two kernels
        if level != "gvisor":  # whose processes are not visible as such
            await_condition(find_marked)
        tree = list_tree(processes[1])
        server.kill()
    await_nothing(folder)
    await_condition(lambda: not any(Path(f"/proc/{pid}").exists() for pid in tree))


@pytest.mark.anyio
async def test_nothing_remains_of_a_worker_that_is_killed() -> None:
    with run_worker() as worker:
        if isinstance(worker, str):
            pytest.skip(f"permission: no sandbox on this machine: {worker}")
        pool = make_pool(worker.url)
        await pool.start("busy", LIMITS)
        async with aclosing(pool.run("busy", BUSY, 600)) as events:
            assert await anext(events) == PrintedText("stdout", "running\n")
            await_condition(find_marked)
            worker.process.kill()
            worker.process.wait(30)
            await_nothing(str(worker.folder))
        await pool.close()

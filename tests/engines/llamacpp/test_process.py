"""The child process of llama.cpp: access to its socket, its restarts, and that it never outlives its parent.

Covers `engines/llamacpp/child.py`, `engines/embedded/child.py` and `engines/embedded/process.py`.
"""

import asyncio
import os
import signal
import stat
import subprocess
import sys
import time
from itertools import accumulate
from pathlib import Path

import pytest

from antiphon.engines.embedded.process import ChildProcess, ChildSupervisor, restart_delay
from antiphon.engines.llamacpp.child import LlamaCppLaunch
from antiphon.errors import StartupError

pytestmark = [pytest.mark.anyio, pytest.mark.needs("llamacpp"), pytest.mark.real_model, pytest.mark.timeout(400)]


def make_launch_spec(model: Path) -> LlamaCppLaunch:
    return LlamaCppLaunch(model=str(model), context=256, slots=1, threads=1, connections=4)


def is_alive(pid: int) -> bool:
    """Zombies do not count: a process that is not waited for stays one for a while."""
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, check=False).stdout.strip()
    return bool(found) and not found.startswith(b"Z")


def get_mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.shows("C.5")
async def test_the_socket_is_private_and_is_removed_with_the_child(model_file: Path) -> None:
    child = await ChildProcess.start(make_launch_spec(model_file), 60)
    socket = Path(child.socket)
    assert (get_mode(socket), get_mode(socket.parent)) == (0o600, 0o700)
    assert child.is_alive
    async with asyncio.timeout(30):
        await child.stop()
    assert not child.is_alive
    assert not socket.parent.exists()


async def test_an_unresponsive_child_is_killed(model_file: Path) -> None:
    child = await ChildProcess.start(make_launch_spec(model_file), 60)
    os.kill(child.pid, signal.SIGSTOP)
    async with asyncio.timeout(30):
        await child.stop()
    assert not is_alive(child.pid)


def test_a_child_dies_with_its_parent(model_file: Path) -> None:
    program = (
        "import asyncio, sys\n"
        "from antiphon.engines.llamacpp.child import LlamaCppLaunch\n"
        "from antiphon.engines.embedded.process import ChildProcess\n"
        "async def main():\n"
        "    launch = LlamaCppLaunch(model=sys.argv[1], context=256, slots=1, threads=1, connections=4)\n"
        "    child = await ChildProcess.start(launch, 60)\n"
        "    print(child.pid, flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(model_file)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()
        parent.wait(30)
    deadline = time.monotonic() + 30
    while is_alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def test_a_model_that_does_not_load_in_time_raises_an_error(model_file: Path) -> None:
    with pytest.raises(StartupError, match="did not load within 0 seconds"):
        await ChildProcess.start(make_launch_spec(model_file), 0.01)


@pytest.mark.shows("C.5")
async def test_a_child_that_dies_is_restarted(model_file: Path) -> None:
    supervisor = ChildSupervisor("small", make_launch_spec(model_file), 60)
    pids = []
    async with asyncio.timeout(60):
        for _ in range(2):
            running = await supervisor.wait_ready()
            pids.append(running.child.pid)
            os.kill(running.child.pid, signal.SIGKILL)
            assert await running.wait_lost(30)
            assert supervisor.child is None
        await supervisor.wait_ready()
        assert supervisor.starts == 3
        assert len(set(pids)) == 2
        await supervisor.stop()
    assert not supervisor.is_started
    assert not any(map(is_alive, pids))


def test_the_restart_delay_grows_until_a_child_ran_for_a_minute() -> None:
    uptimes = [1.0] * 8 + [61.0, 1.0, 1.0]
    delays = [*accumulate(uptimes, restart_delay, initial=0.0)][1:]
    assert delays == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 0.2, 0.4, 0.8]


async def test_a_model_that_never_ran_is_not_restarted_automatically(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF, or so it says")
    supervisor = ChildSupervisor("broken", make_launch_spec(broken), 60)
    for _ in range(2):  # each request tries again
        with pytest.raises(StartupError, match=r"broken\.gguf cannot be loaded"):
            await supervisor.wait_ready()
        assert not supervisor.is_started


async def test_a_missing_openmp_is_named_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in slim images: the wheel of llama.cpp has all other libraries."""
    failure = "libgomp.so.1: cannot open shared object file"
    (tmp_path / "xllamacpp.py").write_text(f"raise ImportError({failure!r})\n", "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(StartupError, match=f"{failure}: install the package libgomp1, or libgomp"):
        await ChildProcess.start(make_launch_spec(tmp_path / "any.gguf"), 60)

"""The child process: who may reach it, and that it never outlives us."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from antiphon.engines.llamacpp.child import Launch
from antiphon.engines.llamacpp.process import Child
from antiphon.engines.llamacpp.supervisor import Patience, Rests, Supervisor
from antiphon.errors import StartupError

pytestmark = [pytest.mark.anyio, pytest.mark.needs("llamacpp"), pytest.mark.real_model, pytest.mark.timeout(400)]


def launch(model: Path) -> Launch:
    return Launch(model=str(model), context=256, slots=1, threads=1, connections=4)


def alive(pid: int) -> bool:
    """Zombies are not: a process that nobody waits for stays one for a while."""
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, check=False).stdout.strip()
    return bool(found) and not found.startswith(b"Z")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.shows("C.5")
async def test_only_we_may_reach_the_socket_and_it_goes_with_the_child(model_file: Path) -> None:
    child = await Child.start(launch(model_file), 60)
    socket = Path(child.socket)
    assert (mode(socket), mode(socket.parent)) == (0o600, 0o700)
    assert child.alive
    async with asyncio.timeout(30):
        await child.stop()
    assert not child.alive
    assert not socket.parent.exists()


async def test_a_child_that_hears_nothing_is_ended_by_force(model_file: Path) -> None:
    child = await Child.start(launch(model_file), 60)
    os.kill(child.pid, signal.SIGSTOP)
    async with asyncio.timeout(30):
        await child.stop()
    assert not alive(child.pid)


def test_a_child_dies_with_its_parent(model_file: Path) -> None:
    program = (
        "import asyncio, sys\n"
        "from antiphon.engines.llamacpp.child import Launch\n"
        "from antiphon.engines.llamacpp.process import Child\n"
        "async def main():\n"
        "    launch = Launch(model=sys.argv[1], context=256, slots=1, threads=1, connections=4)\n"
        "    child = await Child.start(launch, 60)\n"
        "    print(child.pid, flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(model_file)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
        parent.wait(30)
    deadline = time.monotonic() + 30
    while alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def test_a_model_that_does_not_load_in_time_is_given_up(model_file: Path) -> None:
    with pytest.raises(StartupError, match="did not load within 0 seconds"):
        await Child.start(launch(model_file), 0.01)


@pytest.mark.shows("C.5")
async def test_a_child_that_dies_is_started_again(model_file: Path) -> None:
    supervisor = Supervisor("small", launch(model_file), Patience(load=60))
    pids = []
    async with asyncio.timeout(60):
        for _ in range(2):
            running = await supervisor.ready()
            pids.append(running.child.pid)
            os.kill(running.child.pid, signal.SIGKILL)
            assert await running.gone(30)
            assert supervisor.child is None
        await supervisor.ready()
        assert supervisor.starts == 3
        assert len(set(pids)) == 2
        await supervisor.stop()
    assert not supervisor.wanted
    assert not any(map(alive, pids))


def test_each_rest_is_longer_until_a_child_lived_for_a_minute() -> None:
    rests = Rests()
    assert [rests.after(1.0) for _ in range(8)] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    assert [rests.after(lived) for lived in (61.0, 1.0, 1.0)] == [0.2, 0.4, 0.8]


async def test_a_model_that_never_ran_is_not_tried_again_by_itself(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF, or so it says")
    supervisor = Supervisor("broken", launch(broken), Patience(load=60))
    for _ in range(2):  # but every time that it is asked for
        with pytest.raises(StartupError, match=r"broken\.gguf cannot be loaded"):
            await supervisor.ready()
        assert not supervisor.wanted

"""Measures the sandbox at each level that this host allows: container starts, calls, a first plot, an interrupt, and
the memory of idle containers; then the same server with a fake engine: calls, interrupts, and other requests while ten
containers burn CPU. Prints one table of medians.

Wall times depend on what else the machine does, so the smallest values are printed too. CPU time of an empty call is
that of the server's process alone.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from antiphon.config.areas import SandboxLevel
from antiphon.core.deltas import CallDelta, CallStarted, Text
from antiphon.core.prompt import Json
from antiphon.errors import SandboxUnavailable
from antiphon.sandbox.base import ContainerLimits, PrintedText
from antiphon.sandbox.local import LocalSandbox
from antiphon.sandbox.worker.processes import list_tree
from tests.api.app import ApiServer, run_api
from tests.api.containers.container_api import ContainerApi
from tests.support.sandboxes import LEVELS, PACKAGES_PYTHON, find_processes, find_python, run_code, run_sandbox

LIMITS = ContainerLimits()
PLOT = "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nNone"
BUSY = "open('/mnt/data/begun', 'w').close()\nwhile True: pass"
BURNING, REQUESTS, CALLS = 10, 1500, 20
_GOALS = {
    "first plot ms": 250.0, "idle container MB": 20.0, "interrupt ms": 50.0,
    "server: empty call ms": 3.0, "server: interrupt ms": 50.0, "server: p99 burning / idle": 1.2,
}  # fmt: skip
GOALS = {
    "namespaces": {"container ready ms": 40.0, **_GOALS},
    "landlock": {"container ready ms": 30.0, **_GOALS},
    "gvisor": {"container ready ms": 600.0, "interrupt ms": 50.0},
}


async def _time(action: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await action()
    return (time.perf_counter() - began) * 1000


async def _time_interrupt(sandbox: LocalSandbox) -> float:
    """Return the milliseconds from an interrupt to the end of a busy loop."""
    began = 0.0
    async for event in sandbox.run("c0", "print(1)\nwhile True: pass", 30.0):
        if isinstance(event, PrintedText) and not began:
            began = time.perf_counter()
            await sandbox.interrupt("c0")
    return (time.perf_counter() - began) * 1000


def _measure_private(sandbox: LocalSandbox) -> float:
    """Return the private memory of all processes of the sandbox except itself and its zygote, in megabytes."""
    total = 0
    for pid in list_tree(find_processes(sandbox.folder)[0])[2:]:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        total += sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean", "Private_Dirty")))
    return total / 1000


async def measure(sandbox: LocalSandbox, count: int, has_plots: bool) -> dict[str, list[float]]:
    """Return samples by name. All containers run at the same time in the end."""
    figures: dict[str, list[float]] = {"container ready ms": []}
    for number in range(count):
        figures["container ready ms"].append(await _time(partial(sandbox.start, f"c{number}", LIMITS)))
    figures["idle container MB"] = [await asyncio.to_thread(_measure_private, sandbox) / count]
    figures["empty call ms"] = [await _time(lambda: run_code(sandbox, "None", container="c0")) for _ in range(50)]
    if has_plots:
        plots = [f"c{number}" for number in range(1, min(count, 11))]
        figures["first plot ms"] = [await _time(partial(run_code, sandbox, PLOT, container=name)) for name in plots]
    figures["interrupt ms"] = [await _time_interrupt(sandbox) for _ in range(10)]
    return figures


async def measure_server(level: SandboxLevel, python: str) -> dict[str, list[float]]:
    """Return samples of a whole server, in this process."""
    with TemporaryDirectory(prefix="sandbox-") as folder:
        os.chmod(folder, 0o711)
        async with run_api(sandbox=level, sandbox_folder=Path(folder), sandbox_python=python) as server:
            api = ContainerApi(server)
            tool = {"type": "code_interpreter", "container": (await api.create())["id"]}
            figures = await _time_calls(server, tool)
            figures["server: interrupt ms"] = [await _time_cancel(api, tool) for _ in range(10)]
            return {**figures, **await _time_others(api)}


async def _time_calls(server: ApiServer, tool: Json) -> dict[str, list[float]]:
    """Return what one more call costs: responses with many calls in one turn are compared with those of one call."""
    wall, cpu = [], []
    for _ in range(10):
        elapsed = []
        for count in (1, CALLS + 1):
            deltas = [(CallStarted(n, "code_interpreter"), CallDelta(n, '{"code": "None"}')) for n in range(count)]
            server.engine.says(*[delta for pair in deltas for delta in pair])
            server.engine.says(Text("Done."))
            used, spent = time.process_time(), await _time(partial(server.create, tools=[tool]))
            elapsed.append((spent, (time.process_time() - used) * 1000))
        wall.append((elapsed[1][0] - elapsed[0][0]) / CALLS)
        cpu.append((elapsed[1][1] - elapsed[0][1]) / CALLS)
    return {"server: empty call ms": wall, "server: empty call CPU ms": cpu}


async def _time_cancel(api: ContainerApi, tool: Json) -> float:
    """Return the milliseconds from the cancellation of a response to the next call of its container."""
    sandbox, container = api.components.sandbox, str(tool["container"])
    api.server.engine.says(CallStarted(0, "code_interpreter"), CallDelta(0, json.dumps({"code": BUSY})))
    created = await api.server.create(tools=[tool], background=True)
    while "begun" not in [file.path for file in await sandbox.list_files(container)]:
        pass
    spent = await _time(partial(api.server.post, f"responses/{created['id']}/cancel"))
    spent += await _time(partial(run_code, sandbox, "import os\nos.remove('/mnt/data/begun')", container=container))
    return spent


async def _time_others(api: ContainerApi) -> dict[str, list[float]]:
    """Return the 99th percentiles of requests without code, alone and while containers burn CPU, and their ratio."""
    containers = [(await api.create())["id"] for _ in range(BURNING)]
    samples: dict[str, list[float]] = {"server: p99 idle ms": [], "server: p99 burning ms": []}
    for _ in range(3):
        samples["server: p99 idle ms"].append(await _time_percentile(api.server))
        calls = [asyncio.create_task(api.run(container, BUSY)) for container in containers]
        await asyncio.sleep(1.0)
        samples["server: p99 burning ms"].append(await _time_percentile(api.server))
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    idle, burning = samples.values()
    return {**samples, "server: p99 burning / idle": [one / other for one, other in zip(burning, idle, strict=True)]}


async def _time_percentile(server: ApiServer) -> float:
    spent = [await _time(partial(server.create, store=False)) for _ in range(REQUESTS)]
    return sorted(spent)[REQUESTS * 99 // 100]


async def run(count: int) -> int:
    python = str(PACKAGES_PYTHON) if PACKAGES_PYTHON.exists() else find_python()
    missed = 0
    for level in LEVELS:
        async with run_sandbox(level, python, max_containers=count) as sandbox:
            try:
                status = await sandbox.status()
            except SandboxUnavailable as error:
                print(f"{level}: not available: {error}")
                continue
            figures = await measure(sandbox, count, "matplotlib" in status.packages)
        figures |= await measure_server(level, python)
        print(f"{level}, {count} containers, Python {status.python}, {', '.join(status.packages) or 'no packages'}")
        for name, samples in figures.items():
            goal = GOALS[level].get(name)
            missed += goal is not None and median(samples) > goal
            print(f"  {name:26} p50 {median(samples):8.2f}  min {min(samples):8.2f}  goal {goal if goal else '–'}")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.sandbox", description=__doc__)
    parser.add_argument("--containers", type=int, default=100)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    arguments = parser.parse_args()
    missed = asyncio.run(run(arguments.containers))
    return 1 if arguments.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())

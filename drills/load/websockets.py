"""Thousands of WebSockets on which nothing happens, and clients that ask for long answers and read nothing of them:
what each costs, what others notice of it, and what is left when all have gone."""

import asyncio
import resource
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from bench.harness.process_meter import cpu_ns, rss_bytes
from bench.harness.servers import started
from drills.harness.findings import Figure, Findings, percentile
from drills.harness.process import Process, servers
from drills.harness.storage_locations import place
from drills.load.websocket_client import Asking, Idle, Leaving, Took, open_asking, open_idle, open_silent

T = TypeVar("T")

IDLE_KIB, SILENT_KIB, KERNEL_KIB, RATIO, AGAIN_MIB = 32.0, 1024.0, 256.0, 1.2, 8.0
MIB = 1024 * 1024
_NORMAL = 8  # clients that ask, read and wait a moment
_PAUSE = 0.02  # seconds
_LOOK_SECONDS = 0.2
_SETTLE_SECONDS, _STILL_SECONDS = 30.0, 30.0
_AT_ONCE = 50  # that connect at the same time
_SPARE = 200  # files that the server and this process need beside sockets
_OPEN, _RUNNING = "antiphon_websocket_connections", "antiphon_num_requests_running"
_LONG, _SHORT = "without end", "in short"
_SCRIPT = f"""
[[reply]]
when = {{ contains = "{_LONG}" }}
steps = [{{ say = " and so on", repeat = 40000 }}]

[[reply]]
steps = [{{ say = " word", repeat = 50 }}]
"""


class Crowd(Struct, frozen=True, kw_only=True):
    idle: int
    silent: int
    asked: int  # by each of those that behave
    stall_seconds: float  # after which those that do not read are hung up on


FULL = Crowd(idle=2_000, silent=200, asked=400, stall_seconds=40.0)
QUICK = Crowd(idle=500, silent=50, asked=100, stall_seconds=10.0)


async def sockets(crowd: Crowd, findings: Findings) -> None:
    allow_files(crowd.idle + crowd.silent + 3 * _NORMAL + _SPARE)
    findings.figure(Figure("empty application KiB/socket", await _empty(crowd.idle)))
    with place("sqlite") as where:
        script = where.folder / "script.toml"
        script.write_text(_SCRIPT)
        with servers(where, _config(crowd, script), marks=False) as processes:
            process, quiet = await processes.start(), await processes.start()
            await _drill(process, quiet, crowd, findings)
            await process.stop()
            await quiet.stop()
    findings.all_violated(f"a server wrote a traceback:\n{text}" for text in processes.tracebacks)


async def _drill(process: Process, quiet: Process, crowd: Crowd, findings: Findings) -> None:
    async with _normal(process):
        before = rss_bytes(process.pid)
    async with _idle(process, crowd.idle, findings) as idle:
        findings.figure(Figure("idle KiB/socket", (rss_bytes(process.pid) - before) / crowd.idle / 1024, IDLE_KIB))
        async with _silent(process, crowd, findings) as unread:
            findings.figure(Figure("unread KiB/client", unread.kib, SILENT_KIB))
            findings.figure(Figure("in the kernel KiB/client", unread.kernel_kib, KERNEL_KIB))
            async with _normal(process) as normal, _normal(quiet) as beside:
                _judge_times(*await _measured(normal, beside, crowd.asked), findings)
        findings.all_violated("an idle client was hung up on" for one in idle if one.lost)
    await _all_gone(process, findings)
    findings.figure(Figure("left MiB", (rss_bytes(process.pid) - before) / MIB))
    async with _idle(process, crowd.idle, findings), _silent(process, crowd, findings) as again:
        findings.figure(Figure("a second crowd adds MiB", (again.rss - unread.rss) / MIB, AGAIN_MIB))
    await _all_gone(process, findings)


async def _empty(count: int) -> float:
    """KiB of each."""
    with started([sys.executable, "-m", "drills.load.empty_websocket"]) as server:
        first = await open_idle(server.port)
        before = rss_bytes(server.pid)
        clients = await _together(count, lambda: open_idle(server.port))
        spent = rss_bytes(server.pid) - before
        _hang_up_on([first, *clients])
    return spent / count / 1024


@asynccontextmanager
async def _idle(process: Process, count: int, findings: Findings) -> AsyncIterator[list[Idle]]:
    clients = await _together(count, lambda: open_idle(process.client.port))
    findings.tried(count)
    try:
        yield clients
    finally:
        _hang_up_on(clients)


class Unread(Struct, frozen=True):
    kib: float  # of the server's memory, for each
    kernel_kib: float
    rss: int  # bytes, of the server with all of them


@asynccontextmanager
async def _silent(process: Process, crowd: Crowd, findings: Findings) -> AsyncIterator[Unread]:
    """Clients that have asked for more than anybody keeps for them, and are hung up on in the end."""
    before, others = rss_bytes(process.pid), await _gauge(process, _OPEN)
    silent = await _together(crowd.silent, lambda: open_silent(process.client.port, _LONG))
    findings.tried(crowd.silent)
    try:
        await _until(process, _RUNNING, crowd.silent, findings)
        await _still(process, findings)
        rss = rss_bytes(process.pid)
        yield Unread((rss - before) / crowd.silent / 1024, unsent(process.client.port) / crowd.silent / 1024, rss)
        await _until(process, _RUNNING, 0, findings, crowd.stall_seconds)
        await _until(process, _OPEN, others, findings)
    finally:
        _hang_up_on(silent)


def unsent(port: int) -> int:
    """Bytes that the kernel has taken from who listens there, and that nobody has read."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(
        int(queues.partition(":")[0], 16) for _, local, _, _, queues, *_ in lines if local.endswith(f":{port:04X}")
    )


@asynccontextmanager
async def _normal(process: Process) -> AsyncIterator[list[Asking]]:
    clients = await _together(_NORMAL, lambda: open_asking(process.client.port))
    try:
        for client in clients:
            await client.ask(_SHORT)  # to warm up
        yield clients
    finally:
        _hang_up_on(clients)


async def _measured(one: list[Asking], other: list[Asking], times: int) -> tuple[list[Took], list[Took]]:
    """Both servers in turn: whatever else the machine does, it does to both."""

    async def ask(number: int) -> list[tuple[Took, Took]]:
        took = []
        for turn in range(number, number + times):
            if turn % 2:
                took.append((await one[number].ask(_SHORT), await other[number].ask(_SHORT)))
            else:
                beside, ours = await other[number].ask(_SHORT), await one[number].ask(_SHORT)
                took.append((ours, beside))
            await asyncio.sleep(_PAUSE)
        return took

    both = [pair for asked in await asyncio.gather(*map(ask, range(len(one)))) for pair in asked]
    return [first for first, _ in both], [second for _, second in both]


def _judge_times(crowded: list[Took], quiet: list[Took], findings: Findings) -> None:
    findings.tried(len(crowded))
    for name in ("first", "whole"):
        ours, beside = (percentile([getattr(one, name) for one in took], 0.99) for took in (crowded, quiet))
        findings.figure(Figure(f"{name} p99 ms", ours * 1e3))
        findings.figure(Figure("beside a quiet server", ours / beside, RATIO))


async def _all_gone(process: Process, findings: Findings) -> None:
    await _until(process, _OPEN, 0, findings)
    await _until(process, _RUNNING, 0, findings)


async def _still(process: Process, findings: Findings) -> None:
    """Until the server has next to nothing to do: who is not read from is not worked for."""
    deadline = time.monotonic() + _STILL_SECONDS
    while time.monotonic() < deadline:
        before = cpu_ns(process.pid)
        await asyncio.sleep(_LOOK_SECONDS)
        if (cpu_ns(process.pid) - before) / 1e9 < _LOOK_SECONDS / 10:
            return
    findings.violated(f"the server was still busy after {_STILL_SECONDS:g} s with clients that do not read")


async def _until(process: Process, gauge: str, value: float, findings: Findings, later: float = 0.0) -> None:
    deadline = time.monotonic() + later + _SETTLE_SECONDS
    while (now := await _gauge(process, gauge)) != value:
        if time.monotonic() > deadline:
            findings.violated(f"{gauge} is {now:g} and was to be {value:g}")
            return
        await asyncio.sleep(_LOOK_SECONDS)


async def _gauge(process: Process, name: str) -> float:
    lines = (await process.client.get("/metrics")).body.decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


async def _together(count: int, make: Callable[[], Awaitable[T]]) -> list[T]:
    """So many, a few of them at a time."""
    places = asyncio.Semaphore(_AT_ONCE)

    async def one() -> T:
        async with places:
            return await make()

    return await asyncio.gather(*(one() for _ in range(count)))


def _hang_up_on(clients: Sequence[Leaving]) -> None:
    for client in clients:
        client.hang_up()


def _config(crowd: Crowd, script: Path) -> dict[str, object]:
    return {
        "fake_script": str(script),
        "max_websocket_connections": crowd.idle + crowd.silent + _NORMAL,
        "stall_seconds": crowd.stall_seconds,
        "log_level": "error",
    }


def allow_files(count: int) -> None:
    """As many open files as the operator lets us have; the servers that we start inherit that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        raise RuntimeError(f"this drill needs {count} open files, and the limit is {hard} (ulimit -Hn)")
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))

"""Thousands of idle WebSockets, and clients that request long answers and read none of them.

Measures the cost of each, the effect on other clients, and the memory that remains when all clients have gone.
"""

import asyncio
import resource
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from bench.harness.process_meter import cpu_ns, rss_bytes
from bench.harness.servers import run_process
from drills.harness.findings import Figure, Findings, percentile
from drills.harness.process import Process, open_servers
from drills.harness.storage_locations import open_storage
from drills.load.websocket_client import (
    Disconnectable,
    IdleClient,
    MeasuringClient,
    Timing,
    open_idle,
    open_measuring,
    open_unreading,
)

T = TypeVar("T")

MAX_IDLE_KIB, MAX_UNREAD_KIB, MAX_KERNEL_KIB, MAX_LAST_ROUND_MIB = 32.0, 1024.0, 256.0, 4.0
# Latency relative to a server without load. On two cores the server, its reference and their clients take turns, which
# the 99th percentile shows more than the crowd; work per idle socket would multiply both.
MAX_RATIOS = {0.5: 1.5, 0.99: 3.0}
MIB = 1024 * 1024
_NORMAL_CLIENTS = 8  # clients that send a request, read the answer and pause
_PAUSE_SECONDS = 0.02
_POLL_SECONDS = 0.2
_SETTLE_SECONDS, _IDLE_SECONDS = 30.0, 30.0
_FURTHER_CROWDS = 3  # bounded buffers fill until the third crowd, and a leak would grow with the fourth
_AT_ONCE = 50  # concurrent connection attempts
_SPARE_FILES = 200  # open files that the server and this process need besides sockets
_OPEN_GAUGE, _RUNNING_GAUGE = "antiphon_websocket_connections", "antiphon_num_requests_running"
_LONG, _SHORT = "without end", "in short"
_SCRIPT = f"""
[[reply]]
when = {{ contains = "{_LONG}" }}
steps = [{{ say = " and so on", repeat = 40000 }}]

[[reply]]
steps = [{{ say = " word", repeat = 50 }}]
"""


class SocketLoad(Struct, frozen=True, kw_only=True):
    idle: int
    unreading: int
    requests: int  # per normal client
    stall_seconds: float  # after which clients that do not read are disconnected


FULL = SocketLoad(idle=2_000, unreading=200, requests=400, stall_seconds=40.0)
QUICK = SocketLoad(idle=500, unreading=50, requests=100, stall_seconds=10.0)


async def sockets(load: SocketLoad, findings: Findings) -> None:
    raise_file_limit(load.idle + load.unreading + 3 * _NORMAL_CLIENTS + _SPARE_FILES)
    findings.add_figure(Figure("empty application KiB/socket", await _measure_empty_app(load.idle)))
    with open_storage("sqlite") as storage:
        script = storage.folder / "script.toml"
        script.write_text(_SCRIPT)
        with open_servers(storage, _build_config(load, script), mark_answers=False) as processes:
            process, quiet = await processes.start(), await processes.start()
            await _drill(process, quiet, load, findings)
            await process.stop()
            await quiet.stop()
    findings.add_violations(f"a server wrote a traceback:\n{text}" for text in processes.tracebacks)


async def _drill(process: Process, quiet: Process, load: SocketLoad, findings: Findings) -> None:
    async with _open_normal_clients(process):
        before = rss_bytes(process.pid)
    async with _open_idle_clients(process, load.idle, findings) as idle:
        findings.add_figure(
            Figure("idle KiB/socket", (rss_bytes(process.pid) - before) / load.idle / 1024, MAX_IDLE_KIB)
        )
        async with _open_unreading_clients(process, load, findings) as unread:
            findings.add_figure(Figure("unread KiB/client", unread.kib, MAX_UNREAD_KIB))
            findings.add_figure(Figure("in the kernel KiB/client", unread.kernel_kib, MAX_KERNEL_KIB))
            async with _open_normal_clients(process) as normal, _open_normal_clients(quiet) as reference:
                _report_latency(*await _measure_alternately(normal, reference, load.requests), findings)
        findings.add_violations("an idle client was disconnected" for one in idle if one.disconnected)
    await _wait_until_all_closed(process, findings)
    findings.add_figure(Figure("left MiB", (rss_bytes(process.pid) - before) / MIB))
    *_, previous, last = [await _open_crowd(process, load, findings) for _ in range(_FURTHER_CROWDS)]
    findings.add_figure(Figure("the last crowd adds MiB", (last - previous) / MIB, MAX_LAST_ROUND_MIB))


async def _open_crowd(process: Process, load: SocketLoad, findings: Findings) -> int:
    """Open all clients again until the server has disconnected them, and return its memory with all of them."""
    async with (
        _open_idle_clients(process, load.idle, findings),
        _open_unreading_clients(process, load, findings) as unread,
    ):
        pass
    await _wait_until_all_closed(process, findings)
    return unread.rss


async def _measure_empty_app(count: int) -> float:
    """Return the KiB per socket."""
    with run_process([sys.executable, "-m", "drills.load.empty_websocket"]) as server:
        first = await open_idle(server.port)
        before = rss_bytes(server.pid)
        clients = await _open_many(count, lambda: open_idle(server.port))
        spent = rss_bytes(server.pid) - before
        _disconnect_all([first, *clients])
    return spent / count / 1024


@asynccontextmanager
async def _open_idle_clients(process: Process, count: int, findings: Findings) -> AsyncIterator[list[IdleClient]]:
    clients = await _open_many(count, lambda: open_idle(process.client.port))
    findings.add_trials(count)
    try:
        yield clients
    finally:
        _disconnect_all(clients)


class UnreadMemory(Struct, frozen=True):
    kib: float  # server memory per client
    kernel_kib: float
    rss: int  # bytes of the server with all clients


@asynccontextmanager
async def _open_unreading_clients(
    process: Process, load: SocketLoad, findings: Findings
) -> AsyncIterator[UnreadMemory]:
    """Open clients that request more than the server buffers for them; it must disconnect them in the end."""
    before, others = rss_bytes(process.pid), await _read_gauge(process, _OPEN_GAUGE)
    clients = await _open_many(load.unreading, lambda: open_unreading(process.client.port, _LONG))
    findings.add_trials(load.unreading)
    try:
        await _wait_for_gauge(process, _RUNNING_GAUGE, load.unreading, findings)
        await _wait_until_idle(process, findings)
        rss = rss_bytes(process.pid)
        yield UnreadMemory(
            (rss - before) / load.unreading / 1024, count_unsent_bytes(process.client.port) / load.unreading / 1024, rss
        )
        await _wait_for_gauge(process, _RUNNING_GAUGE, 0, findings, load.stall_seconds)
        await _wait_for_gauge(process, _OPEN_GAUGE, others, findings)
    finally:
        _disconnect_all(clients)


def count_unsent_bytes(port: int) -> int:
    """Return the bytes in the kernel's send queues of the server on this port."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(
        int(queues.partition(":")[0], 16) for _, local, _, _, queues, *_ in lines if local.endswith(f":{port:04X}")
    )


@asynccontextmanager
async def _open_normal_clients(process: Process) -> AsyncIterator[list[MeasuringClient]]:
    clients = await _open_many(_NORMAL_CLIENTS, lambda: open_measuring(process.client.port))
    try:
        for client in clients:
            await client.request(_SHORT)  # warm up
        yield clients
    finally:
        _disconnect_all(clients)


async def _measure_alternately(
    one: list[MeasuringClient], other: list[MeasuringClient], times: int
) -> tuple[list[Timing], list[Timing]]:
    """Measure both servers alternately, so that other load on the machine affects both."""

    async def measure(number: int) -> list[tuple[Timing, Timing]]:
        pairs = []
        for turn in range(number, number + times):
            if turn % 2:
                pairs.append((await one[number].request(_SHORT), await other[number].request(_SHORT)))
            else:
                reference, ours = await other[number].request(_SHORT), await one[number].request(_SHORT)
                pairs.append((ours, reference))
            await asyncio.sleep(_PAUSE_SECONDS)
        return pairs

    both = [pair for timings in await asyncio.gather(*map(measure, range(len(one)))) for pair in timings]
    return [first for first, _ in both], [second for _, second in both]


def _report_latency(crowded: list[Timing], quiet: list[Timing], findings: Findings) -> None:
    findings.add_trials(len(crowded))
    for name, (share, max_ratio) in product(("first", "whole"), MAX_RATIOS.items()):
        ours, reference = (percentile([getattr(one, name) for one in took], share) for took in (crowded, quiet))
        findings.add_figure(Figure(f"{name} p{share * 100:.0f} ms", ours * 1e3))
        findings.add_figure(Figure(f"{name} p{share * 100:.0f} × quiet", ours / reference, max_ratio))


async def _wait_until_all_closed(process: Process, findings: Findings) -> None:
    await _wait_for_gauge(process, _OPEN_GAUGE, 0, findings)
    await _wait_for_gauge(process, _RUNNING_GAUGE, 0, findings)


async def _wait_until_idle(process: Process, findings: Findings) -> None:
    """Wait until the server is nearly idle: it must not work for clients that do not read."""
    deadline = time.monotonic() + _IDLE_SECONDS
    while time.monotonic() < deadline:
        before = cpu_ns(process.pid)
        await asyncio.sleep(_POLL_SECONDS)
        if (cpu_ns(process.pid) - before) / 1e9 < _POLL_SECONDS / 10:
            return
    findings.add_violation(f"the server was still busy after {_IDLE_SECONDS:g} s with clients that do not read")


async def _wait_for_gauge(
    process: Process, gauge: str, value: float, findings: Findings, extra_seconds: float = 0.0
) -> None:
    deadline = time.monotonic() + extra_seconds + _SETTLE_SECONDS
    while (now := await _read_gauge(process, gauge)) != value:
        if time.monotonic() > deadline:
            findings.add_violation(f"{gauge} is {now:g} instead of {value:g}")
            return
        await asyncio.sleep(_POLL_SECONDS)


async def _read_gauge(process: Process, name: str) -> float:
    lines = (await process.client.get("/metrics")).body.decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


async def _open_many(count: int, make: Callable[[], Awaitable[T]]) -> list[T]:
    """Open `count` clients, a limited number at a time."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def one() -> T:
        async with slots:
            return await make()

    return await asyncio.gather(*(one() for _ in range(count)))


def _disconnect_all(clients: Sequence[Disconnectable]) -> None:
    for client in clients:
        client.disconnect()


def _build_config(load: SocketLoad, script: Path) -> dict[str, object]:
    return {
        "fake_script": str(script),
        "max_websocket_connections": load.idle + load.unreading + _NORMAL_CLIENTS,
        "stall_seconds": load.stall_seconds,
        "keep_streams": 0.0,
        "log_level": "error",
    }


def raise_file_limit(count: int) -> None:
    """Raise the limit of open files, as far as the hard limit permits; the started servers inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        raise RuntimeError(f"this drill needs {count} open files, but the hard limit is {hard} (ulimit -Hn)")
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))

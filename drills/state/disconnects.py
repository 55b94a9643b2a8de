"""Clients that disconnect at the first event, immediately or within 50 ms, over HTTP or a WebSocket.

A foreground run ends with its client, in the engine as well; a background run continues. Every response ends. Every
abort counts: none is repeated because it was late.
"""

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable

import msgspec
from msgspec import Struct
from websockets.asyncio.client import connect

from drills.harness.findings import Figure, Findings, percentile
from drills.harness.journal import JournalAudit
from drills.harness.process import Process, open_servers
from drills.harness.runs import Run, record_stream, verify_run, wait_for_ends
from drills.harness.storage_locations import open_storage

DisconnectAction = Callable[[Process, Run], Awaitable[float]]

AT_ONCE = 20
# From the disconnect until the engine stops working. The drill, the server and other processes share two cores: with a
# load average of 8, the slowest of 1,000 aborts took 0.21 s, and the 99th percentile was 0.13 s.
CANCEL_SECONDS = 1.0
P99_SECONDS = 0.5
_WAIT_SECONDS = 5.0  # for aborts that are late, so that their delay can be reported
_POLL_SECONDS = 0.05
_LONG = "This goes on for longer than anybody stays. " * 40  # about 450 tokens
_SHORT = "Done soon."
_CONFIG = {
    "lease_seconds": 5.0,
    "fake_rate": 100.0,
    "background_slots": 64,
    "queue": 2000,
    "keep_streams": 0.0,  # otherwise runs outlive their clients for that long
    "log_level": "warning",
}


class LeavingClient(Struct, frozen=True):
    """A client that disconnects, with its run."""

    run: Run
    disconnect: DisconnectAction


async def disconnects(times: int, findings: Findings) -> None:
    with open_storage("sqlite") as storage, open_servers(storage, _CONFIG) as processes:
        process, audit = await processes.start(), JournalAudit(storage.journal)
        leavers = _make_leavers(times)
        runs = [one.run for one in leavers]
        _check_delays(await _measure_delays(process, leavers, audit, findings), findings)
        findings.add_violations(await wait_for_ends(process.client, runs))
        await _verify_ends(process, runs, findings)
        await process.stop()
    findings.add_violations(f"a server wrote a traceback:\n{text}" for text in processes.tracebacks)


def _make_leavers(times: int) -> list[LeavingClient]:
    return [
        LeavingClient(
            Run(kind="background stream", prompt=_SHORT) if number % 2 else Run(kind="foreground stream", prompt=_LONG),
            _disconnect_websocket if number % 4 == 2 else _disconnect_http,
        )
        for number in range(times)
    ]


async def _measure_delays(
    process: Process, leavers: list[LeavingClient], audit: JournalAudit, findings: Findings
) -> dict[str, float]:
    """Return how many seconds the engine worked on each foreground run after its client had disconnected."""
    slots, disconnected_at = asyncio.Semaphore(AT_ONCE), dict[str, float]()

    async def one(leaver: LeavingClient) -> None:
        async with slots:
            disconnected_at[leaver.run.nonce] = await leaver.disconnect(process, leaver.run)

    async with asyncio.TaskGroup() as clients:
        for leaver in leavers:
            clients.create_task(one(leaver))
    findings.add_trials(len(leavers))
    foreground = [each.run for each in leavers if each.run.kind == "foreground stream"]
    findings.add_violations(await _wait_for_aborts({run.nonce for run in foreground}, audit))
    worked = [run for run in foreground if run.nonce in audit.generated]
    return {run.id: audit.ended.get(run.nonce, math.inf) - disconnected_at[run.nonce] for run in worked}


async def _wait_for_aborts(nonces: set[str], audit: JournalAudit) -> list[str]:
    """Wait until the engine works on none of these runs, or for as long as a delay is worth reporting."""
    deadline = time.monotonic() + _WAIT_SECONDS
    violations = audit.check_new_lines()
    while audit.running & nonces and time.monotonic() < deadline:
        await asyncio.sleep(_POLL_SECONDS)
        violations += audit.check_new_lines()
    return violations


def _check_delays(delays: dict[str, float], findings: Findings) -> None:
    for name, seconds in delays.items():
        if seconds > CANCEL_SECONDS:
            findings.add_violation(f"the engine worked on {name} for {seconds:.3f} s after its client had disconnected")
    findings.add_figure(Figure("aborts", len(delays), minimum=1))
    findings.add_figure(Figure("abort p99 s", percentile([*delays.values()], 0.99), maximum=P99_SECONDS))
    findings.add_figure(Figure("longest s", max(delays.values(), default=0.0)))


async def _disconnect_http(process: Process, run: Run) -> float:
    """Disconnect at the first event; returns the time."""
    async with asyncio.timeout(60), process.client.open("POST", "/v1/responses", run.build_body()) as stream:
        await stream.read(max_frames=1)
        record_stream(run, stream)
        await _wait_randomly()
        stream.disconnect(random.random() < 0.5)
        return time.monotonic()


async def _disconnect_websocket(process: Process, run: Run) -> float:
    """The same on a WebSocket, with or without a close frame."""
    url = f"ws://127.0.0.1:{process.client.port}/v1/responses"
    async with asyncio.timeout(60), connect(url, compression=None) as socket:
        await socket.send(msgspec.json.encode({"type": "response.create", **run.build_body()}).decode())
        run.id = msgspec.json.decode(await socket.recv())["response"]["id"]
        await _wait_randomly()
        disconnected_at = time.monotonic()
        if random.random() < 0.5:
            socket.transport.abort()
        return disconnected_at


async def _wait_randomly() -> None:
    if random.random() < 0.5:
        await asyncio.sleep(random.uniform(0.0, 0.05))


async def _verify_ends(process: Process, runs: list[Run], findings: Findings) -> None:
    for run in runs:
        if run.ended is None:
            continue
        expected = ("completed",) if run.kind == "background stream" else ("cancelled",)
        if run.ended["status"] not in expected:
            findings.add_violation(f"{run.kind} {run.id} ended as {run.ended['status']} {run.ended['error']}")
        run.stream_complete = False
        findings.add_violations(await verify_run(process.client, run))

"""Clients that hang up at the first event, at once or within 50 ms, over HTTP or a WebSocket: a foreground run ends
with its client, and the engine with it; a background run does not care. Nothing is left that never ends."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

import msgspec
from websockets.asyncio.client import connect

from drills.findings import Figure, Findings, percentile
from drills.journal import Audit
from drills.places import place
from drills.process import Process, servers
from drills.runs import Run, look, settle, take

AT_ONCE = 20
CANCEL_SECONDS = 0.250
_LONG = "This goes on for longer than anybody stays. " * 40  # some 450 tokens
_SHORT = "Done soon."
_CONFIG = {"lease_seconds": 5.0, "fake_rate": 100.0, "background_slots": 64, "queue": 2000, "log_level": "warning"}


async def disconnects(times: int, findings: Findings) -> None:
    with place("sqlite") as where, servers(where, _CONFIG) as processes:
        process = await processes.start()
        left: dict[str, float] = {}
        runs = await _leave_all(process, times, left)
        findings.tried(len(runs))
        await asyncio.sleep(2 * CANCEL_SECONDS)
        audit = Audit(where.journal)
        findings.all_violated(audit.news())
        _judge_work(runs, left, audit, findings)
        findings.all_violated(await settle(process.client, runs))
        await _judge_ends(process, runs, findings)
        await process.stop()
    findings.all_violated(f"a server wrote a traceback:\n{text}" for text in processes.tracebacks)


async def _leave_all(process: Process, times: int, left: dict[str, float]) -> list[Run]:
    places = asyncio.Semaphore(AT_ONCE)
    runs = [
        Run(kind="background stream", said=_SHORT) if number % 2 else Run(kind="foreground stream", said=_LONG)
        for number in range(times)
    ]

    async def one(run: Run, leave: Callable[[Process, Run], Awaitable[float]]) -> None:
        async with places:
            left[run.nonce] = await leave(process, run)

    async with asyncio.TaskGroup() as clients:
        for number, run in enumerate(runs):
            clients.create_task(one(run, _leave_socket if number % 4 == 2 else _leave))
    return runs


async def _leave(process: Process, run: Run) -> float:
    """Gives the moment of leaving."""
    async with asyncio.timeout(60), process.client.open("POST", "/v1/responses", run.body()) as stream:
        await stream.read(most=1)
        take(run, stream)
        await _hesitate()
        stream.hang_up(random.random() < 0.5)
        return time.monotonic()


async def _leave_socket(process: Process, run: Run) -> float:
    """The same on a WebSocket, with a close or without a word."""
    url = f"ws://127.0.0.1:{process.client.port}/v1/responses"
    async with asyncio.timeout(60), connect(url, compression=None) as socket:
        await socket.send(msgspec.json.encode({"type": "response.create", **run.body()}).decode())
        run.id = msgspec.json.decode(await socket.recv())["response"]["id"]
        await _hesitate()
        left = time.monotonic()
        if random.random() < 0.5:
            socket.transport.abort()
        return left


async def _hesitate() -> None:
    if random.random() < 0.5:
        await asyncio.sleep(random.uniform(0.0, 0.05))


def _judge_work(runs: list[Run], left: dict[str, float], audit: Audit, findings: Findings) -> None:
    late = []
    for run in runs:
        if run.kind == "foreground stream" and run.nonce in audit.generated:
            stayed = audit.ended.get(run.nonce, float("inf")) - left[run.nonce]
            late.append(stayed)
            if stayed > CANCEL_SECONDS:
                findings.violated(f"the engine worked on {run.id} for {stayed:.3f} s after its client had left")
    findings.figure(Figure("abort p99 s", percentile(late, 0.99), most=0.1))


async def _judge_ends(process: Process, runs: list[Run], findings: Findings) -> None:
    for run in runs:
        if run.ended is None:
            continue
        expected = ("completed",) if run.kind == "background stream" else ("cancelled",)
        if run.ended["status"] not in expected:
            findings.violated(f"{run.kind} {run.id} ended {run.ended['status']} {run.ended['error']}")
        run.whole = False
        findings.all_violated(await look(process.client, run))

"""Clients that hang up at the first event, at once or within 50 ms, over HTTP or a WebSocket: a foreground run ends
with its client, and the engine with it; a background run does not care. Nothing is left that never ends."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

import msgspec
from msgspec import Struct
from websockets.asyncio.client import connect

from drills.harness.findings import Figure, Findings, percentile
from drills.harness.journal import Audit
from drills.harness.process import Process, servers
from drills.harness.runs import Run, look, settle, take
from drills.harness.storage_locations import place

Leave = Callable[[Process, Run], Awaitable[float]]

AT_ONCE = 20
CANCEL_SECONDS = 0.250
_TRIES = 4  # for those whose work went on for too long: it may be the machine that was busy
_LONG = "This goes on for longer than anybody stays. " * 40  # some 450 tokens
_SHORT = "Done soon."
_CONFIG = {"lease_seconds": 5.0, "fake_rate": 100.0, "background_slots": 64, "queue": 2000, "log_level": "warning"}


class Leaver(Struct, frozen=True):
    """A client that goes away, and what it asked for."""

    run: Run
    leave: Leave

    def again(self) -> "Leaver":
        return Leaver(Run(kind=self.run.kind, said=self.run.said), self.leave)


async def disconnects(times: int, findings: Findings) -> None:
    with place("sqlite") as where, servers(where, _CONFIG) as processes:
        process, audit = await processes.start(), Audit(where.journal)
        crowd, runs = _crowd(times), list[Run]()
        late: dict[str, float] = {}
        for _ in range(_TRIES):
            stayed = await _stayed(process, crowd, audit, findings)
            runs += [one.run for one in crowd]
            late = {name: seconds for name, seconds in stayed.items() if seconds > CANCEL_SECONDS}
            crowd = [one.again() for one in crowd if one.run.id in late]
            if not late:
                break
        for name, seconds in late.items():
            findings.violated(f"the engine worked on {name} for {seconds:.3f} s after its client had left")
        findings.all_violated(await settle(process.client, runs))
        await _judge_ends(process, runs, findings)
        await process.stop()
    findings.all_violated(f"a server wrote a traceback:\n{text}" for text in processes.tracebacks)


def _crowd(times: int) -> list[Leaver]:
    return [
        Leaver(
            Run(kind="background stream", said=_SHORT) if number % 2 else Run(kind="foreground stream", said=_LONG),
            _leave_socket if number % 4 == 2 else _leave,
        )
        for number in range(times)
    ]


async def _stayed(process: Process, crowd: list[Leaver], audit: Audit, findings: Findings) -> dict[str, float]:
    """Seconds that the engine worked on each of the foreground after its client had left."""
    places, left = asyncio.Semaphore(AT_ONCE), dict[str, float]()

    async def one(leaver: Leaver) -> None:
        async with places:
            left[leaver.run.nonce] = await leaver.leave(process, leaver.run)

    async with asyncio.TaskGroup() as clients:
        for leaver in crowd:
            clients.create_task(one(leaver))
    findings.tried(len(crowd))
    await asyncio.sleep(2 * CANCEL_SECONDS)
    findings.all_violated(audit.news())
    worked = [each.run for each in crowd if each.run.kind == "foreground stream" and each.run.nonce in audit.generated]
    stayed = {run.id: audit.ended.get(run.nonce, float("inf")) - left[run.nonce] for run in worked}
    findings.figure(Figure("abort p99 s", percentile([*stayed.values()], 0.99), most=0.1))
    return stayed


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


async def _judge_ends(process: Process, runs: list[Run], findings: Findings) -> None:
    for run in runs:
        if run.ended is None:
            continue
        expected = ("completed",) if run.kind == "background stream" else ("cancelled",)
        if run.ended["status"] not in expected:
            findings.violated(f"{run.kind} {run.id} ended {run.ended['status']} {run.ended['error']}")
        run.whole = False
        findings.all_violated(await look(process.client, run))

"""Several worker processes on one port, of which one after the other is killed, or told to stop, amid its work.

The others serve on meanwhile and take over: nothing acknowledged is lost, stuck or changed, and whoever is told to stop
cuts off no stream.
"""

import asyncio
import contextlib
import os
import random
import re
import signal
import time

from drills.harness.client import GONE, Client
from drills.harness.findings import Figure, Findings, percentile
from drills.harness.runs import Run, ask, replayed, settle
from drills.harness.storage_locations import Kind as PlaceKind
from drills.harness.storage_locations import Place, place
from tests.support.server_process import Live, serving

WORKERS = 3
LEASE = 2.5  # who is alive keeps it on a busy machine that holds up one of several for a second or more
RECOVERY_SECONDS = 10.0
_FLAGS = ("--engine", "fake", "--fake-rate", "100", "--lease-seconds", str(LEASE), "--shutdown-grace", "10")
_MIX = (("background", 8), ("background stream", 6), ("foreground stream", 6), ("foreground JSON", 2))
_WORDS = "a worker is one of several, and when it is gone another one comes and goes on with what it did " * 3
_UP = re.compile(rb"worker (\d+) is up, process (\d+)")
_SECONDS = 30.0


async def workers(kind: PlaceKind | Place, rounds: int, findings: Findings) -> None:
    with place(kind) as where:
        live = () if where.live is None else ("--live", where.live)
        flags = ("--workers", str(WORKERS), *_FLAGS, "--store", where.store, *live)
        with await asyncio.to_thread(House, flags) as house:
            drill = Workers(house, findings)
            for number in range(rounds):
                await drill.round(orderly=number % 4 == 3)
            await drill.final_look()
            if b"Traceback" in house.live.output():
                findings.violated("a worker wrote a traceback")


class House(contextlib.AbstractContextManager["House"]):
    """A parent and its workers."""

    def __init__(self, flags: tuple[str, ...]) -> None:
        self._serving = serving(*flags)
        self.live: Live = self._serving.__enter__()

    def __exit__(self, *raised: object) -> None:
        self._serving.__exit__(None, None, None)

    def now(self) -> dict[int, int]:
        """The process that has each place, by number."""
        return {int(number): int(process) for number, process in _UP.findall(self.live.output())}

    def losses(self) -> int:
        return self.live.output().count(b"and is replaced in")

    async def lost(self, before: int) -> None:
        """Until the parent has noticed one more: whom the dying one had just let in, dies with it."""
        async with asyncio.timeout(_SECONDS):
            while self.losses() == before:  # noqa: ASYNC110 - another process says it
                await asyncio.sleep(0.02)

    async def all_up(self, gone: int = 0) -> None:
        async with asyncio.timeout(_SECONDS):
            while len(now := self.now()) < WORKERS or gone in now.values():  # noqa: ASYNC110 - another process says it
                await asyncio.sleep(0.02)


class Workers:
    def __init__(self, house: House, findings: Findings) -> None:
        self._house = house
        self._findings = findings
        self._client = Client(house.live.port)
        self._runs: list[Run] = []
        self._recoveries: list[float] = []
        self._cut = 0  # streams of those that were told to stop which came to no end

    async def round(self, orderly: bool) -> None:
        await self._house.all_up()
        runs = [Run(kind=kind, said=_WORDS[: random.randrange(20, 200)]) for kind, count in _MIX for _ in range(count)]  # type: ignore[arg-type]  # the table's words are Kinds
        random.shuffle(runs)
        chosen = random.choice([*self._house.now().values()])
        async with asyncio.TaskGroup() as clients:
            for run in runs:
                clients.create_task(ask(self._client, run))
            await asyncio.sleep(random.uniform(0.05, 1.0))
            before, died = self._house.losses(), time.monotonic()
            os.kill(chosen, signal.SIGTERM if orderly else signal.SIGKILL)
            if not orderly:
                await self._house.lost(before)
        self._findings.tried()
        how = "told to stop" if orderly else "killed"
        self._findings.all_violated(f"{one} (one was {how})" for one in await settle(self._client, runs))
        if not orderly:
            self._recoveries.append(time.monotonic() - died)
        await self._judge(runs, orderly)
        await self._house.all_up(gone=chosen)

    async def _judge(self, runs: list[Run], orderly: bool) -> None:
        for run in runs:
            if run.ended is None:
                continue
            self._findings.all_violated(await self._looked_at(run))
            status, error = run.ended["status"], run.ended["error"] or {}
            restarted = status == "failed" and error.get("code") == "server_restarted"
            if status != "completed" and (orderly or not restarted or run.kind == "background"):
                self._findings.violated(f"{run.kind} {run.id} ended {status} {error}")
            if orderly and "stream" in run.kind and not run.whole:
                self._cut += 1
                self._findings.violated(f"{run.kind} {run.id} was cut off by a worker that was told to stop")
        self._runs += [run for run in runs if run.id]

    async def _looked_at(self, run: Run) -> list[str]:
        try:
            return await replayed(self._client, run)
        except GONE as error:
            return [f"{run.kind} {run.id} cannot be replayed: {error!r}"]

    async def final_look(self) -> None:
        """Everything once more, after all that came since."""
        self._findings.all_violated(await settle(self._client, self._runs))
        self._findings.figure(Figure("responses", len(self._runs)))
        self._findings.figure(Figure("streams cut off in good order", self._cut, most=0))
        self._findings.figure(Figure("recovery p99 s", percentile(self._recoveries, 0.99), most=RECOVERY_SECONDS))

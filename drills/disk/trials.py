"""One fault of a disk after the other, while clients ask and after it: what they are told, and what is left.

What was acknowledged is there afterwards, and what could not be kept was told. The file is whole, also after a kill in
the midst of it. Reading goes on, /ready says no and /health yes; within seconds of the end all is well again.
"""

import asyncio
import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import apsw
from msgspec import Struct

from drills.disk.bad_disk import Felt
from drills.disk.workload import Question, Refusal, Work, until, wrong_refusal
from drills.harness.client import GONE
from drills.harness.findings import Findings
from drills.harness.process import Process, Servers

RECOVERY_SECONDS = 5.0
_FELT_SECONDS = 3.0  # in which a fault is met; some files are not touched before it gets quiet
_RED_SECONDS = 10.0  # in which what is left of a disk is used up, too
_HANG_SECONDS = 90.0
_LONG = "x" * 40_000


class Plan(Struct, frozen=True, kw_only=True):
    """`stops`: nothing can be written while it lasts. `reads`: reading goes on meanwhile."""

    name: str
    begin: Callable[[int], AbstractAsyncContextManager[Felt]]  # for the process of this number
    stops: bool
    reads: bool = True
    kills: bool = False
    quiet: bool = False  # nobody is there who would write afterwards
    seconds: float = 0.2  # that it goes on when all was looked at


class Tally(Struct, kw_only=True):
    recoveries: list[float] = []  # seconds
    corrupt: int = 0
    lost: int = 0
    unmet: int = 0  # faults
    kills: int = 0
    responses: int = 0


class Trials:
    """On one file, and one server after the other."""

    def __init__(self, store: Path, processes: Servers, findings: Findings, tally: Tally) -> None:
        self._store = store
        self._processes = processes
        self._findings = findings
        self._tally = tally

    async def series(self, plans: Sequence[Plan]) -> None:
        process = await self._processes.start()
        for number, plan in enumerate(plans, 1):
            process = await self._trial(process, plan)
            if number % 25 == 0:
                self._findings.say(f"{number} of {len(plans)} faults")
        await process.stop()
        self._processes.gone(process)

    async def _trial(self, process: Process, plan: Plan) -> Process:
        """Gives the server that is there afterwards."""
        self._findings.tried()
        work = Work(process.client, plan.quiet)
        try:
            async with asyncio.timeout(_HANG_SECONDS):
                await work.prepare()
                await self._suffer(process, work, plan)
                if plan.kills:
                    process = await self._next(process)
                look_at(self._store, plan.name, self._tally, self._findings)
                await self._judge(process, work, plan)
                return process
        except* (Refusal, TimeoutError, *GONE) as failed:
            self._say(plan, f"{failed.exceptions!r}; the server wrote: {process.output()[-1000:]}")
        process.kill()
        self._processes.gone(process)
        return await self._processes.start()

    async def _suffer(self, process: Process, work: Work, plan: Plan) -> None:
        async with asyncio.TaskGroup() as clients:
            async with plan.begin(process.pid) as felt:
                asking = clients.create_task(work.carry_out())
                if await until(felt, _FELT_SECONDS) is None:
                    self._tally.unmet += 1
                else:
                    await self._look(process, work, plan)
                await asyncio.sleep(plan.seconds)
                if plan.quiet:
                    await asking
                if plan.kills:
                    process.kill()
            if not plan.kills:
                await self._recover(process, work, plan)

    async def _look(self, process: Process, work: Work, plan: Plan) -> None:
        """What is to be seen while it lasts."""
        client = process.client

        async def red() -> bool:
            return not await work.create(_LONG) and (await client.get("/ready")).status == 503

        if plan.stops and await until(red, _RED_SECONDS) is None:
            self._say(plan, "responses are taken, or /ready says yes, though nothing can be written")
        if (health := (await client.get("/health")).status) != 200:
            self._say(plan, f"/health is {health}")
        answer = await work.read()
        if answer.status != 200 and (plan.reads or wrong_refusal(answer)):
            self._say(plan, f"reading gives {answer.status} {answer.body[:200]!r}")

    async def _recover(self, process: Process, work: Work, plan: Plan) -> None:
        """Ready, and taking work: whichever is asked for first, the other one follows."""
        began = time.monotonic()

        async def ready() -> bool:
            return (await process.client.get("/ready")).status == 200

        questions: list[Question] = [ready, work.create] if plan.quiet else [work.create, ready]
        for question in questions:
            if await until(question, 2 * RECOVERY_SECONDS) is None:
                raise Refusal(f"it is not well {2 * RECOVERY_SECONDS:.0f} s after the end of it")
        seconds = time.monotonic() - began
        self._tally.recoveries.append(seconds)
        if seconds > RECOVERY_SECONDS:
            self._say(plan, f"it took {seconds:.1f} s to recover")

    async def _next(self, process: Process) -> Process:
        """It was killed amid the fault. What it left is looked at before anybody else touches it."""
        self._tally.kills += 1
        self._processes.gone(process)
        with tempfile.TemporaryDirectory(prefix="antiphon-left-") as folder:
            for file in (self._store, Path(f"{self._store}-wal")):
                if file.exists():
                    shutil.copy(file, folder)
            look_at(Path(folder) / self._store.name, "what a killed server left", self._tally, self._findings)
        return await self._processes.start()

    async def _judge(self, process: Process, work: Work, plan: Plan) -> None:
        wrong = await work.judge(process.client, plan.kills)
        self._tally.responses += sum(bool(run.id) for run in work.runs)
        self._tally.lost += len(wrong)
        for sentence in wrong:
            self._say(plan, sentence)

    def _say(self, plan: Plan, sentence: str) -> None:
        self._findings.violated(f"{plan.name}{', killed' if plan.kills else ''}: {sentence}")


def look_at(file: Path, name: str, tally: Tally, findings: Findings) -> None:
    """Is it whole?"""
    with contextlib.closing(apsw.Connection(str(file))) as connection:
        connection.set_busy_timeout(5000)
        try:
            said = connection.pragma("integrity_check")
        except apsw.Error as error:
            said = repr(error)
    if said != "ok":
        tally.corrupt += 1
        findings.violated(f"{name}: the file is not whole: {said}")

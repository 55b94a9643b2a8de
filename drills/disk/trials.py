"""Runs disk faults one after the other, and checks the server during and after each of them.

Acknowledged data is present afterwards, and data that could not be stored was reported as such. The file is intact,
also after a kill during the fault. During the fault reads continue, `/ready` is 503 and `/health` 200; within seconds
after it the server works again.
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

from drills.disk.bad_disk import HasEffect
from drills.disk.workload import Condition, DiskWorkload, UnexpectedRejection, check_rejection, wait_until
from drills.harness.client import DISCONNECT_ERRORS
from drills.harness.findings import Findings
from drills.harness.process import Process, Servers

RECOVERY_SECONDS = 5.0
_EFFECT_SECONDS = 3.0  # within which a fault occurs; some files are used only when the load ends
_CHECKPOINTS, _COMMITS = 8, 5  # for a fault that has not occurred by then, and commits before each checkpoint
_CHECKPOINT_SECONDS = 5.0  # after a commit; an idle server checkpoints its log after a second, a busy host delays it
_BLOCKED_SECONDS = 10.0  # includes the time to use up the free part of a disk
_HANG_SECONDS = 90.0
_LONG_TEXT = "x" * 40_000


class FaultPlan(Struct, frozen=True, kw_only=True):
    """One fault. `blocks_writes`: nothing can be written during it. `allows_reads`: reads continue during it."""

    name: str
    inject: Callable[[int], AbstractAsyncContextManager[HasEffect]]  # takes the pid of the server
    blocks_writes: bool
    allows_reads: bool = True
    must_occur: bool = False  # it is a violation if the server does not make the failing call
    kills: bool = False
    quiet: bool = False  # no request arrives after the fault
    seconds: float = 0.2  # that the fault continues after the checks


class DiskTally(Struct, kw_only=True):
    recoveries: list[float] = []  # seconds
    corrupt: int = 0
    lost: int = 0
    not_occurred: int = 0  # faults whose call was not made
    kills: int = 0
    responses: int = 0


class Trials:
    """Trials on one file, with one server after the other."""

    def __init__(self, store: Path, processes: Servers, findings: Findings, tally: DiskTally) -> None:
        self._store = store
        self._processes = processes
        self._findings = findings
        self._tally = tally

    async def run(self, plans: Sequence[FaultPlan]) -> None:
        process = await self._processes.start()
        for number, plan in enumerate(plans, 1):
            process = await self._run_trial(process, plan)
            if number % 25 == 0:
                self._findings.print_line(f"{number} of {len(plans)} faults")
        await process.stop()
        self._processes.discard(process)

    async def _run_trial(self, process: Process, plan: FaultPlan) -> Process:
        """Run one fault and return the server that runs afterwards."""
        self._findings.add_trials()
        workload = DiskWorkload(process.client, plan.quiet)
        try:
            async with asyncio.timeout(_HANG_SECONDS):
                await workload.prepare()
                await self._run_fault(process, workload, plan)
                if plan.kills:
                    process = await self._replace_killed(process)
                check_integrity(self._store, plan.name, self._tally, self._findings)
                await self._verify(process, workload, plan)
                return process
        except* (UnexpectedRejection, TimeoutError, *DISCONNECT_ERRORS) as errors:
            self._report(plan, f"{errors.exceptions!r}; the server wrote: {process.read_output()[-1000:]}")
        process.kill()
        self._processes.discard(process)
        return await self._processes.start()

    async def _run_fault(self, process: Process, workload: DiskWorkload, plan: FaultPlan) -> None:
        async with asyncio.TaskGroup() as clients:
            async with plan.inject(process.pid) as has_effect:
                load = clients.create_task(workload.run())
                if await self._wait_for_effect(has_effect, workload, plan):
                    await self._check_during_fault(process, workload, plan)
                await asyncio.sleep(plan.seconds)
                if plan.quiet:
                    await load
                if plan.kills:
                    process.kill()
            if not plan.kills:
                await self._check_recovery(process, workload, plan)

    async def _wait_for_effect(self, has_effect: HasEffect, workload: DiskWorkload, plan: FaultPlan) -> bool:
        """Return whether the fault occurs. One that must occur gets more commits and checkpoints before it is given up:
        a group commit of all requests makes few calls.
        """
        occurred = await wait_until(has_effect, _EFFECT_SECONDS) is not None
        for _ in range(_CHECKPOINTS if plan.must_occur else 0):
            if occurred:
                break
            for _ in range(_COMMITS):
                await workload.create()
            occurred = await wait_until(has_effect, _CHECKPOINT_SECONDS) is not None
        if not occurred:
            self._tally.not_occurred += 1
        if not occurred and plan.must_occur:
            self._report(plan, "the fault did not occur: the server did not make this call often enough, or at all")
        return occurred

    async def _check_during_fault(self, process: Process, workload: DiskWorkload, plan: FaultPlan) -> None:
        """Check the server during the fault."""
        client = process.client

        async def rejects_work() -> bool:
            return not await workload.create(_LONG_TEXT) and (await client.get("/ready")).status == 503

        if plan.blocks_writes and await wait_until(rejects_work, _BLOCKED_SECONDS) is None:
            self._report(plan, "responses are accepted, or /ready is not 503, although nothing can be written")
        if (health := (await client.get("/health")).status) != 200:
            self._report(plan, f"/health is {health}")
        answer = await workload.read_existing()
        if answer.status != 200 and (plan.allows_reads or check_rejection(answer)):
            self._report(plan, f"reading returns {answer.status} {answer.body[:200]!r}")

    async def _check_recovery(self, process: Process, workload: DiskWorkload, plan: FaultPlan) -> None:
        """Wait until the server is ready and accepts work, whichever is checked first."""
        started = time.monotonic()

        async def is_ready() -> bool:
            return (await process.client.get("/ready")).status == 200

        conditions: list[Condition] = [is_ready, workload.create] if plan.quiet else [workload.create, is_ready]
        for condition in conditions:
            if await wait_until(condition, 2 * RECOVERY_SECONDS) is None:
                raise UnexpectedRejection(
                    f"the server does not work {2 * RECOVERY_SECONDS:.0f} s after the end of the fault"
                )
        seconds = time.monotonic() - started
        self._tally.recoveries.append(seconds)
        if seconds > RECOVERY_SECONDS:
            self._report(plan, f"recovery took {seconds:.1f} seconds")

    async def _replace_killed(self, process: Process) -> Process:
        """Replace a server that was killed during the fault, after checking a copy of the files that it left."""
        self._tally.kills += 1
        self._processes.discard(process)
        with tempfile.TemporaryDirectory(prefix="antiphon-left-") as folder:
            for file in (self._store, Path(f"{self._store}-wal")):
                if file.exists():
                    shutil.copy(file, folder)
            check_integrity(
                Path(folder) / self._store.name, "the files of a killed server", self._tally, self._findings
            )
        return await self._processes.start()

    async def _verify(self, process: Process, workload: DiskWorkload, plan: FaultPlan) -> None:
        violations = await workload.verify(process.client, plan.kills)
        self._tally.responses += sum(bool(run.id) for run in workload.runs)
        self._tally.lost += len(violations)
        for sentence in violations:
            self._report(plan, sentence)

    def _report(self, plan: FaultPlan, sentence: str) -> None:
        self._findings.add_violation(f"{plan.name}{', killed' if plan.kills else ''}: {sentence}")


def check_integrity(file: Path, name: str, tally: DiskTally, findings: Findings) -> None:
    """Check that the database is not corrupt."""
    with contextlib.closing(apsw.Connection(str(file))) as connection:
        connection.set_busy_timeout(5000)
        try:
            result = connection.pragma("integrity_check")
        except apsw.Error as error:
            result = repr(error)
    if result != "ok":
        tally.corrupt += 1
        findings.add_violation(f"{name}: the file is corrupt: {result}")

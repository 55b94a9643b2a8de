"""Several worker processes on one port, of which one after the other is killed or shut down during its work.

The others continue to serve and take over: no acknowledged response is lost, stuck or changed, and a worker that is
shut down cuts off no stream.
"""

import asyncio
import contextlib
import os
import random
import re
import signal
import time

from drills.harness.client import DISCONNECT_ERRORS, Client
from drills.harness.findings import Figure, Findings, percentile
from drills.harness.runs import Run, execute, verify_replay, wait_for_ends
from drills.harness.storage_locations import StorageKind as PlaceKind
from drills.harness.storage_locations import StorageLocation, open_storage
from tests.support.server_process import ServerProcess, run_server

WORKERS = 3
LEASE = 2.5  # long enough for a live worker to renew it on a machine that delays a process for a second or more
RECOVERY_SECONDS = 10.0
_FLAGS = ("--engine", "fake", "--fake-rate", "100", "--lease-seconds", str(LEASE), "--shutdown-grace", "10")
_RUN_COUNTS = (("background", 8), ("background stream", 6), ("foreground stream", 6), ("foreground JSON", 2))
_SAMPLE_TEXT = "a worker is one of several, and when it is gone another one comes and goes on with what it did " * 3
_UP_LINE = re.compile(rb"worker (\d+) is up, process (\d+)")
_TIMEOUT_SECONDS = 30.0


async def workers(kind: PlaceKind | StorageLocation, rounds: int, findings: Findings) -> None:
    with open_storage(kind) as storage:
        live = () if storage.live is None else ("--live", storage.live)
        flags = ("--workers", str(WORKERS), *_FLAGS, "--store", storage.store, *live)
        with await asyncio.to_thread(WorkerCluster, flags) as cluster:
            drill = WorkersDrill(cluster, findings)
            for number in range(rounds):
                await drill.round(graceful=number % 4 == 3)
            await drill.verify_all()
            if b"Traceback" in cluster.live.read_output():
                findings.add_violation("a worker wrote a traceback")


class WorkerCluster(contextlib.AbstractContextManager["WorkerCluster"]):
    """A supervisor process with its workers."""

    def __init__(self, flags: tuple[str, ...]) -> None:
        self._serving = run_server(*flags)
        self.live: ServerProcess = self._serving.__enter__()

    def __exit__(self, *raised: object) -> None:
        self._serving.__exit__(None, None, None)

    def get_worker_pids(self) -> dict[int, int]:
        """Return the current process id of each worker, by worker number."""
        return {int(number): int(process) for number, process in _UP_LINE.findall(self.live.read_output())}

    def count_losses(self) -> int:
        return self.live.read_output().count(b"and is replaced in")

    async def wait_for_loss(self, before: int) -> None:
        """Wait until the supervisor has noticed one more loss: connections that the dying worker had just accepted die
        with it.
        """
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            while self.count_losses() == before:  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.02)

    async def wait_until_all_up(self, replaced_pid: int = 0) -> None:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            while len(pids := self.get_worker_pids()) < WORKERS or replaced_pid in pids.values():  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.02)


class WorkersDrill:
    def __init__(self, cluster: WorkerCluster, findings: Findings) -> None:
        self._cluster = cluster
        self._findings = findings
        self._client = Client(cluster.live.port)
        self._runs: list[Run] = []
        self._recoveries: list[float] = []
        self._cut = 0  # streams of gracefully stopped workers that were cut off

    async def round(self, graceful: bool) -> None:
        await self._cluster.wait_until_all_up()
        runs = [
            Run(kind=kind, prompt=_SAMPLE_TEXT[: random.randrange(20, 200)])  # type: ignore[arg-type]  # names of RunKind
            for kind, count in _RUN_COUNTS
            for _ in range(count)
        ]
        random.shuffle(runs)
        chosen_pid = random.choice([*self._cluster.get_worker_pids().values()])
        async with asyncio.TaskGroup() as clients:
            for run in runs:
                clients.create_task(execute(self._client, run))
            await asyncio.sleep(random.uniform(0.05, 1.0))
            before, died = self._cluster.count_losses(), time.monotonic()
            os.kill(chosen_pid, signal.SIGTERM if graceful else signal.SIGKILL)
            if not graceful:
                await self._cluster.wait_for_loss(before)
        self._findings.add_trials()
        how = "stopped" if graceful else "killed"
        self._findings.add_violations(f"{one} (a worker was {how})" for one in await wait_for_ends(self._client, runs))
        if not graceful:
            self._recoveries.append(time.monotonic() - died)
        await self._verify(runs, graceful)
        await self._cluster.wait_until_all_up(replaced_pid=chosen_pid)

    async def _verify(self, runs: list[Run], graceful: bool) -> None:
        for run in runs:
            if run.ended is None:
                continue
            self._findings.add_violations(await self._verify_replay(run))
            status, error = run.ended["status"], run.ended["error"] or {}
            restarted = status == "failed" and error.get("code") == "server_restarted"
            if status != "completed" and (graceful or not restarted or run.kind == "background"):
                self._findings.add_violation(f"{run.kind} {run.id} ended as {status} {error}")
            if graceful and "stream" in run.kind and not run.stream_complete:
                self._cut += 1
                self._findings.add_violation(f"{run.kind} {run.id} was cut off by a worker that was shut down")
        self._runs += [run for run in runs if run.id]

    async def _verify_replay(self, run: Run) -> list[str]:
        try:
            return await verify_replay(self._client, run)
        except DISCONNECT_ERRORS as error:
            return [f"{run.kind} {run.id} cannot be replayed: {error!r}"]

    async def verify_all(self) -> None:
        """Verify all responses again after the last round."""
        self._findings.add_violations(await wait_for_ends(self._client, self._runs))
        self._findings.add_figure(Figure("responses", len(self._runs)))
        self._findings.add_figure(Figure("streams cut off in good order", self._cut, maximum=0))
        self._findings.add_figure(
            Figure("recovery p99 s", percentile(self._recoveries, 0.99), maximum=RECOVERY_SECONDS)
        )

"""SIGKILL at random moments and at every named point, with twenty background runs and some foreground runs in flight.

Afterwards the next server is checked: no acknowledged response is lost or stuck, no end has changed, no turn was sent
to the engine again after its end was committed, and the events that clients received equal the replay.
"""

import asyncio
import random
import signal
import time
from collections.abc import Iterator, Sequence

from drills.harness import conversations
from drills.harness.findings import Figure, Findings, percentile
from drills.harness.journal import JournalAudit
from drills.harness.oracle import ENDED
from drills.harness.process import Process, Servers, open_servers
from drills.harness.runs import STUCK_SECONDS, Run, execute, verify_run, wait_for_ends
from drills.harness.storage_locations import StorageKind as PlaceKind
from drills.harness.storage_locations import StorageLocation, open_storage

LEASE = 1.0
RECOVERY_SECONDS = 10.0
_RUN_COUNTS: tuple[tuple[str, int], ...] = (
    ("background", 12),
    ("background stream", 8),
    ("foreground stream", 4),
    ("foreground JSON", 2),
)
_SAMPLE_TEXT = "a drill is a thing that is done again and again so that nobody has to think when it comes to pass " * 3
_METHODS = ("begin", "start", "append", "finish", "renew", "claim", "get", "read")
_CALL_COUNTS = {"begin": (1, 9), "start": (1, 6), "append": (1, 12), "finish": (1, 8), "renew": (1, 2), "get": (3, 20)}
_ENGINE_POINTS = (
    "engine.generate:at:1",
    "engine.first:at:1",
    "engine.first:at:9",
    "engine.token:at:60",
    "engine.last:at:1",
    "engine.last:at:7",
)
_RECOVERY_POINTS = ("store.claim:{}:1", "store.finish:{}:2", "store.start:{}:2", "store.append:{}:2", "live.fence:{}:2")
_CONVERSATION_RUNS = 6  # number of runs that share one conversation
_POINT_SECONDS = 3.0  # the process is killed anyway if the point is not reached by then


class KillPlan:
    """One round: the point at which the first server is killed and, unless it is "", the point at which its successor
    is killed.
    """

    def __init__(self, point: str = "", second_point: str = "", graceful: bool = False) -> None:
        self.point = point
        self.second_point = second_point
        self.graceful = graceful  # SIGTERM first, then killed during the shutdown


def make_plans(rounds: int) -> list[KillPlan]:
    """Return all named points, then random moments; with too few rounds, a sample of both."""
    named = [*_named_plans()]
    if rounds < len(named):
        named = random.sample(named, rounds * 2 // 3)
    return named + [KillPlan() for _ in range(rounds - len(named))]


def _named_plans() -> Iterator[KillPlan]:
    for method in _METHODS:
        for count in _CALL_COUNTS.get(method, (1,)):
            for when in ("before", "after"):
                yield KillPlan(f"store.{method}:{when}:{count}")
    for when in ("before", "after"):
        for method in ("append", "drop", "tell"):
            yield KillPlan(f"live.{method}:{when}:2")
        for point in _RECOVERY_POINTS:
            yield KillPlan("engine.token:at:90", second_point=point.format(when))
        for method in ("release", "finish"):
            yield KillPlan(f"store.{method}:{when}:2", graceful=True)
    for point in _ENGINE_POINTS:
        yield KillPlan(point)


async def kill9(kind: PlaceKind | StorageLocation, rounds: Sequence[KillPlan], findings: Findings) -> None:
    with open_storage(kind) as storage, open_servers(storage, CONFIG) as processes:
        drill = Kill9Drill(storage, processes, findings)
        process = await processes.start()
        for number, plan in enumerate(rounds, 1):
            process = await drill.round(process, plan)
            if number % 25 == 0:
                findings.print_line(f"{number} of {len(rounds)} kills")
        await drill.verify_all(process)
        await process.stop()
        findings.add_violations(f"a server wrote a traceback:\n{text}" for text in drill.get_tracebacks())


CONFIG = {
    "lease_seconds": LEASE,
    "fake_rate": 100.0,
    "background_slots": 16,
    "shutdown_grace": 0.2,
    "log_level": "warning",
}


class Kill9Drill:
    def __init__(self, storage: StorageLocation, processes: Servers, findings: Findings) -> None:
        self._audit = JournalAudit(storage.journal)
        self._processes = processes
        self._findings = findings
        self._runs: list[Run] = []
        self._conversation = ""
        self._recoveries: list[float] = []
        self._unreached: list[str] = []
        self._attempted = 0
        self._completed = 0

    async def round(self, process: Process, plan: KillPlan) -> Process:
        """Kill the server during its work and return its successor."""
        runs = [Run(kind=kind, prompt=_random_text()) for kind, count in _RUN_COUNTS for _ in range(count)]  # type: ignore[arg-type]  # the names in the table are RunKinds
        random.shuffle(runs)
        await self._work_until_killed(process, runs, plan)
        self._processes.discard(process)
        self._findings.add_trials()
        if plan.second_point:
            dying = self._processes.spawn(plan.second_point)
            if not await dying.wait_for_exit(_POINT_SECONDS):
                self._unreached.append(plan.second_point)
                dying.kill()
            self._processes.discard(dying)
        after = await self._processes.start()
        await self._verify(after, runs)
        return after

    async def _work_until_killed(self, process: Process, runs: list[Run], plan: KillPlan) -> None:
        self._conversation = await conversations.create_conversation(process.client)
        if plan.point:
            process.arm(plan.point)
        async with asyncio.TaskGroup() as clients:
            for number, run in enumerate(runs):
                fields = {"conversation": self._conversation} if number < _CONVERSATION_RUNS else {}
                clients.create_task(execute(process.client, run, **fields))
            clients.create_task(self._cancel_one(process, runs))
            await self._kill(process, plan)

    async def _kill(self, process: Process, plan: KillPlan) -> None:
        if plan.graceful:
            await asyncio.sleep(random.uniform(0.2, 0.5))
            process.send_signal(signal.SIGTERM)
        if not plan.point:
            await asyncio.sleep(random.uniform(0.0, 1.0))
        elif await process.wait_for_exit(_POINT_SECONDS):
            return
        else:
            self._unreached.append(plan.point)
        process.kill()

    async def _cancel_one(self, process: Process, runs: list[Run]) -> None:
        """Cancel one background run; if the cancellation is confirmed, it must persist."""
        await asyncio.sleep(random.uniform(0.1, 0.4))
        chosen = next((run for run in runs if run.id and "background" in run.kind), None)
        if chosen is not None:
            await cancel_run(process, chosen)

    async def _verify(self, process: Process, runs: list[Run]) -> None:
        began = time.monotonic()
        self._findings.add_violations(await wait_for_ends(process.client, runs))
        self._recoveries.append(time.monotonic() - began)
        for run in runs:
            if run.ended is not None:
                self._findings.add_violations(await verify_run(process.client, run))
                self._check_status(run)
        self._findings.add_violations(
            await conversations.verify_conversation(process.client, self._conversation, runs[:_CONVERSATION_RUNS])
        )
        self._runs += [run for run in runs if run.id]
        self._check_journal(runs)

    def _check_status(self, run: Run) -> None:
        """A run must be completed, cancelled on request, or failed because its server died."""
        assert run.ended is not None
        status, error = run.ended["status"], run.ended["error"] or {}
        if run.kind == "background" and not run.cancelled:
            self._attempted += 1
            self._completed += status == "completed"
        restarted = status == "failed" and error.get("code") == "server_restarted"
        if not (status == "completed" or restarted or (status == "cancelled" and run.cancelled)):
            self._findings.add_violation(f"{run.kind} {run.id} ended as {status} {error}")

    def _check_journal(self, runs: list[Run]) -> None:
        self._findings.add_violations(self._audit.check_new_lines())
        for run in runs:
            times = self._audit.generated.get(run.nonce, [])
            if run.terminal_at and any(at > run.terminal_at for at in times):
                self._findings.add_violation(
                    f"{run.kind} {run.id} was sent to the engine after a client had seen its end"
                )
            if "foreground" in run.kind and len(times) > 1:
                self._findings.add_violation(f"{run.kind} {run.id} was sent to the engine {len(times)} times")

    async def verify_all(self, process: Process) -> None:
        """Verify all responses again after the last kill."""
        self._findings.add_violations(await wait_for_ends(process.client, self._runs))
        self._findings.add_violations(await find_stuck_unreported(process, self._audit, {run.id for run in self._runs}))
        share = self._completed / max(1, self._attempted)
        if self._unreached:
            self._findings.print_line(f"points that were not reached before the timeout: {', '.join(self._unreached)}")
        self._findings.add_figure(Figure("responses", len(self._runs)))
        self._findings.add_figure(Figure("completed share", share, minimum=0.95))
        self._findings.add_figure(
            Figure("recovery p99 s", percentile(self._recoveries, 0.99), maximum=RECOVERY_SECONDS)
        )

    def get_tracebacks(self) -> list[str]:
        return self._processes.tracebacks


async def find_stuck_unreported(process: Process, audit: JournalAudit, reported: set[str]) -> list[str]:
    """Find stuck responses whose server died before it reported their id: each must be missing or ended."""
    deadline, pending = time.monotonic() + STUCK_SECONDS, audit.nonces.keys() - reported
    while pending and time.monotonic() < deadline:
        pending = {response_id for response_id in pending if not await _is_finished(process, response_id)}
        await asyncio.sleep(0.1)
    return [f"{response_id}, which was not reported to any client, is stuck" for response_id in pending]


async def _is_finished(process: Process, response_id: str) -> bool:
    answer = await process.client.get(f"/v1/responses/{response_id}")
    return answer.status == 404 or answer.json().get("status") in ENDED


async def cancel_run(process: Process, run: Run) -> None:
    """Send a cancellation; the end counts as seen only if the server confirms it."""
    run.cancelled = True
    try:
        answer = await process.client.post(None, f"/v1/responses/{run.id}/cancel")
    except (ConnectionError, EOFError):
        return
    if answer.status == 200:
        run.record_end(answer.body, answer.json())


def _random_text() -> str:
    return _SAMPLE_TEXT[: random.randrange(20, 200)]

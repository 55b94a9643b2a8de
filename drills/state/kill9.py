"""kill -9 at random moments and at every named point, with twenty background runs in flight and others beside them.

Afterwards, on the server that was started next: nothing acknowledged is lost, nothing is stuck, no end has changed, no
turn was given to the engine again after its end was committed, and what clients had got is what the replay gives.
"""

import asyncio
import random
import signal
import time
from collections.abc import Iterator, Sequence

from drills.harness import conversations
from drills.harness.findings import Figure, Findings, percentile
from drills.harness.journal import Audit
from drills.harness.oracle import ENDED
from drills.harness.process import Process, Servers, servers
from drills.harness.runs import STUCK_SECONDS, Run, ask, look, settle
from drills.harness.storage_locations import Kind as PlaceKind
from drills.harness.storage_locations import Place, place

LEASE = 1.0
RECOVERY_SECONDS = 10.0
_MIX: tuple[tuple[str, int], ...] = (
    ("background", 12),
    ("background stream", 8),
    ("foreground stream", 4),
    ("foreground JSON", 2),
)
_WORDS = "a drill is a thing that is done again and again so that nobody has to think when it comes to pass " * 3
_METHODS = ("begin", "start", "append", "finish", "renew", "claim", "get", "read")
_TIMES = {"begin": (1, 9), "start": (1, 6), "append": (1, 12), "finish": (1, 8), "renew": (1, 2), "get": (3, 20)}
_ENGINE = ("engine.generate:at:1", "engine.first:at:1", "engine.first:at:9", "engine.token:at:60", "engine.last:at:1",
           "engine.last:at:7")  # fmt: skip
_RECOVERY = ("store.claim:{}:1", "store.finish:{}:2", "store.start:{}:2", "store.append:{}:2", "live.fence:{}:2")
_TALKING = 6  # of them, whichever, in one conversation
_POINT_SECONDS = 3.0  # a point that is not reached by then is passed by, and the kill comes anyway


class Plan:
    """One round: where the first server dies and, if it is not "", where the one that takes over dies as well."""

    def __init__(self, point: str = "", again: str = "", orderly: bool = False) -> None:
        self.point = point
        self.again = again
        self.orderly = orderly  # SIGTERM, and killed on the way down


def plans(rounds: int) -> list[Plan]:
    """Every named point, then random moments; if that is too much, some of both."""
    named = [*_named()]
    if rounds < len(named):
        named = random.sample(named, rounds * 2 // 3)
    return named + [Plan() for _ in range(rounds - len(named))]


def _named() -> Iterator[Plan]:
    for method in _METHODS:
        for count in _TIMES.get(method, (1,)):
            for when in ("before", "after"):
                yield Plan(f"store.{method}:{when}:{count}")
    for when in ("before", "after"):
        for method in ("append", "drop", "tell"):
            yield Plan(f"live.{method}:{when}:2")
        for point in _RECOVERY:
            yield Plan("engine.token:at:90", again=point.format(when))
        for method in ("release", "finish"):
            yield Plan(f"store.{method}:{when}:2", orderly=True)
    for point in _ENGINE:
        yield Plan(point)


async def kill9(kind: PlaceKind | Place, rounds: Sequence[Plan], findings: Findings) -> None:
    with place(kind) as where, servers(where, CONFIG) as processes:
        drill = Kill9(where, processes, findings)
        process = await processes.start()
        for number, plan in enumerate(rounds, 1):
            process = await drill.round(process, plan)
            if number % 25 == 0:
                findings.say(f"{number} of {len(rounds)} kills")
        await drill.final_look(process)
        await process.stop()
        findings.all_violated(f"a server wrote a traceback:\n{text}" for text in drill.tracebacks())


CONFIG = {
    "lease_seconds": LEASE,
    "fake_rate": 100.0,
    "background_slots": 16,
    "shutdown_grace": 0.2,
    "log_level": "warning",
}


class Kill9:
    def __init__(self, where: Place, processes: Servers, findings: Findings) -> None:
        self._audit = Audit(where.journal)
        self._processes = processes
        self._findings = findings
        self._runs: list[Run] = []
        self._conversation = ""
        self._recoveries: list[float] = []
        self._unreached: list[str] = []
        self._attempted = 0
        self._completed = 0

    async def round(self, process: Process, plan: Plan) -> Process:
        """Kill this server in the middle of its work; gives the one that came after it."""
        runs = [Run(kind=kind, said=_some_words()) for kind, count in _MIX for _ in range(count)]  # type: ignore[arg-type]  # the table's words are Kinds
        random.shuffle(runs)
        await self._work_and_die(process, runs, plan)
        self._processes.gone(process)
        self._findings.tried()
        if plan.again:
            dying = self._processes.begin(plan.again)
            if not await dying.died(_POINT_SECONDS):
                self._unreached.append(plan.again)
                dying.kill()
            self._processes.gone(dying)
        after = await self._processes.start()
        await self._judge(after, runs)
        return after

    async def _work_and_die(self, process: Process, runs: list[Run], plan: Plan) -> None:
        self._conversation = await conversations.begin(process.client)
        if plan.point:
            process.arm(plan.point)
        async with asyncio.TaskGroup() as clients:
            for number, run in enumerate(runs):
                talks = {"conversation": self._conversation} if number < _TALKING else {}
                clients.create_task(ask(process.client, run, **talks))
            clients.create_task(self._cancel_one(process, runs))
            await self._kill(process, plan)

    async def _kill(self, process: Process, plan: Plan) -> None:
        if plan.orderly:
            await asyncio.sleep(random.uniform(0.2, 0.5))
            process.send(signal.SIGTERM)
        if not plan.point:
            await asyncio.sleep(random.uniform(0.0, 1.0))
        elif await process.died(_POINT_SECONDS):
            return
        else:
            self._unreached.append(plan.point)
        process.kill()

    async def _cancel_one(self, process: Process, runs: list[Run]) -> None:
        """Some are cancelled meanwhile: whoever was told so must find it so."""
        await asyncio.sleep(random.uniform(0.1, 0.4))
        chosen = next((run for run in runs if run.id and "background" in run.kind), None)
        if chosen is not None:
            await cancel(process, chosen)

    async def _judge(self, process: Process, runs: list[Run]) -> None:
        began = time.monotonic()
        self._findings.all_violated(await settle(process.client, runs))
        self._recoveries.append(time.monotonic() - began)
        for run in runs:
            if run.ended is not None:
                self._findings.all_violated(await look(process.client, run))
                self._count(run)
        self._findings.all_violated(await conversations.look(process.client, self._conversation, runs[:_TALKING]))
        self._runs += [run for run in runs if run.id]
        self._look_at_journal(runs)

    def _count(self, run: Run) -> None:
        """How it may have ended: completed, or failed because its server died."""
        assert run.ended is not None
        status, error = run.ended["status"], run.ended["error"] or {}
        if run.kind == "background" and not run.cancelled:
            self._attempted += 1
            self._completed += status == "completed"
        restarted = status == "failed" and error.get("code") == "server_restarted"
        if not (status == "completed" or restarted or (status == "cancelled" and run.cancelled)):
            self._findings.violated(f"{run.kind} {run.id} ended {status} {error}")

    def _look_at_journal(self, runs: list[Run]) -> None:
        self._findings.all_violated(self._audit.news())
        for run in runs:
            times = self._audit.generated.get(run.nonce, [])
            if run.terminal_at and any(at > run.terminal_at for at in times):
                self._findings.violated(f"{run.kind} {run.id} was given to the engine after its end was seen")
            if "foreground" in run.kind and len(times) > 1:
                self._findings.violated(f"{run.kind} {run.id} was given to the engine {len(times)} times")

    async def final_look(self, process: Process) -> None:
        """Everything once more, after all the kills that came since."""
        self._findings.all_violated(await settle(process.client, self._runs))
        self._findings.all_violated(await unheard(process, self._audit, {run.id for run in self._runs}))
        share = self._completed / max(1, self._attempted)
        if self._unreached:
            self._findings.say(f"killed elsewhere, since it never got there: {', '.join(self._unreached)}")
        self._findings.figure(Figure("responses", len(self._runs)))
        self._findings.figure(Figure("completed share", share, least=0.95))
        self._findings.figure(Figure("recovery p99 s", percentile(self._recoveries, 0.99), most=RECOVERY_SECONDS))
        if share < 0.95:
            self._findings.violated(f"only {share:.1%} of background runs without a stream were completed")

    def tracebacks(self) -> list[str]:
        return self._processes.tracebacks


async def unheard(process: Process, audit: Audit, known: set[str]) -> list[str]:
    """Those whose server died before anybody was told of them: they are not there at all, or they have ended."""
    deadline, left = time.monotonic() + STUCK_SECONDS, audit.nonces.keys() - known
    while left and time.monotonic() < deadline:
        left = {response_id for response_id in left if not await _is_over(process, response_id)}
        await asyncio.sleep(0.1)
    return [f"{response_id}, which nobody was told of, is stuck" for response_id in left]


async def _is_over(process: Process, response_id: str) -> bool:
    answer = await process.client.get(f"/v1/responses/{response_id}")
    return answer.status == 404 or answer.json().get("status") in ENDED


async def cancel(process: Process, run: Run) -> None:
    """As a client does it; if the answer comes, it counts."""
    run.cancelled = True
    try:
        answer = await process.client.post(None, f"/v1/responses/{run.id}/cancel")
    except (ConnectionError, EOFError):
        return
    if answer.status == 200:
        run.seen(answer.body, answer.json())


def _some_words() -> str:
    return _WORDS[: random.randrange(20, 200)]

"""SIGKILL in every phase of a tool loop whose tool has a side effect, and at random moments; then the next server
continues.

Where possible the moment is determined from outside, by the events of the tool's server and of the stream. Kill points
in front of the store, the live log and the engine cover the phases that only the server knows.
"""

import asyncio
import random
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

from msgspec import Struct

from drills.harness.client import DISCONNECT_ERRORS
from drills.harness.findings import Figure, Findings, percentile
from drills.harness.oracle import ENDED, Json
from drills.harness.process import Process, Servers, open_servers
from drills.harness.runs import STUCK_SECONDS, Run, RunKind, execute, wait_for_ends
from drills.harness.storage_locations import StorageKind as PlaceKind
from drills.harness.storage_locations import StorageLocation, open_storage
from drills.tool_loop.counter_server import Counter, CounterEvent, run_counter
from drills.tool_loop.responses import Scene, ToolLoopRun, follow_until, prepare, submit_output, verify_loop

LEASE = 1.0
CONFIG = {
    "lease_seconds": LEASE,
    "fake_rate": 60.0,
    "fake_delay": 0.05,
    "background_slots": 16,
    "shutdown_grace": 0.2,
    "log_level": "warning",
}
_KINDS: tuple[RunKind, ...] = (
    "background",
    "background stream",
    "background",
    "background stream",
    "foreground stream",
)
_POINT_SECONDS = 15.0  # the process is killed anyway if the point is not reached by then
_SECOND_POINT_SECONDS = 6.0
_SLOW_SECONDS = 0.4
_BEFORE_AND_AFTER = ("before", "after")


class InterruptionPoint(Struct, frozen=True, kw_only=True):
    """The moment at which the server is interrupted. Without counter event, stream event and kill point it is
    random.
    """

    name: str
    scene: Scene = "call"
    counter_event: CounterEvent | None = None  # of the counter server
    stream_event: str = ""  # type of an event in the stream
    kill_point: str = ""
    slow_phase: str = ""  # phase in which the counter server is slow
    second_kill_point: str = ""  # kill point of the server that takes over
    graceful: bool = False  # SIGTERM first, then killed during the shutdown

    @property
    def is_between_turns(self) -> bool:
        """Whether the point is between two turns, so that the next server can continue."""
        return self.counter_event in ("listing", "called", "counted") and self.slow_phase != ""


def make_points(rounds: int) -> list[InterruptionPoint]:
    """Return all named points, then random ones; with too few rounds, a sample of both."""
    named = [*_named_points()]
    if rounds < len(named):
        named = random.sample(named, rounds * 2 // 3)
    scenes: tuple[Scene, ...] = ("call", "approved", "asking", "outputs", "call", "approved")
    return named + [
        InterruptionPoint(name="random", scene=scenes[at % len(scenes)]) for at in range(rounds - len(named))
    ]


def _named_points() -> Iterator[InterruptionPoint]:
    yield InterruptionPoint(name="created", stream_event="response.created")
    yield InterruptionPoint(name="listing", counter_event="listing", slow_phase="list")
    yield InterruptionPoint(name="listed", stream_event="response.mcp_list_tools.completed")
    yield InterruptionPoint(name="during the call's arguments", stream_event="response.mcp_call_arguments.delta")
    yield InterruptionPoint(name="after the call's arguments", stream_event="response.mcp_call_arguments.done")
    yield InterruptionPoint(name="while the tool runs", counter_event="called", slow_phase="before")
    yield InterruptionPoint(name="after the effect", counter_event="counted", slow_phase="after")
    yield InterruptionPoint(name="after the tool's answer", counter_event="answered")
    yield InterruptionPoint(name="after the event of the answer", stream_event="response.mcp_call.completed")
    yield InterruptionPoint(name="the second turn", stream_event="response.output_text.delta")
    yield InterruptionPoint(name="stopped while listing", counter_event="listing", slow_phase="list", graceful=True)
    yield InterruptionPoint(
        name="stopped while the tool runs", counter_event="called", slow_phase="before", graceful=True
    )
    yield InterruptionPoint(name="stopped after the effect", counter_event="counted", slow_phase="after", graceful=True)
    yield InterruptionPoint(
        name="stopped, approved", scene="approved", counter_event="called", slow_phase="before", graceful=True
    )
    yield InterruptionPoint(
        name="stopped while waiting for an output",
        scene="outputs",
        stream_event="response.output_item.done",
        graceful=True,
    )
    yield from _process_points()
    yield from _approval_points()
    yield from _output_points()


def _process_points() -> Iterator[InterruptionPoint]:
    for when in _BEFORE_AND_AFTER:
        for number in (1, 2, 4, 7):
            yield InterruptionPoint(name=f"{when} batch {number}", kill_point=f"live.append:{when}:{number}")
        for method in ("start", "finish"):
            yield InterruptionPoint(name=f"{when} {method}", kill_point=f"store.{method}:{when}:1")
        for method in ("claim", "start"):
            second_point = f"store.{method}:{when}:1"
            yield InterruptionPoint(
                name=f"during takeover, {when} {method}",
                counter_event="counted",
                slow_phase="after",
                second_kill_point=second_point,
            )
        yield InterruptionPoint(
            name=f"during takeover, {when} a batch",
            counter_event="counted",
            slow_phase="after",
            second_kill_point=f"live.append:{when}:2",
        )
    for engine_point in ("generate:at:2", "first:at:2", "token:at:9", "last:at:1", "last:at:3"):
        yield InterruptionPoint(name=f"engine {engine_point}", kill_point=f"engine.{engine_point}")


def _approval_points() -> Iterator[InterruptionPoint]:
    events: tuple[CounterEvent, ...] = ("called", "counted", "answered")
    for event in events:
        slow_phase = {"called": "before", "counted": "after"}.get(event, "")
        yield InterruptionPoint(name=f"approved, {event}", scene="approved", counter_event=event, slow_phase=slow_phase)
        if slow_phase:
            yield InterruptionPoint(
                name=f"approved, {event}, again",
                scene="approved",
                counter_event=event,
                slow_phase=slow_phase,
                second_kill_point="live.append:after:1",
            )
    for when in _BEFORE_AND_AFTER:
        yield InterruptionPoint(
            name=f"{when} an approval is used", scene="approved", kill_point=f"store.use_approval:{when}:1"
        )
        yield InterruptionPoint(name=f"approved, {when} a batch", scene="approved", kill_point=f"live.append:{when}:2")
        yield InterruptionPoint(
            name=f"{when} an approval is requested", scene="asking", kill_point=f"store.ask_approval:{when}:1"
        )
        yield InterruptionPoint(name=f"asking, {when} its end", scene="asking", kill_point=f"store.finish:{when}:1")


def _output_points() -> Iterator[InterruptionPoint]:
    yield InterruptionPoint(name="waiting for an output", scene="outputs", stream_event="response.output_item.done")
    for when in _BEFORE_AND_AFTER:
        for method in ("expect_outputs", "submit_output", "outputs"):
            yield InterruptionPoint(name=f"{when} {method}", scene="outputs", kill_point=f"store.{method}:{when}:1")
        yield InterruptionPoint(
            name=f"output submitted, {when} a batch", scene="outputs", kill_point=f"live.append:{when}:4"
        )


async def loop(kind: PlaceKind | StorageLocation, rounds: Sequence[InterruptionPoint], findings: Findings) -> None:
    with (
        open_storage(kind) as storage,
        run_counter(storage.folder) as counter,
        open_servers(storage, CONFIG, mark_answers=False) as processes,
    ):
        drill = ToolLoopDrill(counter, processes, findings)
        process = await processes.start()
        for number, point in enumerate(rounds, 1):
            process = await drill.round(process, point)
            if number % 10 == 0:
                findings.print_line(f"{number} of {len(rounds)} kills")
        await process.stop()
        processes.discard(process)
        drill.report()


class ToolLoopDrill:
    def __init__(self, counter: Counter, processes: Servers, findings: Findings) -> None:
        self._counter = counter
        self._processes = processes
        self._findings = findings
        self._recoveries: list[float] = []
        self._unreached: list[str] = []
        self._target: ToolLoopRun | None = None
        self._acknowledged: list[ToolLoopRun] = []

    async def round(self, process: Process, point: InterruptionPoint) -> Process:
        await warm_up(process, self._counter)
        loops = [make_loop(kind, point, self._counter) for kind in _KINDS]
        await asyncio.gather(*(prepare(process.client, one) for one in loops))
        await self._work_until_killed(process, loops, point)
        self._processes.discard(process)
        if point.second_kill_point:
            dying = self._processes.spawn(point.second_kill_point)
            if not await dying.wait_for_exit(_SECOND_POINT_SECONDS):
                self._unreached.append(f"{point.name} ({point.second_kill_point})")
                dying.kill()
            self._processes.discard(dying)
        after = await self._processes.start()
        await self._verify(after, loops, point)
        self._findings.add_trials()
        return after

    async def _work_until_killed(self, process: Process, loops: list[ToolLoopRun], point: InterruptionPoint) -> None:
        if point.kill_point:
            process.arm(point.kill_point)
        async with asyncio.TaskGroup() as group:
            clients = [group.create_task(execute(process.client, one, **one.build_fields())) for one in loops]
            clients += [
                group.create_task(_submit_unless_held(process, one, hold=point.stream_event != ""))
                for one in loops
                if one.scene == "outputs"
            ]
            if not await self._wait_for_point(process, loops, point, clients):
                self._unreached.append(point.name)
            if point.graceful:
                process.send_signal(signal.SIGTERM)
                await process.wait_for_exit(random.choice((0.1, 0.3, 3.0)))
            if process.is_running:
                process.kill()

    async def _wait_for_point(
        self, process: Process, loops: list[ToolLoopRun], point: InterruptionPoint, clients: list["asyncio.Task[None]"]
    ) -> bool:
        target = self._target = loops[random.randrange(2)]  # one with a stream or one without
        if point.counter_event is not None:
            return await self._counter.wait_for_event(point.counter_event, target.nonce, _POINT_SECONDS)
        if point.stream_event:
            return (
                await follow_until(
                    process.client, target, lambda one: one["type"] == point.stream_event, _POINT_SECONDS
                )
                is not None
            )
        if not point.kill_point:
            await asyncio.sleep(random.uniform(0.0, 1.2))
            return True
        await asyncio.wait(clients, timeout=_POINT_SECONDS)  # they end with the server at the latest
        return await process.wait_for_exit(0.5)

    async def _verify(self, process: Process, loops: list[ToolLoopRun], point: InterruptionPoint) -> None:
        """Wait for the end of all runs, with clients that submit the outputs, and verify each of them."""
        began = time.monotonic()
        outputs = [one for one in loops if one.scene == "outputs" and one.id]
        violations, *rejections = await asyncio.gather(
            wait_for_ends(process.client, [*loops]), *(submit_until_ended(process, one) for one in outputs)
        )
        self._findings.add_violations(
            f"{point.name}: {sentence}" for sentence in [*violations, *filter(None, rejections)]
        )
        self._recoveries.append(time.monotonic() - began)
        for one in loops:
            if one.ended is not None:
                violations = await verify_loop(process.client, one, self._counter)
                self._findings.add_violations(f"{point.name}: {sentence}" for sentence in violations)
        if (
            point.is_between_turns
            and self._target is not None
            and (ended := self._target.ended)
            and ended["status"] != "completed"
            and not _has_begun_to_answer(ended)
        ):
            self._findings.add_violation(
                f"{point.name}: it was interrupted between two turns and was not resumed: {ended}"
            )
        self._acknowledged += [one for one in loops if one.id]

    def report(self) -> None:
        findings = self._findings
        findings.add_violations(f"a server wrote a traceback:\n{text}" for text in self._processes.tracebacks)
        if self._unreached:
            findings.print_line(f"points that were not reached before the timeout: {', '.join(self._unreached)}")
        add_loop_figures(findings, self._acknowledged, self._counter)
        findings.add_figure(Figure("recovery p99 s", percentile(self._recoveries, 0.99), maximum=10.0))


def _has_begun_to_answer(ended: Json) -> bool:
    """Whether the model had begun the next turn: kill points count the calls of all responses, so on a busy machine
    the kill may come later for this one.
    """
    return bool(ended["output"]) and ended["output"][-1]["type"] == "message"


def add_loop_figures(findings: Findings, loops: Sequence[ToolLoopRun], counter: Counter) -> None:
    background = [one for one in loops if one.kind != "foreground stream" and one.ended is not None]
    effects = [counter.count_events("counted", one.nonce) for one in loops]
    findings.add_figure(Figure("responses", len(loops)))
    findings.add_figure(Figure("effects", sum(effects)))
    findings.add_figure(Figure("repeated", sum(number > 1 for number in effects), maximum=0))
    findings.add_figure(Figure("background", len(background)))
    findings.add_figure(Figure("of these completed", sum(_status(one) == "completed" for one in background)))
    findings.add_figure(Figure("failed in the middle of a turn", sum(_status(one) == "failed" for one in background)))


def _status(one: Run) -> str:
    return str((one.ended or {}).get("status"))


def make_loop(kind: RunKind, point: InterruptionPoint, counter: Counter) -> ToolLoopRun:
    loop_run = ToolLoopRun(kind=kind, prompt="count", scene=point.scene, url="")
    loop_run.url = counter.url(loop_run.nonce, **({point.slow_phase: _SLOW_SECONDS} if point.slow_phase else {}))
    return loop_run


async def warm_up(process: Process, counter: Counter) -> None:
    """Run one call in advance: the code loaded by the first call takes time that would shift the points."""
    loop_run = ToolLoopRun(kind="foreground JSON", prompt="", scene="call", url=counter.url("warm"))
    await process.client.post(
        {"model": "fake", "input": "warm up", "store": False, "tools": [loop_run.build_tool("never")]}
    )


async def _submit_unless_held(process: Process, one: ToolLoopRun, hold: bool) -> None:
    """Submit the output as the client does, unless the server is to be killed while it waits."""
    if not hold:
        await submit_output(process.client, one)


async def submit_until_ended(process: Process, one: ToolLoopRun) -> str:
    """Submit the output until the response has ended, since one that was sent to a dying server may be lost."""
    with suppress(TimeoutError, *DISCONNECT_ERRORS):
        async with asyncio.timeout(STUCK_SECONDS):
            while True:
                if violation := await submit_output(process.client, one):
                    return violation
                answer = await process.client.get(f"/v1/responses/{one.id}")
                if answer.status != 200 or answer.json()["status"] in ENDED:
                    return ""
                await asyncio.sleep(0.2)
    return ""

"""kill -9 in every phase of a loop whose tool has an effect, and at random moments; then the next server goes on.

Where to kill is known from outside, as far as it can be: from what the tool's own server sees and what is streamed. For
what only the server knows, there are the traps before its store, its live log and its engine.
"""

import asyncio
import random
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

from msgspec import Struct

from drills.harness.client import GONE
from drills.harness.findings import Figure, Findings, percentile
from drills.harness.oracle import ENDED
from drills.harness.process import Process, Servers, servers
from drills.harness.runs import STUCK_SECONDS, Kind, Run, ask, settle
from drills.harness.storage_locations import Kind as PlaceKind
from drills.harness.storage_locations import Place, place
from drills.tool_loop.counter_server import Counter, What, counting
from drills.tool_loop.responses import Loop, Scene, follow, give, look, prepare

LEASE = 1.0
CONFIG = {
    "lease_seconds": LEASE,
    "fake_rate": 60.0,
    "fake_delay": 0.05,
    "background_slots": 16,
    "shutdown_grace": 0.2,
    "log_level": "warning",
}
_KINDS: tuple[Kind, ...] = ("background", "background stream", "background", "background stream", "foreground stream")
_POINT_SECONDS = 15.0  # a point that is not reached by then is passed by, and the kill comes anyway
_AGAIN_SECONDS = 6.0
_SLOW = 0.4
_AROUND = ("before", "after")


class Point(Struct, frozen=True, kw_only=True):
    """Where the server dies. With none of the three it is any moment."""

    name: str
    scene: Scene = "call"
    seen: What | None = None  # by the counter
    told: str = ""  # the type of an event
    trap: str = ""
    slow: str = ""  # what the counter takes its time for
    again: str = ""  # where the server that takes over dies as well
    orderly: bool = False  # SIGTERM, and killed on the way down

    @property
    def between(self) -> bool:
        """Is it between two turns, so that the next server can go on?"""
        return self.seen in ("listing", "called", "counted") and self.slow != ""


def points(rounds: int) -> list[Point]:
    """Every named one, then random moments; if that is too much, some of both."""
    named = [*_named()]
    if rounds < len(named):
        named = random.sample(named, rounds * 2 // 3)
    scenes: tuple[Scene, ...] = ("call", "approved", "asking", "outputs", "call", "approved")
    return named + [Point(name="random", scene=scenes[at % len(scenes)]) for at in range(rounds - len(named))]


def _named() -> Iterator[Point]:
    yield Point(name="created", told="response.created")
    yield Point(name="listing", seen="listing", slow="list")
    yield Point(name="listed", told="response.mcp_list_tools.completed")
    yield Point(name="the model speaks its call", told="response.mcp_call_arguments.delta")
    yield Point(name="the turn is over", told="response.mcp_call_arguments.done")
    yield Point(name="the tool runs", seen="called", slow="before")
    yield Point(name="its effect is had", seen="counted", slow="after")
    yield Point(name="it has answered", seen="answered")
    yield Point(name="its answer is told", told="response.mcp_call.completed")
    yield Point(name="the second turn", told="response.output_text.delta")
    yield Point(name="stopped while listing", seen="listing", slow="list", orderly=True)
    yield Point(name="stopped while the tool runs", seen="called", slow="before", orderly=True)
    yield Point(name="stopped after its effect", seen="counted", slow="after", orderly=True)
    yield Point(name="stopped, approved", scene="approved", seen="called", slow="before", orderly=True)
    yield Point(name="stopped while it waits", scene="outputs", told="response.output_item.done", orderly=True)
    yield from _trapped()
    yield from _approved()
    yield from _waiting()


def _trapped() -> Iterator[Point]:
    for when in _AROUND:
        for number in (1, 2, 4, 7):
            yield Point(name=f"{when} batch {number}", trap=f"live.append:{when}:{number}")
        for method in ("start", "finish"):
            yield Point(name=f"{when} {method}", trap=f"store.{method}:{when}:1")
        for method in ("claim", "start"):
            again = f"store.{method}:{when}:1"
            yield Point(name=f"taken over, {when} {method}", seen="counted", slow="after", again=again)
        yield Point(name=f"taken over, {when} a batch", seen="counted", slow="after", again=f"live.append:{when}:2")
    for trap in ("generate:at:2", "first:at:2", "token:at:9", "last:at:1", "last:at:3"):
        yield Point(name=f"engine {trap}", trap=f"engine.{trap}")


def _approved() -> Iterator[Point]:
    whats: tuple[What, ...] = ("called", "counted", "answered")
    for what in whats:
        slow = {"called": "before", "counted": "after"}.get(what, "")
        yield Point(name=f"approved, {what}", scene="approved", seen=what, slow=slow)
        if slow:
            yield Point(name=f"approved, {what}, again", scene="approved", seen=what, slow=slow,
                        again="live.append:after:1")  # fmt: skip
    for when in _AROUND:
        yield Point(name=f"{when} an approval is used", scene="approved", trap=f"store.use_approval:{when}:1")
        yield Point(name=f"approved, {when} a batch", scene="approved", trap=f"live.append:{when}:2")
        yield Point(name=f"{when} it is asked", scene="asking", trap=f"store.ask_approval:{when}:1")
        yield Point(name=f"asking, {when} its end", scene="asking", trap=f"store.finish:{when}:1")


def _waiting() -> Iterator[Point]:
    yield Point(name="it waits", scene="outputs", told="response.output_item.done")
    for when in _AROUND:
        for method in ("expect_outputs", "submit_output", "outputs"):
            yield Point(name=f"{when} {method}", scene="outputs", trap=f"store.{method}:{when}:1")
        yield Point(name=f"given, {when} a batch", scene="outputs", trap=f"live.append:{when}:4")


async def loop(kind: PlaceKind | Place, rounds: Sequence[Point], findings: Findings) -> None:
    with place(kind) as where, counting(where.folder) as counter, servers(where, CONFIG, marks=False) as processes:
        drill = Drill(counter, processes, findings)
        process = await processes.start()
        for number, point in enumerate(rounds, 1):
            process = await drill.round(process, point)
            if number % 10 == 0:
                findings.say(f"{number} of {len(rounds)} kills")
        await process.stop()
        processes.gone(process)
        drill.sum_up()


class Drill:
    def __init__(self, counter: Counter, processes: Servers, findings: Findings) -> None:
        self._counter = counter
        self._processes = processes
        self._findings = findings
        self._recoveries: list[float] = []
        self._unreached: list[str] = []
        self._aim: Loop | None = None
        self._all: list[Loop] = []

    async def round(self, process: Process, point: Point) -> Process:
        await warm(process, self._counter)
        loops = [made(kind, point, self._counter) for kind in _KINDS]
        await asyncio.gather(*(prepare(process.client, one) for one in loops))
        await self._work_and_die(process, loops, point)
        self._processes.gone(process)
        if point.again:
            dying = self._processes.begin(point.again)
            if not await dying.died(_AGAIN_SECONDS):
                self._unreached.append(f"{point.name} ({point.again})")
                dying.kill()
            self._processes.gone(dying)
        after = await self._processes.start()
        await self._judge(after, loops, point)
        self._findings.tried()
        return after

    async def _work_and_die(self, process: Process, loops: list[Loop], point: Point) -> None:
        if point.trap:
            process.arm(point.trap)
        async with asyncio.TaskGroup() as group:
            clients = [group.create_task(ask(process.client, one, **one.wishes())) for one in loops]
            clients += [
                group.create_task(_answer(process, one, hold=point.told != ""))
                for one in loops
                if one.scene == "outputs"
            ]
            if not await self._reached(process, loops, point, clients):
                self._unreached.append(point.name)
            if point.orderly:
                process.send(signal.SIGTERM)
                await process.died(random.choice((0.1, 0.3, 3.0)))
            if process.running:
                process.kill()

    async def _reached(
        self, process: Process, loops: list[Loop], point: Point, clients: list["asyncio.Task[None]"]
    ) -> bool:
        aim = self._aim = loops[random.randrange(2)]  # one with a stream, or one without
        if point.seen is not None:
            return await self._counter.until(point.seen, aim.nonce, _POINT_SECONDS)
        if point.told:
            return await follow(process.client, aim, lambda one: one["type"] == point.told, _POINT_SECONDS) is not None
        if not point.trap:
            await asyncio.sleep(random.uniform(0.0, 1.2))
            return True
        await asyncio.wait(clients, timeout=_POINT_SECONDS)  # they end when the server does, if not before
        return await process.died(0.5)

    async def _judge(self, process: Process, loops: list[Loop], point: Point) -> None:
        """Once more from the beginning of each, with a client that does its part."""
        began = time.monotonic()
        outputs = [one for one in loops if one.scene == "outputs" and one.id]
        wrong, *refused = await asyncio.gather(
            settle(process.client, [*loops]), *(give_until_over(process, one) for one in outputs)
        )
        self._findings.all_violated(f"{point.name}: {sentence}" for sentence in [*wrong, *filter(None, refused)])
        self._recoveries.append(time.monotonic() - began)
        for one in loops:
            if one.ended is not None:
                wrong = await look(process.client, one, self._counter)
                self._findings.all_violated(f"{point.name}: {sentence}" for sentence in wrong)
        if point.between and self._aim is not None and (ended := self._aim.ended) and ended["status"] != "completed":
            self._findings.violated(f"{point.name}: it stopped between two turns, and was not gone on with: {ended}")
        self._all += [one for one in loops if one.id]

    def sum_up(self) -> None:
        findings = self._findings
        findings.all_violated(f"a server wrote a traceback:\n{text}" for text in self._processes.tracebacks)
        if self._unreached:
            findings.say(f"killed elsewhere, since it never got there: {', '.join(self._unreached)}")
        tell_figures(findings, self._all, self._counter)
        findings.figure(Figure("recovery p99 s", percentile(self._recoveries, 0.99), most=10.0))


def tell_figures(findings: Findings, loops: Sequence[Loop], counter: Counter) -> None:
    background = [one for one in loops if one.kind != "foreground stream" and one.ended is not None]
    effects = [counter.times("counted", one.nonce) for one in loops]
    findings.figure(Figure("responses", len(loops)))
    findings.figure(Figure("effects", sum(effects)))
    findings.figure(Figure("repeated", sum(number > 1 for number in effects), most=0))
    findings.figure(Figure("background", len(background)))
    findings.figure(Figure("of these completed", sum(_status(one) == "completed" for one in background)))
    findings.figure(Figure("failed in the middle of a turn", sum(_status(one) == "failed" for one in background)))


def _status(one: Run) -> str:
    return str((one.ended or {}).get("status"))


def made(kind: Kind, point: Point, counter: Counter) -> Loop:
    one = Loop(kind=kind, said="count", scene=point.scene, url="")
    one.url = counter.url(one.nonce, **({point.slow: _SLOW} if point.slow else {}))
    return one


async def warm(process: Process, counter: Counter) -> None:
    """What is loaded with the first call takes its time, and is not what is drilled."""
    one = Loop(kind="foreground JSON", said="", scene="call", url=counter.url("warm"))
    await process.client.post({"model": "fake", "input": "warm up", "store": False, "tools": [one.tool("never")]})


async def _answer(process: Process, one: Loop, hold: bool) -> None:
    """As its client does, unless the server is to die while it waits."""
    if not hold:
        await give(process.client, one)


async def give_until_over(process: Process, one: Loop) -> str:
    """An output that was sent to a dying server may have got lost: it is sent once more."""
    with suppress(TimeoutError, *GONE):
        async with asyncio.timeout(STUCK_SECONDS):
            while True:
                if wrong := await give(process.client, one):
                    return wrong
                answer = await process.client.get(f"/v1/responses/{one.id}")
                if answer.status != 200 or answer.json()["status"] in ENDED:
                    return ""
                await asyncio.sleep(0.2)
    return ""

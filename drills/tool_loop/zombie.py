"""A server that is stopped in the middle of a loop, for longer than its lease, while another takes the loop over; then
it goes on as if nothing had happened. No effect is had twice, and no end changes."""

import asyncio
import random
import signal
from collections.abc import Iterator, Sequence

from drills.harness.findings import Findings
from drills.harness.process import Process, servers
from drills.harness.runs import Kind, ask, settle
from drills.harness.storage_locations import Kind as PlaceKind
from drills.harness.storage_locations import Place, place
from drills.tool_loop.counter_server import Counter, What, counting
from drills.tool_loop.kill9 import CONFIG, LEASE, Point, give_until_over, made, tell_figures, warm
from drills.tool_loop.responses import Loop, Scene, look, prepare

_KINDS: tuple[Kind, ...] = ("background", "background stream", "background", "background stream", "foreground stream")
_SECONDS = 15.0


def moments(rounds: int) -> list[Point]:
    """Over and over, and some at random."""
    named = [*_named()]
    return [named[at % len(named)] if at % (len(named) + 2) < len(named) else _random(at) for at in range(rounds)]


def _named() -> Iterator[Point]:
    whats: tuple[What, ...] = ("called", "counted", "listing", "answered", "listed")
    slows = {"called": "before", "counted": "after", "listing": "list"}
    for what in whats:
        yield Point(name=what, seen=what, slow=slows.get(what, ""))
        if what in ("called", "counted", "answered"):
            yield Point(name=f"approved, {what}", scene="approved", seen=what, slow=slows.get(what, ""))


def _random(at: int) -> Point:
    scenes: tuple[Scene, ...] = ("outputs", "approved", "asking", "call")
    return Point(name="random", scene=scenes[at % len(scenes)])


async def loop_zombie(kind: PlaceKind | Place, rounds: Sequence[Point], findings: Findings) -> None:
    with place(kind) as where, counting(where.folder) as counter, servers(where, CONFIG, marks=False) as processes:
        first, second = await asyncio.gather(processes.start(), processes.start())
        await asyncio.gather(warm(first, counter), warm(second, counter))
        everything: list[Loop] = []
        for number, point in enumerate(rounds):
            owner, heir = (first, second) if number % 2 else (second, first)
            loops = [made(each, point, counter) for each in _KINDS]
            await asyncio.gather(*(prepare(owner.client, one) for one in loops))
            await _pass_on((owner, heir), loops, point, counter)
            await _judge((owner, heir), loops, counter, findings)
            everything += [one for one in loops if one.id]
            findings.tried()
        for process in (first, second):
            await process.stop()
            processes.gone(process)
        findings.all_violated(f"a server wrote a traceback:\n{text}" for text in processes.tracebacks)
        tell_figures(findings, everything, counter)


async def _pass_on(pair: tuple[Process, Process], loops: list[Loop], point: Point, counter: Counter) -> None:
    owner, heir = pair
    async with asyncio.TaskGroup() as clients:
        for one in loops:
            clients.create_task(ask(owner.client, one, **one.wishes()))
            if one.scene == "outputs":
                clients.create_task(give_until_over(heir, one))
        if point.seen is not None:
            await counter.until(point.seen, loops[random.randrange(4)].nonce, _SECONDS)
        else:
            await asyncio.sleep(random.uniform(0.05, 0.8))
        await owner.pause()
        for one in loops:
            one.orphaned = one.terminal is None and not one.whole
        try:
            if random.random() < 0.5:
                await settle(heir.client, [one for one in loops if one.id])
            else:  # while the other is still at it
                await asyncio.sleep(random.uniform(LEASE, 2 * LEASE))
        finally:
            owner.send(signal.SIGCONT)


async def _judge(pair: tuple[Process, Process], loops: list[Loop], counter: Counter, findings: Findings) -> None:
    owner, heir = pair
    for process in (heir, owner):
        findings.all_violated(await settle(process.client, [*loops]))
    for one in loops:
        if one.ended is not None:
            findings.all_violated(await look(random.choice(pair).client, one, counter))

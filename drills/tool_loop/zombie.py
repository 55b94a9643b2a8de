"""A server that is paused during a tool loop for longer than its lease while another one takes the loop over, and then
resumes: no effect occurs twice, and no end changes.
"""

import asyncio
import random
import signal
from collections.abc import Iterator, Sequence

from drills.harness.findings import Findings
from drills.harness.process import Process, open_servers
from drills.harness.runs import RunKind, execute, wait_for_ends
from drills.harness.storage_locations import StorageKind as PlaceKind
from drills.harness.storage_locations import StorageLocation, open_storage
from drills.tool_loop.counter_server import Counter, CounterEvent, run_counter
from drills.tool_loop.kill9 import (
    CONFIG,
    LEASE,
    InterruptionPoint,
    add_loop_figures,
    make_loop,
    submit_until_ended,
    warm_up,
)
from drills.tool_loop.responses import Scene, ToolLoopRun, prepare, verify_loop

_KINDS: tuple[RunKind, ...] = (
    "background",
    "background stream",
    "background",
    "background stream",
    "foreground stream",
)
_TIMEOUT_SECONDS = 15.0


def make_pause_points(rounds: int) -> list[InterruptionPoint]:
    """Return the named points repeatedly, with some random ones in between."""
    named = [*_named_points()]
    return [named[at % len(named)] if at % (len(named) + 2) < len(named) else _random_point(at) for at in range(rounds)]


def _named_points() -> Iterator[InterruptionPoint]:
    events: tuple[CounterEvent, ...] = ("called", "counted", "listing", "answered", "listed")
    slow_phases = {"called": "before", "counted": "after", "listing": "list"}
    for event in events:
        yield InterruptionPoint(name=event, counter_event=event, slow_phase=slow_phases.get(event, ""))
        if event in ("called", "counted", "answered"):
            yield InterruptionPoint(
                name=f"approved, {event}", scene="approved", counter_event=event, slow_phase=slow_phases.get(event, "")
            )


def _random_point(at: int) -> InterruptionPoint:
    scenes: tuple[Scene, ...] = ("outputs", "approved", "asking", "call")
    return InterruptionPoint(name="random", scene=scenes[at % len(scenes)])


async def loop_zombie(
    kind: PlaceKind | StorageLocation, rounds: Sequence[InterruptionPoint], findings: Findings
) -> None:
    with (
        open_storage(kind) as storage,
        run_counter(storage.folder) as counter,
        open_servers(storage, CONFIG, mark_answers=False) as processes,
    ):
        first, second = await asyncio.gather(processes.start(), processes.start())
        await asyncio.gather(warm_up(first, counter), warm_up(second, counter))
        acknowledged: list[ToolLoopRun] = []
        for number, point in enumerate(rounds):
            owner, successor = (first, second) if number % 2 else (second, first)
            loops = [make_loop(each, point, counter) for each in _KINDS]
            await asyncio.gather(*(prepare(owner.client, one) for one in loops))
            await _pause_and_take_over((owner, successor), loops, point, counter)
            await _verify((owner, successor), loops, counter, findings)
            acknowledged += [one for one in loops if one.id]
            findings.add_trials()
        for process in (first, second):
            await process.stop()
            processes.discard(process)
        findings.add_violations(f"a server wrote a traceback:\n{text}" for text in processes.tracebacks)
        add_loop_figures(findings, acknowledged, counter)


async def _pause_and_take_over(
    pair: tuple[Process, Process], loops: list[ToolLoopRun], point: InterruptionPoint, counter: Counter
) -> None:
    owner, successor = pair
    async with asyncio.TaskGroup() as clients:
        for one in loops:
            clients.create_task(execute(owner.client, one, **one.build_fields()))
            if one.scene == "outputs":
                clients.create_task(submit_until_ended(successor, one))
        if point.counter_event is not None:
            await counter.wait_for_event(point.counter_event, loops[random.randrange(4)].nonce, _TIMEOUT_SECONDS)
        else:
            await asyncio.sleep(random.uniform(0.05, 0.8))
        await owner.pause()
        for one in loops:
            one.orphaned = one.terminal_body is None and not one.stream_complete
        try:
            if random.random() < 0.5:
                await wait_for_ends(successor.client, [one for one in loops if one.id])
            else:  # while the other server is still working
                await asyncio.sleep(random.uniform(LEASE, 2 * LEASE))
        finally:
            owner.send_signal(signal.SIGCONT)


async def _verify(
    pair: tuple[Process, Process], loops: list[ToolLoopRun], counter: Counter, findings: Findings
) -> None:
    owner, successor = pair
    for process in (successor, owner):
        findings.add_violations(await wait_for_ends(process.client, [*loops]))
    for one in loops:
        if one.ended is not None:
            findings.add_violations(await verify_loop(random.choice(pair).client, one, counter))

"""Two replicas on PostgreSQL and Redis behind a proxy, with work of every kind on its way, while they are killed and
told to stop in turn, and PostgreSQL is restarted.

Nothing that was acknowledged is lost, stuck, doubled or changed; a server that is told to stop cuts nobody off;
whatever clients notice has its reason, and without PostgreSQL they are told when to come back.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from msgspec import Struct

from drills.harness.client import Client
from drills.harness.findings import Figure, Findings
from drills.harness.journal import Audit
from drills.replicas.clients import (
    World,
    background_load,
    background_stream_load,
    json_load,
    stream_load,
    talk_load,
)
from drills.replicas.cluster import GRACE, REPLICAS, House, house
from drills.replicas.verification import Judge
from drills.replicas.websocket import socket_load

Load = Callable[[World], Coroutine[Any, Any, None]]

_LOADS: dict[Load, int] = {
    stream_load: 8,
    json_load: 6,
    background_load: 6,
    background_stream_load: 6,
    socket_load: 5,
    talk_load: 5,
}


class Form(Struct, frozen=True, kw_only=True):
    seconds: float
    rest: float  # seconds between what is done to one replica and to the next, at most
    outages: tuple[tuple[float, float, bool], ...]  # of PostgreSQL: when, as a share of all; seconds; by a crash?
    lease: float
    share: float = 1.0  # of the clients


# PostgreSQL is away for a moment, after a crash, and for longer than leases last.
FULL = Form(seconds=300.0, rest=6.0, outages=((0.2, 0.0, False), (0.5, 3.0, True), (0.75, 10.0, False)), lease=8.0)
QUICK = Form(seconds=3.0, rest=0.3, outages=((0.4, 0.2, False),), lease=3.0, share=0.2)


async def replicas(form: Form, findings: Findings) -> None:
    async with house(form.lease) as found:
        world = World(found.proxy)
        await _under_way(found, world, form, findings)
        judge = Judge(found, world, form.lease, findings)
        judge.faults()
        await judge.everything(Client(found.proxy.port), Audit(found.place.journal))
        await found.close()
        findings.all_violated(f"a server wrote a traceback:\n{text}" for text in found.tracebacks)
        _tell(found, world, judge, findings)


async def _under_way(found: House, world: World, form: Form, findings: Findings) -> None:
    async with asyncio.TaskGroup() as group:
        for load, count in _LOADS.items():
            for _ in range(max(1, round(count * form.share))):
                group.create_task(load(world))
        changing = group.create_task(_change(found, form, findings))
        restarting = group.create_task(_restart(found, form))
        await asyncio.sleep(form.seconds)
        await asyncio.wait([changing, restarting])
        world.over = True


async def _change(found: House, form: Form, findings: Findings) -> None:
    """Each in turn: killed, then the other one stopped; then the other way round."""
    until = asyncio.get_running_loop().time() + form.seconds
    number = 0
    while number < 2 or asyncio.get_running_loop().time() < until:
        await asyncio.sleep(random.uniform(form.rest / 3, form.rest))
        seat = (number + number // 2) % REPLICAS
        if number % 2 == 0:
            await found.kill(seat)
        elif wrong := await found.stop(seat):
            findings.violated(wrong)
        number += 1


async def _restart(found: House, form: Form) -> None:
    began = asyncio.get_running_loop().time()
    for share, seconds, crash in form.outages:
        await asyncio.sleep(max(0.0, began + share * form.seconds - asyncio.get_running_loop().time()))
        await found.restart_postgres(seconds, crash)


def _tell(found: House, world: World, judge: Judge, findings: Findings) -> None:
    asked = Counter(ask.label for ask in world.asks)
    completed = sum((ask.run.ended or {}).get("status") == "completed" for ask in world.asks)
    findings.tried(len(world.asks))
    figures: Mapping[str, float] = {
        **dict(sorted(asked.items())),
        "completed": completed,
        "kills": len(found.killed),
        "stops": len(found.stopped),
        "PostgreSQL restarts": len(found.outages),
        "PostgreSQL away s": sum((outage.up or 0.0) - outage.down for outage in found.outages),
        **dict(sorted(judge.reasons.items())),
    }
    for name, value in figures.items():
        findings.figure(Figure(name, value))
    for name, value in (("lost", judge.lost), ("stuck", judge.stuck), ("duplicated", judge.duplicated)):
        findings.figure(Figure(name, value, most=0))
    findings.figure(Figure("cut off in good order", judge.cut, most=0))
    findings.figure(Figure("slowest stop s", found.slowest_stop, most=GRACE + 1.0))

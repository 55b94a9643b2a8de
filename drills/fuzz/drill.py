"""What clients send, changed in thousands of ways, and what our own OpenAPI document allows and forbids.

Nothing of it is a failure of the server, nothing hangs, nothing holds the event loop up, nothing is left in memory, and
afterwards a request as it should be is answered as ever. What went wrong is kept in build/fuzz, to be sent again.
"""

import asyncio
import shlex
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from bench.harness.process_meter import rss_bytes
from drills.fuzz.bodies import Bodies, Sent, recorded, shown
from drills.fuzz.openapi import schemas
from drills.fuzz.wire import Line, Socket, Wrong
from drills.harness.findings import Figure, Findings
from drills.harness.loop_lag import late
from drills.harness.process import Process
from drills.harness.server import Setup
from drills.harness.storage_locations import Kind, Place, place

KEPT = Path("build/fuzz")
LAG_MS, GROWN_MIB = 50.0, 16.0
MIB = 1024 * 1024
_LINES = 6
_FRESH = 200  # requests after which new things are made, since the last may be deleted
_FIRST_SECONDS = 120.0  # what is loaded once may take its time on a busy machine
_EARLY = 0.1  # of all; memory is compared with what it was then
_SLOWEST = 5  # of what held the loop up, that are told
_INLINE = 400  # bytes of a body that are shown; the file has all of it
_CONFIG: dict[str, Any] = {
    "accept_any_model": True,  # clients that were recorded ask for models of others
    "log_level": "error",
    "shed": {"lag": 0},  # a busy machine is not what is looked for
    "tool_output_timeout": 1.0,
}


class Amount(Struct, frozen=True):
    mutations: int
    examples: int  # that schemathesis makes for each operation, in each phase that makes some; none: it is left out


FULL, SHORT, QUICK = Amount(50_000, 150), Amount(3_000, 20), Amount(2_000, 5)


class Course(Struct):
    """How far it has come."""

    numbers: Iterator[int]
    bodies: Bodies
    statuses: Counter[int] = field(default_factory=Counter)


async def fuzz(kind: Kind, amount: Amount, findings: Findings) -> None:
    with place(kind) as where:
        async with _server(where, findings) as process:
            await _mutations(process, where, amount.mutations, findings)
            if amount.examples:
                began = time.monotonic()
                await schemas(process.client.port, amount.examples, findings)
                _tell_lag("lag of schemas", where, began, findings)
            await _still_well(process, findings)


@asynccontextmanager
async def _server(where: Place, findings: Findings) -> AsyncIterator[Process]:
    config = {"store": where.store, **_CONFIG}
    setup = Setup(config=config, journal=str(where.journal), marks=False, lag=str(where.folder / "lag"), alone=True)
    process = Process(setup)
    try:
        await process.ready()
        yield process
        await process.stop()
        if (at := (output := process.output()).find("Traceback")) >= 0:
            findings.violated(f"the server wrote a traceback:\n{output[max(0, at - 300) : at + 3000]}")
    finally:
        process.close()


async def _mutations(process: Process, where: Place, amount: int, findings: Findings) -> None:
    seeds = [*recorded(), *shown((await process.client.get("/openapi.json")).json())]
    course = Course(iter(range(amount)), Bodies(seeds))
    await _as_they_were(process, course, findings)
    began, early = time.monotonic(), int(amount * _EARLY)
    await _sent(process, course, early, findings)
    before = rss_bytes(process.pid)
    await _sent(process, course, amount - early, findings)
    findings.figure(Figure("grown MiB", (rss_bytes(process.pid) - before) / MIB, GROWN_MIB))
    _tell_lag("lag", where, began, findings)
    findings.tried(amount)
    told = ", ".join(f"{status}: {times:,}" for status, times in sorted(course.statuses.items()))
    findings.say(f"mutations were answered with {told}")


async def _as_they_were(process: Process, course: Course, findings: Findings) -> None:
    """Nothing is changed yet: what a server loads when it is first used is there afterwards."""
    line, socket = Line(process.client.port, _FIRST_SECONDS), Socket(process.client.port, _FIRST_SECONDS)
    try:
        for sent in course.bodies.plain(await line.given()):
            await _one(socket if sent.by_socket else line, sent, course, findings)
    finally:
        line.hang_up()
        socket.hang_up()
    course.statuses.clear()


async def _sent(process: Process, course: Course, amount: int, findings: Findings) -> None:
    left = count(amount, -1)

    async def line() -> None:
        http, socket = Line(process.client.port), Socket(process.client.port)
        try:
            for turn in count():
                if next(left) <= 0:
                    return
                if turn % _FRESH == 0:
                    given = await http.given()
                sent = course.bodies.sent(next(course.numbers), given)
                await _one(socket if sent.by_socket else http, sent, course, findings)
        finally:
            http.hang_up()
            socket.hang_up()

    async with asyncio.TaskGroup() as lines:
        for _ in range(_LINES):
            lines.create_task(line())


async def _one(way: Line | Socket, sent: Sent, course: Course, findings: Findings) -> None:
    try:
        course.statuses[await way.send(sent)] += 1
    except Wrong as wrong:
        findings.violated(f"{wrong}\n{again(sent)}")


def again(sent: Sent) -> str:
    """How to send it once more."""
    KEPT.mkdir(parents=True, exist_ok=True)
    file = KEPT / f"{sent.number}.json"
    file.write_bytes(sent.body)
    shown = sent.body[:_INLINE] + (b" ..." if len(sent.body) > _INLINE else b"")
    if sent.by_socket:
        return f"  over a WebSocket, number {sent.number}: {file} {shown!r}"
    kind = "-H 'content-type: application/json'" if sent.body else ""
    where = shlex.quote(f"http://127.0.0.1:8000{sent.path}")
    return f"  curl -X {sent.method} {kind} --data-binary @{file} {where}   # {shown!r}"


def _tell_lag(name: str, where: Place, since: float, findings: Findings) -> None:
    found = sorted(late(where.folder / "lag", since), key=lambda one: one.own)
    for one in [one for one in found if one.own * 1000 > LAG_MS][-_SLOWEST:]:
        findings.say(f"{name}: {one.own * 1000:.0f} ms ({one.wall * 1000:.0f} by the wall) in {' < '.join(one.where)}")
    findings.figure(Figure(f"{name} ms", found[-1].own * 1000 if found else 0.0, LAG_MS))
    findings.figure(Figure("on the wall", max((one.wall for one in found), default=0.0) * 1000))


async def _still_well(process: Process, findings: Findings) -> None:
    line, socket = Line(process.client.port), Socket(process.client.port)
    try:
        await line.given()
        await socket.send(Sent(0, "GET", "/v1/responses", b'{"type":"response.create","model":"fake","input":"hi"}'))
    except Wrong as wrong:
        findings.violated(f"afterwards: {wrong}")
    finally:
        line.hang_up()
        socket.hang_up()

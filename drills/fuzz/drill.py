"""Drill `fuzz`: thousands of mutated client requests, and valid and invalid requests from the OpenAPI document.

None of them may cause a server error, hang, block the event loop or leave memory behind, and regular requests succeed
afterwards. Requests that fail are saved in `build/fuzz`, so that they can be sent again.
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

from bench.harness.process_meter import own_rss_bytes
from drills.fuzz.bodies import FuzzRequest, RequestMutator, load_examples, load_recordings
from drills.fuzz.openapi import run_schemathesis
from drills.fuzz.wire import BadAnswer, HttpConnection, SocketConnection
from drills.harness.findings import Figure, Findings
from drills.harness.loop_lag import read_late_ticks
from drills.harness.process import Process
from drills.harness.server import Setup
from drills.harness.storage_locations import StorageKind, StorageLocation, open_storage

FAILURE_FOLDER = Path("build/fuzz")
MAX_LAG_MS, MAX_GROWTH_MIB = 100.0, 16.0
MIB = 1024 * 1024
_CONNECTIONS = 6
_RENEW_INTERVAL = 200  # requests after which new objects are created, since the previous ones may be deleted
_WARM_UP_SECONDS = 120.0  # loading at first use may take long on a busy machine
_WARM_UP_SHARE = 0.1  # of all requests; memory growth is measured after them
_REPORTED_LAGS = 5  # longest delays of the event loop that are printed
_SHOWN_BYTES = 400  # of a body in the output; the file contains all of it
_CONFIG: dict[str, Any] = {
    "accept_any_model": True,  # recorded clients name models of other servers
    "log_level": "error",
    "shed": {"lag": 0},  # load of the machine is not tested here
    "tool_output_timeout": 1.0,
}


class FuzzAmount(Struct, frozen=True):
    mutations: int
    examples: int  # that schemathesis generates per operation and generating phase; 0 skips schemathesis


FULL, SHORT, QUICK = FuzzAmount(50_000, 150), FuzzAmount(3_000, 20), FuzzAmount(2_000, 5)


class FuzzProgress(Struct):
    """The remaining numbers, and the statuses so far."""

    numbers: Iterator[int]
    bodies: RequestMutator
    statuses: Counter[int] = field(default_factory=Counter)


async def fuzz(kind: StorageKind, amount: FuzzAmount, findings: Findings) -> None:
    with open_storage(kind) as storage:
        async with _server(storage, findings) as process:
            await _send_mutations(process, storage, amount.mutations, findings)
            if amount.examples:
                start = time.monotonic()
                await run_schemathesis(process.client.port, amount.examples, findings)
                _report_lag("lag of schemas", storage, start, findings)
            await _check_regular_requests(process, findings)


@asynccontextmanager
async def _server(storage: StorageLocation, findings: Findings) -> AsyncIterator[Process]:
    config = {"store": storage.store, **_CONFIG}
    setup = Setup(config=config, journal=str(storage.journal), marks=False, lag=str(storage.folder / "lag"), alone=True)
    process = Process(setup)
    try:
        await process.wait_until_ready()
        yield process
        await process.stop()
        if (at := (output := process.read_output()).find("Traceback")) >= 0:
            findings.add_violation(f"the server wrote a traceback:\n{output[max(0, at - 300) : at + 3000]}")
    finally:
        process.close()


async def _send_mutations(process: Process, storage: StorageLocation, amount: int, findings: Findings) -> None:
    seeds = [*load_recordings(), *load_examples((await process.client.get("/openapi.json")).json())]
    progress = FuzzProgress(iter(range(amount)), RequestMutator(seeds))
    await _send_unmodified(process, progress, findings)
    start, early = time.monotonic(), int(amount * _WARM_UP_SHARE)
    await _send_batch(process, progress, early, findings)
    before = own_rss_bytes(process.pid)  # containers that requests create are bounded, and are not the server's memory
    await _send_batch(process, progress, amount - early, findings)
    findings.add_figure(Figure("grown MiB", (own_rss_bytes(process.pid) - before) / MIB, MAX_GROWTH_MIB))
    _report_lag("lag", storage, start, findings)
    findings.add_trials(amount)
    summary = ", ".join(f"{status}: {times:,}" for status, times in sorted(progress.statuses.items()))
    findings.print_line(f"statuses of the mutations: {summary}")


async def _send_unmodified(process: Process, progress: FuzzProgress, findings: Findings) -> None:
    """Send all requests unmodified, so that the server loads everything that it loads at first use."""
    http, socket = (
        HttpConnection(process.client.port, _WARM_UP_SECONDS),
        SocketConnection(process.client.port, _WARM_UP_SECONDS),
    )
    try:
        for request in progress.bodies.unmodified(await http.create_objects()):
            await _send(socket if request.by_socket else http, request, progress, findings)
    finally:
        http.disconnect()
        socket.disconnect()
    progress.statuses.clear()


async def _send_batch(process: Process, progress: FuzzProgress, amount: int, findings: Findings) -> None:
    remaining = count(amount, -1)

    async def send_in_sequence() -> None:
        http, socket = HttpConnection(process.client.port), SocketConnection(process.client.port)
        try:
            for turn in count():
                if next(remaining) <= 0:
                    return
                if turn % _RENEW_INTERVAL == 0:
                    ids = await http.create_objects()
                request = progress.bodies.mutate(next(progress.numbers), ids)
                await _send(socket if request.by_socket else http, request, progress, findings)
        finally:
            http.disconnect()
            socket.disconnect()

    async with asyncio.TaskGroup() as group:
        for _ in range(_CONNECTIONS):
            group.create_task(send_in_sequence())


async def _send(
    connection: HttpConnection | SocketConnection, request: FuzzRequest, progress: FuzzProgress, findings: Findings
) -> None:
    try:
        progress.statuses[await connection.send(request)] += 1
    except BadAnswer as error:
        findings.add_violation(f"{error}\n{save_failure(request)}")


def save_failure(request: FuzzRequest) -> str:
    """Save the body and return how to send the request again."""
    FAILURE_FOLDER.mkdir(parents=True, exist_ok=True)
    file = FAILURE_FOLDER / f"{request.number}.json"
    file.write_bytes(request.body)
    excerpt = request.body[:_SHOWN_BYTES] + (b" ..." if len(request.body) > _SHOWN_BYTES else b"")
    if request.by_socket:
        return f"  over a WebSocket, number {request.number}: {file} {excerpt!r}"
    kind = "-H 'content-type: application/json'" if request.body else ""
    storage = shlex.quote(f"http://127.0.0.1:8000{request.path}")
    return f"  curl -X {request.method} {kind} --data-binary @{file} {storage}   # {excerpt!r}"


def _report_lag(name: str, storage: StorageLocation, since: float, findings: Findings) -> None:
    ticks = sorted(read_late_ticks(storage.folder / "lag", since), key=lambda one: one.own_seconds)
    for one in [one for one in ticks if one.own_seconds * 1000 > MAX_LAG_MS][-_REPORTED_LAGS:]:
        findings.print_line(
            f"{name}: {one.own_seconds * 1000:.0f} ms ({one.wall * 1000:.0f} ms elapsed) in {' < '.join(one.stack)}"
        )
    findings.add_figure(Figure(f"{name} ms", ticks[-1].own_seconds * 1000 if ticks else 0.0, MAX_LAG_MS))
    findings.add_figure(Figure("on the wall", max((one.wall for one in ticks), default=0.0) * 1000))


async def _check_regular_requests(process: Process, findings: Findings) -> None:
    http, socket = HttpConnection(process.client.port), SocketConnection(process.client.port)
    try:
        await http.create_objects()
        await socket.send(
            FuzzRequest(0, "GET", "/v1/responses", b'{"type":"response.create","model":"fake","input":"hi"}')
        )
    except BadAnswer as error:
        findings.add_violation(f"after the drill: {error}")
    finally:
        http.disconnect()
        socket.disconnect()

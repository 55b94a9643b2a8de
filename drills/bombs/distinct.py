"""Drill `bombs-schemas`: thousands of distinct schemas, none of which may be retained permanently in memory or on
disk.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from bench.harness.process_meter import rss_bytes
from drills.bombs.failures import folder_size
from drills.bombs.schemas import as_custom_tool, as_format, as_tool
from drills.harness.findings import Figure, Findings
from drills.harness.process import open_servers
from drills.harness.storage_locations import open_storage
from tests.faults.raw_client import build_request, read_response

MIB = 1024 * 1024
MAX_GROWTH_MIB, MAX_DISK_BYTES = 4.0, 0
_CONCURRENCY = 4


class SchemaCounts(Struct, frozen=True):
    warm_up: int  # fills the caches, which hold the last few thousand
    measured: int


FULL, QUICK = SchemaCounts(10_000, 40_000), SchemaCounts(2_000, 3_000)


async def distinct(counts: SchemaCounts, findings: Findings) -> None:
    with (
        open_storage("sqlite") as storage,
        open_servers(storage, {"log_level": "error"}, mark_answers=False) as processes,
    ):
        process = await processes.start()
        await _send_range(process.client.port, 0, counts.warm_up, findings)
        before, disk = rss_bytes(process.pid), folder_size(storage.folder)
        await _send_range(process.client.port, counts.warm_up, counts.warm_up + counts.measured, findings)
        grown, written = (rss_bytes(process.pid) - before) / MIB, folder_size(storage.folder) - disk
        await process.stop()
    findings.add_trials(counts.warm_up + counts.measured)
    findings.add_figure(Figure("schemas", counts.warm_up + counts.measured))
    findings.add_figure(Figure("RSS MiB", before / MIB))
    findings.add_figure(Figure("grown MiB", grown, maximum=MAX_GROWTH_MIB))
    findings.add_figure(Figure("disk bytes", written, maximum=MAX_DISK_BYTES))
    findings.add_violations(f"the server wrote a traceback:\n{text}" for text in processes.tracebacks)


def make_distinct(number: int) -> dict[str, Any]:
    """Return request fields with a schema that depends on the number."""
    match number % 4:
        case 0:
            return as_format({"type": "object", "properties": {f"p{number}": {"const": f"{number}." * 100}}})
        case 1:
            return as_tool({"type": "object", "properties": {f"p{n}": {"enum": [number, n]} for n in range(20)}})
        case 2:
            return as_format({"type": "string", "pattern": f"^a{{1,9}}{number}[b-d]?$"})
        case _:
            return as_custom_tool("regex", f"{number}|a+")


async def _send_range(port: int, start: int, end: int, findings: Findings) -> None:
    numbers = iter(range(start, end))
    async with asyncio.TaskGroup() as group:
        for _ in range(_CONCURRENCY):
            group.create_task(_send_in_sequence(port, numbers, findings))


async def _send_in_sequence(port: int, numbers: Iterator[int], findings: Findings) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for number in numbers:
            body = {"model": "fake", "input": "hi", "store": False, "max_output_tokens": 200, **make_distinct(number)}
            writer.write(build_request(msgspec.json.encode(body)))
            answer = await read_response(reader)
            if answer.status != 200:
                findings.add_violation(f"schema {number} returned {answer.status}: {answer.body[:200]!r}")
    finally:
        writer.close()

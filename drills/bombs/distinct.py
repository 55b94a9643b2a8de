"""Schemas of which no two are alike, thousands of them: nothing is kept of them for ever, in memory or on the disk."""

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from bench.harness.process_meter import rss_bytes
from drills.bombs.failures import size_of
from drills.bombs.schemas import as_custom_tool, as_format, as_tool
from drills.harness.findings import Figure, Findings
from drills.harness.process import servers
from drills.harness.storage_locations import place
from tests.faults.raw_client import read_answer, request

MIB = 1024 * 1024
RSS_MIB, DISK_BYTES = 4.0, 0
_AT_ONCE = 4


class Times(Struct, frozen=True):
    before: int  # to begin with: what is kept of the last few thousand is kept then
    after: int


FULL, QUICK = Times(10_000, 40_000), Times(2_000, 3_000)


async def distinct(times: Times, findings: Findings) -> None:
    with place("sqlite") as where, servers(where, {"log_level": "error"}, marks=False) as processes:
        process = await processes.start()
        await _ask(process.client.port, 0, times.before, findings)
        before, disk = rss_bytes(process.pid), size_of(where.folder)
        await _ask(process.client.port, times.before, times.before + times.after, findings)
        grown, written = (rss_bytes(process.pid) - before) / MIB, size_of(where.folder) - disk
        await process.stop()
    findings.tried(times.before + times.after)
    findings.figure(Figure("schemas", times.before + times.after))
    findings.figure(Figure("RSS MiB", before / MIB))
    findings.figure(Figure("grown MiB", grown, most=RSS_MIB))
    findings.figure(Figure("disk bytes", written, most=DISK_BYTES))
    if grown > RSS_MIB:
        findings.violated(f"{times.after:,} schemas made the server grow by {grown:.1f} MiB")
    if written > DISK_BYTES:
        findings.violated(f"{times.after:,} schemas are {written:,} bytes on the disk")
    findings.all_violated(f"the server wrote a traceback:\n{text}" for text in processes.tracebacks)


def unlike(number: int) -> dict[str, Any]:
    """The fields of a request whose schema nobody else has."""
    match number % 4:
        case 0:
            return as_format({"type": "object", "properties": {f"p{number}": {"const": f"{number}." * 100}}})
        case 1:
            return as_tool({"type": "object", "properties": {f"p{n}": {"enum": [number, n]} for n in range(20)}})
        case 2:
            return as_format({"type": "string", "pattern": f"^a{{1,9}}{number}[b-d]?$"})
        case _:
            return as_custom_tool("regex", f"{number}|a+")


async def _ask(port: int, start: int, end: int, findings: Findings) -> None:
    numbers = iter(range(start, end))
    async with asyncio.TaskGroup() as group:
        for _ in range(_AT_ONCE):
            group.create_task(_work(port, numbers, findings))


async def _work(port: int, numbers: Iterator[int], findings: Findings) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for number in numbers:
            asked = {"model": "fake", "input": "hi", "store": False, "max_output_tokens": 200, **unlike(number)}
            writer.write(request(msgspec.json.encode(asked)))
            answer = await read_answer(reader)
            if answer.status != 200:
                findings.violated(f"schema {number} was answered {answer.status}: {answer.body[:200]!r}")
    finally:
        writer.close()

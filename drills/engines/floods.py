"""Answers without an end, up to a gigabyte of each: what is kept of them, and for how long they hold others up."""

import asyncio
import ctypes
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic

from drills.engines.hostile_upstream import Flood
from drills.engines.http_framing import BARE, STREAM
from tests.engines.unix_server import Writer

MEGABYTE = 1 << 20
GIGABYTE = 1 << 30
_STATUS = Path("/proc/self/status")
_LOOK_SECONDS = 0.01


def _endless(head: bytes, piece: bytes, most: int = GIGABYTE) -> Flood:
    async def flood(writer: Writer) -> None:
        writer.write(head)
        for _ in range(most // len(piece)):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)

    return flood


_EMPTY = b'data: {"choices":[{"index":0,"delta":{"content":""}}]}\n\n'
_NAMED = b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"function":{"name":"a","arguments":"{}x"}}]}}]}\n\n'
FLOODS: dict[str, Flood] = {
    "one line": _endless(BARE + b"data: ", b"x" * MEGABYTE),
    "one line, in one chunk": _endless(STREAM + b"%x\r\ndata: " % GIGABYTE, b"x" * MEGABYTE),
    "one line, bit by bit": _endless(BARE + b"data: ", b"x" * 500, 6 * MEGABYTE),
    "many lines of one event": _endless(BARE, b"data: xxxx\n" * 50_000),
    "comments": _endless(BARE, b": ping\n\n" * 100_000),
    "nothing but empty lines": _endless(BARE, b"\n" * MEGABYTE),
    "events that say nothing": _endless(BARE, _EMPTY * 2_000),
    "one call over and over": _endless(BARE, _NAMED * 50, 20 * MEGABYTE),
    "a refusal": _endless(b"HTTP/1.1 500 No\r\nContent-Length: %d\r\n\r\n" % GIGABYTE, b"x" * MEGABYTE),
    "headers": _endless(BARE[:-2], b"X-Filler: %b\r\n" % (b"x" * 10_000)),
    "one header": _endless(BARE[:-2] + b"X-Filler: ", b"x" * MEGABYTE),
    "announcements": _endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1_000),
    "trailers": _endless(STREAM + b"0\r\n", b"X-Filler: %b\r\n" % (b"x" * 10_000)),
    "another type": _endless(BARE.replace(b"event-stream", b"html"), b"x" * MEGABYTE),
}


def rss() -> float:
    """MiB that this process needs now."""
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)  # what was freed is given back, or it would count
    return _read("VmRSS")


class Measured:
    growth = 0.0  # MiB, at most, above what there was before
    lag = 0.0  # seconds, at most, in which nobody else had a turn


@asynccontextmanager
async def measured() -> AsyncIterator[Measured]:
    found, before = Measured(), rss()
    _forget_peak()
    watching = asyncio.create_task(_watch(found))
    try:
        yield found
    finally:
        watching.cancel()
        await asyncio.wait([watching])
        found.growth = max(0.0, _read("VmHWM") - before)


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


async def _watch(found: Measured) -> None:
    while True:
        before = monotonic()
        await asyncio.sleep(_LOOK_SECONDS)
        found.lag = max(found.lag, monotonic() - before - _LOOK_SECONDS)


def _read(name: str) -> float:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) / 1024

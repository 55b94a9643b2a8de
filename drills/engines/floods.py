"""Endless responses of up to a gigabyte each: how much memory they take, and how long they block other tasks."""

import asyncio
import ctypes
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic

from drills.engines.hostile_upstream import Flood
from drills.engines.http_framing import STREAM, UNTIL_CLOSE
from tests.support.local_servers import Writer

MEGABYTE = 1 << 20
GIGABYTE = 1 << 30
_STATUS = Path("/proc/self/status")
_TICK_SECONDS = 0.01


def _make_flood(head: bytes, piece: bytes, max_bytes: int = GIGABYTE) -> Flood:
    async def flood(writer: Writer) -> None:
        writer.write(head)
        for _ in range(max_bytes // len(piece)):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)

    return flood


_EMPTY = b'data: {"choices":[{"index":0,"delta":{"content":""}}]}\n\n'
_CALL = b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"function":{"name":"a","arguments":"{}x"}}]}}]}\n\n'
FLOODS: dict[str, Flood] = {
    "one line": _make_flood(UNTIL_CLOSE + b"data: ", b"x" * MEGABYTE),
    "one line, in one chunk": _make_flood(STREAM + b"%x\r\ndata: " % GIGABYTE, b"x" * MEGABYTE),
    "one line, in small pieces": _make_flood(UNTIL_CLOSE + b"data: ", b"x" * 500, 6 * MEGABYTE),
    "one event of many lines": _make_flood(UNTIL_CLOSE, b"data: xxxx\n" * 50_000),
    "comments": _make_flood(UNTIL_CLOSE, b": ping\n\n" * 100_000),
    "empty lines": _make_flood(UNTIL_CLOSE, b"\n" * MEGABYTE),
    "events without content": _make_flood(UNTIL_CLOSE, _EMPTY * 2_000),
    "one call repeated": _make_flood(UNTIL_CLOSE, _CALL * 50, 20 * MEGABYTE),
    "an error response": _make_flood(b"HTTP/1.1 500 No\r\nContent-Length: %d\r\n\r\n" % GIGABYTE, b"x" * MEGABYTE),
    "headers": _make_flood(UNTIL_CLOSE[:-2], b"X-Filler: %b\r\n" % (b"x" * 10_000)),
    "one header": _make_flood(UNTIL_CLOSE[:-2] + b"X-Filler: ", b"x" * MEGABYTE),
    "informational responses": _make_flood(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1_000),
    "trailers": _make_flood(STREAM + b"0\r\n", b"X-Filler: %b\r\n" % (b"x" * 10_000)),
    "another content type": _make_flood(UNTIL_CLOSE.replace(b"event-stream", b"html"), b"x" * MEGABYTE),
}


def measure_rss() -> float:
    """Return the resident memory of this process in MiB."""
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)  # return freed memory to the system, so that it is not counted
    return _read_status("VmRSS")


class Impact:
    growth = 0.0  # MiB, peak above the start
    lag = 0.0  # longest delay of the event loop in seconds


@asynccontextmanager
async def measure_impact() -> AsyncIterator[Impact]:
    impact, before = Impact(), measure_rss()
    _reset_peak()
    lag_task = asyncio.create_task(_measure_lag(impact))
    try:
        yield impact
    finally:
        lag_task.cancel()
        await asyncio.wait([lag_task])
        impact.growth = max(0.0, _read_status("VmHWM") - before)


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


async def _measure_lag(impact: Impact) -> None:
    while True:
        before = monotonic()
        await asyncio.sleep(_TICK_SECONDS)
        impact.lag = max(impact.lag, monotonic() - before - _TICK_SECONDS)


def _read_status(name: str) -> float:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) / 1024

"""Throws a bomb at a server and says what became of it: the answer, and how long it took from the moment that the
server had all of it. Judges the answer by the rules that hold for every one.

Others use the machine too. The time in which the server or we were ready to go on and had no processor is told by the
kernel, and is not the server's.
"""

import asyncio
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
from msgspec import Struct

from bench.harness.process_meter import cpu_ns
from drills.bombs.bomb import Bomb
from tests.clients.websocket.raw_socket import request as upgrade
from tests.faults.raw_client import read_answer

SECONDS = 30.0  # in which there must be something
_PIECE = 256 * 1024
_SMALL = 16 * 1024  # bytes that are with the server as soon as they are sent
_KEYS = {"message", "type", "param", "code"}
_TEXT, _CLOSE, _PING = 0x81, 0x88, 0x89
_LAST = re.compile(rb'\{"type":"(error|response\.(completed|incomplete|failed))"')
# What an error must not tell: addresses in memory, where files are, and what our code looks like.
_TELLTALE = re.compile(
    r"0x[0-9a-f]{4,}|Traceback|site-packages|File \"|\.py\b|/(?:home|usr|tmp|var|opt)/|object at |\bantiphon\.\w+\."
)


class Thrown(Struct, frozen=True):
    """`status` 0: hung up without a word; -1: no end in time. Of a WebSocket that was closed it is the code."""

    status: int
    body: bytes
    wall: float  # seconds
    held_up: float = 0.0  # of these, by whatever else runs on the machine; some may be counted twice
    worked: float = 0.0  # by the server meanwhile

    @property
    def seconds(self) -> float:
        """What the server has to answer for: all but what it was held up, and no less than it worked."""
        return min(self.wall, max(self.wall - self.held_up, self.worked))


async def throw(port: int, bomb: Bomb, pid: int | None = None) -> Thrown:
    """`pid`: the server's, if its time is to be told."""
    sent = bomb.make()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    writer.transport.set_write_buffer_limits(0)
    try:
        async with asyncio.timeout(SECONDS):
            if bomb.way == "socket":
                writer.write(upgrade("/v1/responses"))
                await reader.readuntil(b"\r\n\r\n")
            return await _thrown(_Thrower(reader, writer, pid), sent, bomb)
    except TimeoutError:
        return Thrown(-1, b"", SECONDS)
    except (ConnectionError, asyncio.IncompleteReadError):
        return Thrown(0, b"", 0.0)
    finally:
        writer.transport.abort()


async def _thrown(thrower: "_Thrower", sent: bytes, bomb: Bomb) -> Thrown:
    sending = asyncio.create_task(thrower.send(sent))
    try:
        if bomb.way == "socket":
            status, body = await _told(thrower.reader)
        else:
            answer = await read_answer(thrower.reader)
            status, body = answer.status, answer.body
        return Thrown(status, body, *thrower.since())
    finally:
        sending.cancel()
        with suppress(asyncio.CancelledError, ConnectionError):
            await sending


class _Thrower:
    """Notes when the last byte was sent that the server can have waited for before it answered."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pid: int | None) -> None:
        self.reader = reader
        self._writer = writer
        self._pids = () if pid is None else (pid, os.getpid())
        self._here = f":{writer.get_extra_info('sockname')[1]:04X}"
        self._there = f":{writer.get_extra_info('peername')[1]:04X}"
        self._note()

    def since(self) -> tuple[float, float, float]:
        """Seconds since then, how many of them the machine was busy with others, and how many the server worked."""
        now = self._now()
        return now[0] - self._done[0], now[1] - self._done[1], now[2] - self._done[2]

    def _note(self) -> None:
        self._done = self._now()

    def _now(self) -> tuple[float, float, float]:
        worked = cpu_ns(self._pids[0]) / 1e9 if self._pids else 0.0
        return perf_counter(), sum(map(waited, self._pids)), worked

    async def send(self, sent: bytes) -> None:
        """All but the last byte, and that when the server has read the others. It may answer before that."""
        for at in range(0, len(sent) - 1, _PIECE):
            self._writer.write(sent[at : min(at + _PIECE, len(sent) - 1)])
            await self._writer.drain()
            if self._is_answered():
                return
            self._note()
        while len(sent) > _SMALL and not self._is_answered() and self._unread():  # noqa: ASYNC110 - the kernel says it
            await asyncio.sleep(0.001)
        if not self._is_answered():
            self._note()
            self._writer.write(sent[-1:])

    def _is_answered(self) -> bool:
        return bool(self.reader._buffer) or self.reader.at_eof()  # type: ignore[attr-defined]  # nothing else tells

    def _unread(self) -> int:
        """Bytes that are on their way to the server's process."""
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        ours = [line for line in lines if line[1].endswith(self._here) and line[2].endswith(self._there)]
        theirs = [line for line in lines if line[1].endswith(self._there) and line[2].endswith(self._here)]
        return sum(int(line[4].partition(":")[0], 16) for line in ours) + sum(
            int(line[4].partition(":")[2], 16) for line in theirs
        )


def waited(pid: int) -> float:
    """Seconds in which the threads of a process were ready to run and did not."""
    total = 0
    for each in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError):  # it has ended
            total += int(each.read_text().split()[1])
    return total / 1e9


async def _told(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The status and the error that a message gets, 200 and the end of a response, or a close."""
    while True:
        kind, size = await reader.readexactly(2)
        if size >= 126:
            size = int.from_bytes(await reader.readexactly(2 if size == 126 else 8), "big")
        payload = await reader.readexactly(size)
        if kind == _CLOSE:
            return int.from_bytes(payload[:2], "big"), b""
        if kind == _TEXT and _LAST.match(payload):
            told = msgspec.json.decode(payload)
            return (told["status"] if told["type"] == "error" else 200), payload


def faults(bomb: Bomb, thrown: Thrown) -> Iterator[str]:
    """What is wrong with what became of it, its time apart."""
    if thrown.status not in bomb.answers:
        yield f"was answered {thrown.status}, not {bomb.answers}: {thrown.body[:300]!r}"
        return
    if thrown.status >= 1000:
        return
    if thrown.status < 300:
        if bomb.says not in thrown.body:
            yield f"did not come back as {bomb.says!r}: {thrown.body[:300]!r}"
        return
    error = _error(thrown.body, bomb)
    if error is None:
        yield f"has an error of another shape: {thrown.body[:300]!r}"
        return
    if not bomb.anthropic and bomb.param is not None and not (error["param"] or "").startswith(bomb.param):
        yield f"blames {error['param']!r}, not {bomb.param!r}: {error['message'][:200]!r}"
    found = _TELLTALE.search(error["message"])
    if found and found[0].encode() not in bomb.make():
        yield f"tells of {found[0]!r}: {error['message'][:300]!r}"
    if len(thrown.body) > 4_000:
        yield f"has an error of {len(thrown.body)} bytes"


def _error(body: bytes, bomb: Bomb) -> dict[str, Any] | None:
    try:
        whole = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError:
        return None
    error = whole.get("error")
    if not isinstance(error, dict) or not isinstance(error.get("message"), str) or not error["message"]:
        return None
    if bomb.anthropic:
        return error if whole.get("type") == "error" and isinstance(error.get("type"), str) else None
    worded = all(error[key] is None or isinstance(error[key], str) for key in ("param", "code") if key in error)
    return error if error.keys() == _KEYS and isinstance(error["type"], str) and worded else None

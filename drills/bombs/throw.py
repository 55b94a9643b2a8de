"""Sends a bomb to a server, measures the time from the last byte that the server needs to the end of its answer, and
checks the answer against the rules that apply to every bomb.

Other processes use the machine too: the time that the server or this process waited for a processor, as reported by the
kernel, is subtracted.
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
from tests.clients.websocket.raw_socket import build_upgrade_request as upgrade
from tests.faults.raw_client import read_response

TIMEOUT_SECONDS = 30.0  # for the whole exchange
_PIECE_BYTES = 256 * 1024
_SMALL_BYTES = 16 * 1024  # requests up to this size arrive as soon as they are sent
_KEYS = {"message", "type", "param", "code"}
_TEXT, _CLOSE, _PING = 0x81, 0x88, 0x89
_LAST_EVENT = re.compile(rb'\{"type":"(error|response\.(completed|incomplete|failed))"')
# Errors must not contain memory addresses, file paths or parts of the code.
_INTERNAL_DETAIL = re.compile(
    r"0x[0-9a-f]{4,}|Traceback|site-packages|File \"|\.py\b|/(?:home|usr|tmp|var|opt)/|object at |\bantiphon\.\w+\."
)


class ThrowResult(Struct, frozen=True):
    """The result of a bomb. `status` 0: disconnected without an answer; -1: timeout. For a closed WebSocket, the close
    code.
    """

    status: int
    body: bytes
    wall: float  # seconds
    waited: float = 0.0  # of these, spent waiting for a processor; partly counted twice if both processes waited
    cpu: float = 0.0  # CPU time of the server meanwhile

    @property
    def seconds(self) -> float:
        """Return the time that the server is responsible for: without waiting, but at least its CPU time."""
        return min(self.wall, max(self.wall - self.waited, self.cpu))


async def throw(port: int, bomb: Bomb, pid: int | None = None) -> ThrowResult:
    """Send the bomb. `pid`: the server's process, if its time is to be measured."""
    sent = bomb.make()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    writer.transport.set_write_buffer_limits(0)
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            if bomb.channel == "socket":
                writer.write(upgrade("/v1/responses"))
                await reader.readuntil(b"\r\n\r\n")
            return await _exchange(_Sender(reader, writer, pid), sent, bomb)
    except TimeoutError:
        return ThrowResult(-1, b"", TIMEOUT_SECONDS)
    except (ConnectionError, asyncio.IncompleteReadError):
        return ThrowResult(0, b"", 0.0)
    finally:
        writer.transport.abort()


async def _exchange(sender: "_Sender", sent: bytes, bomb: Bomb) -> ThrowResult:
    send_task = asyncio.create_task(sender.send(sent))
    try:
        if bomb.channel == "socket":
            status, body = await _read_socket_answer(sender.reader)
        else:
            answer = await read_response(sender.reader)
            status, body = answer.status, answer.body
        return ThrowResult(status, body, *sender.measure())
    finally:
        send_task.cancel()
        with suppress(asyncio.CancelledError, ConnectionError):
            await send_task


class _Sender:
    """Sends a bomb and records when it sent the last byte that the server may have waited for."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pid: int | None) -> None:
        self.reader = reader
        self._writer = writer
        self._pids = () if pid is None else (pid, os.getpid())
        self._local_port = f":{writer.get_extra_info('sockname')[1]:04X}"
        self._remote_port = f":{writer.get_extra_info('peername')[1]:04X}"
        self._record_sent()

    def measure(self) -> tuple[float, float, float]:
        """Return the seconds since then: elapsed, waiting for a processor, and CPU time of the server."""
        now = self._read_clocks()
        return now[0] - self._last_sent[0], now[1] - self._last_sent[1], now[2] - self._last_sent[2]

    def _record_sent(self) -> None:
        self._last_sent = self._read_clocks()

    def _read_clocks(self) -> tuple[float, float, float]:
        cpu = cpu_ns(self._pids[0]) / 1e9 if self._pids else 0.0
        return perf_counter(), sum(map(read_wait_seconds, self._pids)), cpu

    async def send(self, sent: bytes) -> None:
        """Send all but the last byte, and that one when the server has read the others; stop if it answers earlier."""
        for at in range(0, len(sent) - 1, _PIECE_BYTES):
            self._writer.write(sent[at : min(at + _PIECE_BYTES, len(sent) - 1)])
            await self._writer.drain()
            if self._is_answered():
                return
            self._record_sent()
            if len(sent) > _SMALL_BYTES:
                await self._wait_until_read()
        if not self._is_answered():
            self._record_sent()
            self._writer.write(sent[-1:])

    async def _wait_until_read(self) -> None:
        """Wait until the server has read everything. Its time begins when the kernel has delivered the data: after a
        receiver's window was zero, that may take a timer of 40 to 200 ms (RFC 9293, section 3.8.6.1).
        """
        while not self._is_answered() and any(queues := self._read_queues()):
            if queues[0]:
                self._record_sent()
            await asyncio.sleep(0.001)

    def _is_answered(self) -> bool:
        return bool(self.reader._buffer) or self.reader.at_eof()  # type: ignore[attr-defined]  # there is no public API for this

    def _read_queues(self) -> tuple[int, int]:
        """Return the bytes that the kernel has not delivered yet, and those that the server has not read yet."""
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        ours = [line for line in lines if line[1].endswith(self._local_port) and line[2].endswith(self._remote_port)]
        theirs = [line for line in lines if line[1].endswith(self._remote_port) and line[2].endswith(self._local_port)]
        return (
            sum(int(line[4].partition(":")[0], 16) for line in ours),
            sum(int(line[4].partition(":")[2], 16) for line in theirs),
        )


def read_wait_seconds(pid: int) -> float:
    """Return the seconds that the threads of a process were ready to run without a processor."""
    total = 0
    for each in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError):  # the thread has ended
            total += int(each.read_text().split()[1])
    return total / 1e9


async def _read_socket_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Return status and body of an error, 200 and the terminal event of a response, or the close code."""
    while True:
        kind, size = await reader.readexactly(2)
        if size >= 126:
            size = int.from_bytes(await reader.readexactly(2 if size == 126 else 8), "big")
        payload = await reader.readexactly(size)
        if kind == _CLOSE:
            return int.from_bytes(payload[:2], "big"), b""
        if kind == _TEXT and _LAST_EVENT.match(payload):
            event = msgspec.json.decode(payload)
            return (event["status"] if event["type"] == "error" else 200), payload


def find_faults(bomb: Bomb, result: ThrowResult) -> Iterator[str]:
    """Yield what is wrong with the answer, apart from its time."""
    if result.status not in bomb.answers:
        yield f"returned {result.status}, expected {bomb.answers}: {result.body[:300]!r}"
        return
    if result.status >= 1000:
        return
    if result.status < 300:
        if bomb.says not in result.body:
            yield f"does not contain {bomb.says!r}: {result.body[:300]!r}"
        return
    error = _parse_error(result.body, bomb)
    if error is None:
        yield f"has an error in another format: {result.body[:300]!r}"
        return
    if not bomb.anthropic and bomb.param is not None and not (error["param"] or "").startswith(bomb.param):
        yield f"names the param {error['param']!r}, expected {bomb.param!r}: {error['message'][:200]!r}"
    found = _INTERNAL_DETAIL.search(error["message"])
    if found and found[0].encode() not in bomb.make():
        yield f"reveals {found[0]!r}: {error['message'][:300]!r}"
    if len(result.body) > 4_000:
        yield f"has an error of {len(result.body)} bytes"


def _parse_error(body: bytes, bomb: Bomb) -> dict[str, Any] | None:
    try:
        decoded = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError:
        return None
    error = decoded.get("error")
    if not isinstance(error, dict) or not isinstance(error.get("message"), str) or not error["message"]:
        return None
    if bomb.anthropic:
        return error if decoded.get("type") == "error" and isinstance(error.get("type"), str) else None
    has_valid_fields = all(
        error[key] is None or isinstance(error[key], str) for key in ("param", "code") if key in error
    )
    return error if error.keys() == _KEYS and isinstance(error["type"], str) and has_valid_fields else None

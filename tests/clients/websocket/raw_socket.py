"""A client of a WebSocket that sends exactly the bytes it is given, where a library would not do it."""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from msgspec import Struct
from websockets.client import ClientProtocol
from websockets.frames import Close, Frame, Opcode
from websockets.protocol import OPEN
from websockets.uri import parse_uri

from tests.oracles.responses import check_socket_event
from tests.support.server_process import Live

SECONDS = 60.0  # for anything that should take a moment, on a busy machine
TEXT, BINARY, CLOSE, PING, PONG = Opcode.TEXT, Opcode.BINARY, Opcode.CLOSE, Opcode.PING, Opcode.PONG
CREATE = {"type": "response.create", "model": "fake", "input": "hi"}

_GAUGE = rb"^%b(?:\{[^}]*\})? (\d+)"
_CANCELLED = re.compile(rb'^antiphon_responses_total\{status="cancelled"\} (\d+)', re.MULTILINE)
_UPGRADE = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13")
_KEY = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="


def frame(opcode: int, data: bytes = b"", fin: bool = True, rsv1: bool = False, mask: bool = True) -> bytes:
    """Masked with zeros, which changes nothing."""
    first, masked, size = fin << 7 | rsv1 << 6 | opcode, mask << 7, len(data)
    if size < 126:
        head = bytes((first, masked | size))
    elif size < 1 << 16:
        head = bytes((first, masked | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((first, masked | 127)) + size.to_bytes(8, "big")
    return head + bytes(4 * mask) + data


def text(value: Any) -> bytes:
    return frame(TEXT, value if isinstance(value, bytes) else json.dumps(value).encode())


def request(path: str, *lines: str, host: str = "Host: 127.0.0.1", key: str = _KEY, method: str = "GET") -> bytes:
    """A request for a WebSocket. `key`: the line of it, which may be empty."""
    given = [f"{method} {path} HTTP/1.1", host, *_UPGRADE, key, *lines]
    return "\r\n".join([*filter(None, given), "", ""]).encode("latin-1")


class Refusal(Struct):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = json.loads(self.body)["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        return error


class RawSocket:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._decoder = ClientProtocol(parse_uri("ws://localhost/"), state=OPEN, max_size=None)
        self._frames: list[Frame] = []

    async def send(self, data: bytes) -> None:
        """As much of it as the server takes."""
        with suppress(ConnectionError):
            self.writer.write(data)
            await self.writer.drain()

    async def next(self) -> Frame | None:
        """The next frame; None if the server has hung up."""
        async with asyncio.timeout(SECONDS):
            while not self._frames:
                try:
                    data = await self.reader.read(65536)
                except ConnectionResetError:
                    data = b""
                if not data:
                    return None
                self._decoder.receive_data(data)
                self._frames += [event for event in self._decoder.events_received() if isinstance(event, Frame)]
        return self._frames.pop(0)

    async def event(self) -> dict[str, Any]:
        got = await self.next()
        assert got is not None
        assert got.opcode is TEXT, got
        told: dict[str, Any] = json.loads(bytes(got.data))
        check_socket_event(told)
        return told

    async def end(self) -> dict[str, Any]:
        """The end of a response, or an error in its place."""
        ends = ("response.completed", "response.incomplete", "response.failed", "error")
        while (told := await self.event())["type"] not in ends:
            pass
        return told

    async def ask(self, **fields: Any) -> None:
        await self.send(text({**CREATE, **fields}))

    async def closed(self) -> int:
        """The code with which the server closes, and hangs up; 1006 if it only does that."""
        while (got := await self.next()) is not None:
            if got.opcode is CLOSE:
                await self.send(frame(CLOSE, bytes(got.data)))
                assert await self.next() is None
                return Close.parse(bytes(got.data)).code
        return 1006


@asynccontextmanager
async def dialled(live: Live, head: bytes) -> AsyncIterator[RawSocket]:
    """A connection on which this was said, and nothing is answered yet."""
    reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
    try:
        writer.write(head)
        yield RawSocket(reader, writer)
    finally:
        writer.transport.abort()


async def _head(one: RawSocket) -> tuple[int, dict[str, str]]:
    async with asyncio.timeout(SECONDS):
        head = (await one.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    return int(head[0].split()[1]), dict(line.lower().split(": ", 1) for line in head[1:] if line)


@asynccontextmanager
async def raw_socket(live: Live, *lines: str, path: str = "/v1/responses") -> AsyncIterator[RawSocket]:
    async with dialled(live, request(path, *lines)) as one:
        status, headers = await _head(one)
        assert status == 101, headers
        yield one


async def refusal(live: Live, head: bytes) -> Refusal:
    """The answer to somebody who is not let in, and is hung up on."""
    async with dialled(live, head) as one, asyncio.timeout(SECONDS):
        status, headers = await _head(one)
        body = await one.reader.readexactly(int(headers.get("content-length", 0)))
        assert await one.reader.read() == b""
        return Refusal(status, headers, body)


async def gauge(live: Live, name: str, headers: dict[str, str] | None = None) -> int:
    status, metrics = await asyncio.to_thread(live.send, "GET", "/metrics", None, headers)
    assert status == 200
    (count,) = re.findall(_GAUGE % name.encode(), metrics, re.MULTILINE)
    return int(count)


async def cancelled(live: Live) -> int:
    """How many responses nobody waited for any more, since it began."""
    _, metrics = await asyncio.to_thread(live.get, "/metrics")
    return sum(map(int, _CANCELLED.findall(metrics)))


async def until(live: Live, name: str, count: int) -> float:
    """Seconds until the gauge says so."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(SECONDS):
        while await gauge(live, name) != count:
            pass
    return loop.time() - began


def resident(live: Live) -> int:
    with open(f"/proc/{live.process.pid}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

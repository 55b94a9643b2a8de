"""WebSocket client that sends exactly the bytes it is passed, including bytes that a library would refuse to send."""

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
from tests.support.server_process import ServerProcess

TIMEOUT_SECONDS = 60.0  # timeout of every step, generous for a busy machine
TEXT, BINARY, CLOSE, PING, PONG = Opcode.TEXT, Opcode.BINARY, Opcode.CLOSE, Opcode.PING, Opcode.PONG
CREATE = {"type": "response.create", "model": "fake", "input": "hi"}

_GAUGE = rb"^%b(?:\{[^}]*\})? (\d+)"
_CANCELLED = re.compile(rb'^antiphon_responses_total\{status="cancelled"\} (\d+)', re.MULTILINE)
_UPGRADE = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13")
_KEY = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="


def encode_frame(opcode: int, data: bytes = b"", fin: bool = True, rsv1: bool = False, mask: bool = True) -> bytes:
    """Encode one frame. The masking key is zero, so the payload stays readable."""
    first, masked, size = fin << 7 | rsv1 << 6 | opcode, mask << 7, len(data)
    if size < 126:
        head = bytes((first, masked | size))
    elif size < 1 << 16:
        head = bytes((first, masked | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((first, masked | 127)) + size.to_bytes(8, "big")
    return head + bytes(4 * mask) + data


def encode_text_frame(value: Any) -> bytes:
    return encode_frame(TEXT, value if isinstance(value, bytes) else json.dumps(value).encode())


def build_upgrade_request(
    path: str, *lines: str, host: str = "Host: 127.0.0.1", key: str = _KEY, method: str = "GET"
) -> bytes:
    """Build an upgrade request. `key` is the complete Sec-WebSocket-Key line, or empty to omit it."""
    head_lines = [f"{method} {path} HTTP/1.1", host, *_UPGRADE, key, *lines]
    return "\r\n".join([*filter(None, head_lines), "", ""]).encode("latin-1")


class RejectedUpgrade(Struct):
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
        """Send as much of the data as the server accepts."""
        with suppress(ConnectionError):
            self.writer.write(data)
            await self.writer.drain()

    async def receive_frame(self) -> Frame | None:
        """Return the next frame, or None if the server has closed the TCP connection."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
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

    async def receive_event(self) -> dict[str, Any]:
        got = await self.receive_frame()
        assert got is not None
        assert got.opcode is TEXT, got
        event: dict[str, Any] = json.loads(bytes(got.data))
        check_socket_event(event)
        return event

    async def receive_end(self) -> dict[str, Any]:
        """Receive up to the last event of a response, or up to an error event."""
        ends = ("response.completed", "response.incomplete", "response.failed", "error")
        while (event := await self.receive_event())["type"] not in ends:
            pass
        return event

    async def send_create(self, **fields: Any) -> None:
        await self.send(encode_text_frame({**CREATE, **fields}))

    async def wait_closed(self) -> int:
        """Wait until the server disconnects; return the code of its close frame, or 1006 without one."""
        while (got := await self.receive_frame()) is not None:
            if got.opcode is CLOSE:
                await self.send(encode_frame(CLOSE, bytes(got.data)))
                assert await self.receive_frame() is None
                return Close.parse(bytes(got.data)).code
        return 1006


@asynccontextmanager
async def open_connection(server: ServerProcess, head: bytes) -> AsyncIterator[RawSocket]:
    """Open a connection and send `head`, without reading the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(head)
        yield RawSocket(reader, writer)
    finally:
        writer.transport.abort()


async def _read_head(client: RawSocket) -> tuple[int, dict[str, str]]:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        head = (await client.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    return int(head[0].split()[1]), dict(line.lower().split(": ", 1) for line in head[1:] if line)


@asynccontextmanager
async def open_raw_socket(server: ServerProcess, *lines: str, path: str = "/v1/responses") -> AsyncIterator[RawSocket]:
    async with open_connection(server, build_upgrade_request(path, *lines)) as client:
        status, headers = await _read_head(client)
        assert status == 101, headers
        yield client


async def expect_rejection(server: ServerProcess, head: bytes) -> RejectedUpgrade:
    """Send an upgrade that the server rejects before it closes the connection; return its answer."""
    async with open_connection(server, head) as client, asyncio.timeout(TIMEOUT_SECONDS):
        status, headers = await _read_head(client)
        body = await client.reader.readexactly(int(headers.get("content-length", 0)))
        assert await client.reader.read() == b""
        return RejectedUpgrade(status, headers, body)


async def read_gauge(server: ServerProcess, name: str, headers: dict[str, str] | None = None) -> int:
    status, metrics = await asyncio.to_thread(server.send, "GET", "/metrics", None, headers)
    assert status == 200
    (count,) = re.findall(_GAUGE % name.encode(), metrics, re.MULTILINE)
    return int(count)


async def count_cancelled(server: ServerProcess) -> int:
    """Return how many responses were cancelled since the server started."""
    _, metrics = await asyncio.to_thread(server.get, "/metrics")
    return sum(map(int, _CANCELLED.findall(metrics)))


async def wait_for_gauge(server: ServerProcess, name: str, count: int) -> float:
    """Wait until the gauge has this value; return the seconds that took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while await read_gauge(server, name) != count:
            pass
    return loop.time() - began


def read_resident_bytes(server: ServerProcess) -> int:
    with open(f"/proc/{server.process.pid}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

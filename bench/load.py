"""The load: many keep-alive connections that ask, count what comes and check how it ended.

A process of its own, told what to do by one JSON line (a Load). It connects, asks once on each
connection to warm up, says "ready", waits for a line, works, and says what it counted as JSON.
It looks at bytes only: parsing would cost more than the server it measures.
"""

import asyncio
import sys
from typing import cast

import msgspec
import uvloop
from msgspec import Struct

_TOKEN = b"event: response.output_text.delta\n"
_STREAM_END = b"data: [DONE]\n\n\r\n0\r\n\r\n"
_STALL_SECONDS = 60.0
WARMING = 8  # connections that ask once before it counts


class Load(Struct, frozen=True, kw_only=True):
    port: int
    path: str
    body: str
    connections: int
    requests: int  # of each connection
    hold: bool = False  # stop at the first token of each stream and keep it open until a second line


class Counted(Struct, frozen=True):
    requests: int
    tokens: int


class Client(asyncio.Protocol):
    """One connection: asks `left` times, one after the other."""

    def __init__(self, request: bytes, streams: bool) -> None:
        self._request = request
        self._streams = streams
        self._left = 0
        self._tail = b""
        self._idle: asyncio.Future[None] | None = None
        self._heard: asyncio.Future[None] | None = None
        self.tokens = 0
        self.requests = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    async def ask(self, times: int) -> None:
        self._left = times
        self._idle = asyncio.get_running_loop().create_future()
        self._transport.write(self._request)
        async with asyncio.timeout(_STALL_SECONDS):
            await self._idle

    async def ask_and_hold(self) -> None:
        """Ask, and return at the first token; the rest is left to come."""
        self._left = 1
        self._heard = asyncio.get_running_loop().create_future()
        self._transport.write(self._request)
        async with asyncio.timeout(_STALL_SECONDS):
            await self._heard

    def close(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._streams:
            self._stream_received(data)
        else:
            self._json_received(data)

    def _stream_received(self, data: bytes) -> None:
        seen = self._tail + data
        if not self._tail:
            self._check_status(data)
        self.tokens += seen.count(_TOKEN)
        if self.tokens and self._heard is not None and not self._heard.done():
            self._heard.set_result(None)
        if seen.endswith(_STREAM_END):
            self._answered()
        elif seen.endswith(b"\r\n0\r\n\r\n"):
            self._fail(f"a stream ended without [DONE]: {seen[-300:]!r}")
        else:
            # One byte less than the needle, so that no token is counted twice.
            self._tail = seen[1 - len(_TOKEN) :]

    def _json_received(self, data: bytes) -> None:
        if not self._tail:
            self._check_status(data)
        self._tail += data
        head, gap, body = self._tail.partition(b"\r\n\r\n")
        if gap and len(body) == _content_length(head):
            self._answered()

    def _check_status(self, data: bytes) -> None:
        if not data.startswith(b"HTTP/1.1 200"):
            self._fail(f"not a 200: {data[:500]!r}")

    def _answered(self) -> None:
        self._tail = b""
        self.requests += 1
        self._left -= 1
        if self._left > 0:
            self._transport.write(self._request)
        elif self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _fail(self, sentence: str) -> None:
        for waiting in (self._idle, self._heard):
            if waiting is not None and not waiting.done():
                waiting.set_exception(RuntimeError(sentence))
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the connection was lost: {exc}")


def _content_length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    raise RuntimeError(f"no content-length: {head!r}")


def _http(load: Load) -> bytes:
    body = load.body.encode()
    head = (
        f"POST {load.path} HTTP/1.1\r\nHost: 127.0.0.1:{load.port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _connect(load: Load) -> list[Client]:
    loop = asyncio.get_running_loop()
    request, streams = _http(load), '"stream":true' in load.body
    return [
        (await loop.create_connection(lambda: Client(request, streams), "127.0.0.1", load.port))[1]
        for _ in range(load.connections)
    ]


async def _work(load: Load, clients: list[Client]) -> None:
    async with asyncio.TaskGroup() as asking:
        for client in clients:
            asking.create_task(client.ask_and_hold() if load.hold else client.ask(load.requests))


async def _run(load: Load) -> None:
    clients = await _connect(load)
    if not load.hold:
        await _work(msgspec.structs.replace(load, requests=1), clients[:WARMING])
    before = Counted(sum(c.requests for c in clients), sum(c.tokens for c in clients))
    await _say("ready")
    await _work(load, clients)
    requests, tokens = sum(c.requests for c in clients), sum(c.tokens for c in clients)
    counted = msgspec.json.encode(Counted(requests - before.requests, tokens - before.tokens)).decode()
    if load.hold:
        await _say(counted)
    else:
        _print(counted)
    for client in clients:
        client.close()


async def _say(line: str) -> None:
    """Say a line and wait for the answer, while what comes on the connections is still taken in."""
    _print(line)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(_run(msgspec.json.decode(sys.argv[1], type=Load)))

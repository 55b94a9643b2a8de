"""The load: many keep-alive connections that ask, count what comes and check how it ended.

A process of its own, told what to do by one JSON line (a Load). It connects, asks once on each
connection to warm up, says "ready", waits for a line, works, and says what it counted as JSON.
It looks at bytes only: parsing would cost more than the server it measures.
"""

import asyncio
import re
import sys
import time
from typing import Literal, cast

import msgspec
import uvloop
from msgspec import Struct

TOKEN = "event: response.output_text.delta\n"
CHAT_TOKEN = '"content":" t'
_DONE = b"[DONE]\n\n\r\n0\r\n\r\n"
_END = b"\r\n0\r\n\r\n"
_STAMP = re.compile(
    rb'(?:delta|content)":" (\d+)"'
)  # what a paced token of bench/harness/upstream.py says: when, in µs
_TAIL = max(len(TOKEN), len(CHAT_TOKEN), len(_DONE))  # bytes of what was seen that the next ones may belong to
_STALL_SECONDS = 60.0  # for one answer
WARMING = 8  # connections that ask once before it counts


class Load(Struct, frozen=True, kw_only=True):
    port: int
    path: str
    body: str
    connections: int
    requests: int  # of each connection
    hold: bool = False  # stop at the first token of each stream and keep it open until a second line
    token: str = TOKEN  # what there is one of for each token
    done: bool = True  # whether streams end with [DONE]
    times: Literal["", "first", "transit"] = ""  # to the first token of each answer, or of tokens that say when
    warm: bool = True  # ask before it counts
    module: str = "bench.harness.load"  # whose process makes it


class Counted(Struct, frozen=True):
    requests: int
    tokens: int
    p50_ms: float = 0.0
    p99_ms: float = 0.0


class Client(asyncio.Protocol):
    """One connection: asks `left` times, one after the other."""

    def __init__(self, load: Load) -> None:
        self._request = _http(load)
        self._streams = '"stream":true' in load.body
        self._token = load.token.encode()
        self._end = _DONE if load.done else b"\n\n" + _END
        self._times = load.times
        self._left = 0
        self._asked = 0
        self._tail = b""
        self._idle: asyncio.Future[None] | None = None
        self._patience: asyncio.Timeout | None = None  # with the answer that is to come
        self._heard: asyncio.Future[None] | None = None
        self.tokens = 0
        self.requests = 0
        self.took: list[int] = []  # µs

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    async def ask(self, times: int) -> None:
        self._left = times
        self._idle = asyncio.get_running_loop().create_future()
        self._ask()
        async with asyncio.timeout(_STALL_SECONDS) as self._patience:
            await self._idle

    async def ask_and_hold(self) -> None:
        """Ask, and return at the first token; the rest is left to come."""
        self._left = 1
        self._heard = asyncio.get_running_loop().create_future()
        self._ask()
        async with asyncio.timeout(_STALL_SECONDS):
            await self._heard

    def close(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._streams:
            self._stream_received(data)
        else:
            self._json_received(data)

    def _ask(self) -> None:
        self._asked = _now()
        self._transport.write(self._request)

    def _stream_received(self, data: bytes) -> None:
        seen = self._tail + data
        if not self._tail:
            self._check_status(data)
        # One byte less than the needle of what was seen before, so that no token is counted twice.
        tokens = seen.count(self._token, max(0, len(self._tail) + 1 - len(self._token)))
        self.tokens += tokens
        if tokens and self._times:
            self._time(data)
        if self.tokens and self._heard is not None and not self._heard.done():
            self._heard.set_result(None)
        if seen.endswith(self._end):
            self._answered()
        elif seen.endswith(_END):
            self._fail(f"a stream did not end as it should: {seen[-300:]!r}")
        else:
            self._tail = seen[-_TAIL:]

    def _time(self, data: bytes) -> None:
        now = _now()
        if self._times == "transit":
            self.took += [now - int(stamp) for stamp in _STAMP.findall(data)]
        elif self._asked:
            self.took.append(now - self._asked)
            self._asked = 0

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
        if self._idle is None or self._idle.done():
            return
        if self._left > 0:
            assert self._patience is not None
            self._patience.reschedule(asyncio.get_running_loop().time() + _STALL_SECONDS)
            self._ask()
        else:
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


def _now() -> int:
    """In µs, by a clock that all processes share."""
    return time.perf_counter_ns() // 1000


def _http(load: Load) -> bytes:
    body = load.body.encode()
    head = (
        f"POST {load.path} HTTP/1.1\r\nHost: 127.0.0.1:{load.port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _connect(load: Load, kind: type[Client]) -> list[Client]:
    loop = asyncio.get_running_loop()
    return [
        (await loop.create_connection(lambda: kind(load), "127.0.0.1", load.port))[1] for _ in range(load.connections)
    ]


async def _work(load: Load, clients: list[Client]) -> None:
    async with asyncio.TaskGroup() as asking:
        for client in clients:
            asking.create_task(client.ask_and_hold() if load.hold else client.ask(load.requests))


async def run(load: Load, kind: type[Client] = Client) -> None:
    clients = await _connect(load, kind)
    if load.warm and not load.hold:
        await _work(msgspec.structs.replace(load, requests=1), clients[:WARMING])
    for client in clients:
        client.requests = client.tokens = 0
        client.took.clear()
    await _say("ready")
    await _work(load, clients)
    counted = msgspec.json.encode(_counted(clients)).decode()
    if load.hold:
        await _say(counted)
    else:
        _print(counted)
    for client in clients:
        client.close()


def _counted(clients: list[Client]) -> Counted:
    took = sorted(one for client in clients for one in client.took) or [0]
    return Counted(
        requests=sum(client.requests for client in clients),
        tokens=sum(client.tokens for client in clients),
        p50_ms=took[len(took) // 2] / 1e3,
        p99_ms=took[len(took) * 99 // 100] / 1e3,
    )


async def _say(line: str) -> None:
    """Say a line and wait for the answer, while what comes on the connections is still taken in."""
    _print(line)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(run(msgspec.json.decode(sys.argv[1], type=Load)))

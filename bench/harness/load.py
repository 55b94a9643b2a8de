"""The load generator: many keep-alive connections that send requests, count tokens and check how each answer ended.

A separate process that is controlled by one JSON argument (a Load). It connects, sends one request on some connections
to warm up, prints "ready", waits for a line, sends the requests, and prints its counts as JSON. It examines only bytes,
since parsing would cost more than the measured server.
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
)  # text of a paced token of `bench/harness/upstream.py`: its send time in µs
_TAIL_BYTES = max(len(TOKEN), len(CHAT_TOKEN), len(_DONE))  # to retain: a match may continue in later data
_STALL_SECONDS = 60.0  # for one answer
WARM_UP_CONNECTIONS = 8  # connections with one request before the measurement


class Load(Struct, frozen=True, kw_only=True):
    port: int
    path: str
    body: str
    connections: int
    requests: int  # per connection
    hold: bool = False  # stop at the first token of each stream and leave it open until a second line
    token: str = TOKEN  # bytes that occur once per token
    done: bool = True  # whether streams end with [DONE]
    # measure the time to the first token of each answer, or the transit time of tokens that contain their send time
    times: Literal["", "first", "transit"] = ""
    warm: bool = True  # send warm-up requests
    module: str = "bench.harness.load"  # module of the load generator's process


class LoadCounts(Struct, frozen=True):
    requests: int
    tokens: int
    p50_ms: float = 0.0
    p99_ms: float = 0.0


class Client(asyncio.Protocol):
    """One connection that sends requests one after the other."""

    def __init__(self, load: Load) -> None:
        self._request = _render_request(load)
        self._streams = '"stream":true' in load.body
        self._token = load.token.encode()
        self._end = _DONE if load.done else b"\n\n" + _END
        self._times = load.times
        self._remaining = 0
        self._sent_at = 0
        self._tail = b""
        self._finished: asyncio.Future[None] | None = None
        self._answer_timeout: asyncio.Timeout | None = None  # for the pending answer
        self._first_token: asyncio.Future[None] | None = None
        self.tokens = 0
        self.requests = 0
        self.durations: list[int] = []  # µs

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    async def send_all(self, count: int) -> None:
        self._remaining = count
        self._finished = asyncio.get_running_loop().create_future()
        self._send()
        async with asyncio.timeout(_STALL_SECONDS) as self._answer_timeout:
            await self._finished

    async def send_and_hold(self) -> None:
        """Send a request and return at the first token; the stream stays open."""
        self._remaining = 1
        self._first_token = asyncio.get_running_loop().create_future()
        self._send()
        async with asyncio.timeout(_STALL_SECONDS):
            await self._first_token

    def close(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._streams:
            self._stream_received(data)
        else:
            self._json_received(data)

    def _send(self) -> None:
        self._sent_at = _now()
        self._transport.write(self._request)

    def _stream_received(self, data: bytes) -> None:
        received = self._tail + data
        if not self._tail:
            self._check_status(data)
        # Search from one byte less than a token before the new data, so that no token is counted twice.
        tokens = received.count(self._token, max(0, len(self._tail) + 1 - len(self._token)))
        self.tokens += tokens
        if tokens and self._times:
            self._record_times(data)
        if self.tokens and self._first_token is not None and not self._first_token.done():
            self._first_token.set_result(None)
        if received.endswith(self._end):
            self._finish_answer()
        elif received.endswith(_END):
            self._fail(f"a stream has an unexpected end: {received[-300:]!r}")
        else:
            self._tail = received[-_TAIL_BYTES:]

    def _record_times(self, data: bytes) -> None:
        now = _now()
        if self._times == "transit":
            self.durations += [now - int(stamp) for stamp in _STAMP.findall(data)]
        elif self._sent_at:
            self.durations.append(now - self._sent_at)
            self._sent_at = 0

    def _json_received(self, data: bytes) -> None:
        if not self._tail:
            self._check_status(data)
        self._tail += data
        head, gap, body = self._tail.partition(b"\r\n\r\n")
        if gap and len(body) == _content_length(head):
            self._finish_answer()

    def _check_status(self, data: bytes) -> None:
        if not data.startswith(b"HTTP/1.1 200"):
            self._fail(f"not a 200: {data[:500]!r}")

    def _finish_answer(self) -> None:
        self._tail = b""
        self.requests += 1
        self._remaining -= 1
        if self._finished is None or self._finished.done():
            return
        if self._remaining > 0:
            assert self._answer_timeout is not None
            self._answer_timeout.reschedule(asyncio.get_running_loop().time() + _STALL_SECONDS)
            self._send()
        else:
            self._finished.set_result(None)

    def _fail(self, sentence: str) -> None:
        for future in (self._finished, self._first_token):
            if future is not None and not future.done():
                future.set_exception(RuntimeError(sentence))
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the connection was lost: {exc}")


def _content_length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    raise RuntimeError(f"no content-length: {head!r}")


def _now() -> int:
    """Return the time in µs of a clock that all processes share."""
    return time.perf_counter_ns() // 1000


def _render_request(load: Load) -> bytes:
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


async def _send_load(load: Load, clients: list[Client]) -> None:
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(client.send_and_hold() if load.hold else client.send_all(load.requests))


async def run(load: Load, kind: type[Client] = Client) -> None:
    clients = await _connect(load, kind)
    if load.warm and not load.hold:
        await _send_load(msgspec.structs.replace(load, requests=1), clients[:WARM_UP_CONNECTIONS])
    for client in clients:
        client.requests = client.tokens = 0
        client.durations.clear()
    await _print_and_wait("ready")
    await _send_load(load, clients)
    counted = msgspec.json.encode(_count(clients)).decode()
    if load.hold:
        await _print_and_wait(counted)
    else:
        _print(counted)
    for client in clients:
        client.close()


def _count(clients: list[Client]) -> LoadCounts:
    durations = sorted(one for client in clients for one in client.durations) or [0]
    return LoadCounts(
        requests=sum(client.requests for client in clients),
        tokens=sum(client.tokens for client in clients),
        p50_ms=durations[len(durations) // 2] / 1e3,
        p99_ms=durations[len(durations) * 99 // 100] / 1e3,
    )


async def _print_and_wait(line: str) -> None:
    """Print a line and wait for a line on stdin, while the connections continue to receive data."""
    _print(line)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(run(msgspec.json.decode(sys.argv[1], type=Load)))

"""The load generator: many keep-alive connections that send requests, count tokens and measure times.

A separate process that reads a Load as one line of JSON. It builds all requests, connects, warms the server up, prints
"ready", waits for a line, sends the requests, and prints its counts as JSON. It examines only bytes, since parsing
would cost more than the measured server.
"""

import asyncio
import gc
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import cast

import msgspec
import uvloop
from msgspec import Struct
from msgspec.structs import replace

from bench.harness.servers import LOAD_CORE
from bench.harness.traffic import Traffic

TOKEN = "event: response.output_text.delta\n"
CHAT_TOKEN = '"content":" t'
_END = b"\r\n0\r\n\r\n"
_STAMP = re.compile(rb'(?:delta|content)":" (\d+)"')  # text of a paced token of the fake engine: its send time in µs
_TAIL_BYTES = max(len(TOKEN), len(CHAT_TOKEN), len(_END))  # to retain: a match may continue in later data
_STALL_SECONDS = 240.0  # for all answers of a connection
_WARM_UP_CONNECTIONS = 8


class Load(Struct, frozen=True, kw_only=True):
    port: int
    path: str
    traffic: Traffic
    connections: int
    requests: int  # per connection
    # Open all connections in the measured time, all at once; each sends as many requests as it can, until together they
    # have sent what `requests` says. (A limit in seconds would give too few answers on a machine that has other work.)
    compete: bool = False
    may_fail: bool = False  # count answers without tokens instead of failing
    hold: bool = False  # stop at the first token of each stream and leave it open until a second line
    token: str = TOKEN  # bytes that occur once per token
    stamped: bool = False  # tokens contain their send time
    warm_up: int = 8  # requests before the measurement
    core: int = LOAD_CORE
    module: str = "bench.harness.load"  # module of the load generator's process


class LoadCounts(Struct, frozen=True, kw_only=True):
    """Times in ms. The latency of an answer and the time to its first token begin with the request, or with the
    connection that was opened for it.
    """

    requests: int
    failed: int
    tokens: int
    seconds: float
    latency: tuple[float, float]  # p50 and p99, as the other times
    first: tuple[float, float]
    transit: tuple[float, float]
    answers: tuple[int, int]  # of the connection with the fewest and of that with the most


Budget = Iterator[int]  # ends when all requests have been sent, by one connection or by all together


class Client(asyncio.Protocol):
    """One connection that sends requests one after the other."""

    def __init__(self, load: Load, requests: Sequence[bytes]) -> None:
        self._requests = requests
        self._streams = b'"stream":true' in requests[0]
        self._token = load.token.encode()
        self._stamped = load.stamped
        self._budget: Budget = iter(())
        self._sent = 0
        self._waiting_since = 0
        self._first_pending = False
        self._tail = b""
        self._json_end = 0  # of the answer, once its head is complete
        self._finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._hold = load.hold
        self._may_fail = load.may_fail
        self.tokens = self.answers = self.failed = 0
        self.latencies: list[int] = []  # µs
        self.firsts: list[int] = []
        self.transits: list[int] = []

    @staticmethod
    def render(load: Load, body: bytes) -> bytes:
        head = (
            f"POST {load.path} HTTP/1.1\r\nHost: 127.0.0.1:{load.port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    async def send_all(self, budget: Budget, connecting_since: int = 0) -> None:
        self._budget = budget
        self._finished = asyncio.get_running_loop().create_future()
        if next(budget, None) is not None:
            self._send(connecting_since)
            async with asyncio.timeout(_STALL_SECONDS):
                await self._finished

    def close(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._streams:
            self._stream_received(data)
        else:
            self._json_received(data)

    def _send(self, since: int = 0) -> None:
        self._waiting_since, self._first_pending = since or now(), True
        self._transport.write(self._requests[self._sent % len(self._requests)])
        self._sent += 1

    def _stream_received(self, data: bytes) -> None:
        received = self._tail + data
        if not self._tail:
            self._check_status(data)
        # Search from one byte less than a token before the new data, so that no token is counted twice.
        tokens = received.count(self._token, max(0, len(self._tail) + 1 - len(self._token)))
        if tokens:
            self._count_tokens(tokens, data)
        if received.endswith(_END):
            self._finish_stream(received)
        else:
            self._tail = received[-_TAIL_BYTES:]

    def _finish_stream(self, received: bytes) -> None:
        if self._first_pending:
            error = received[received.find(b'"error":{') :][:300]
            if not self._may_fail:
                self._fail(f"an answer without tokens: {error!r}")
            self.failed += 1
        self._finish_answer()

    def _count_tokens(self, tokens: int, data: bytes) -> None:
        self.tokens += tokens
        if self._first_pending:
            self._first_pending = False
            self.firsts.append(now() - self._waiting_since)
            if self._hold and not self._finished.done():
                self._finished.set_result(None)
        if self._stamped:
            self.transits += [now() - int(stamp) for stamp in _STAMP.findall(data)]

    def _json_received(self, data: bytes) -> None:
        if not self._tail:
            self._check_status(data)
        self._tail += data
        if not self._json_end and (end := self._tail.find(b"\r\n\r\n")) >= 0:
            self._json_end = end + 4 + _content_length(self._tail[:end])
        if self._json_end and len(self._tail) >= self._json_end:
            if b'"status":"completed"' not in self._tail and b'"finish_reason":"stop"' not in self._tail:
                self._fail(f"not a completed response: {self._tail[:2000]!r}")
            self._json_end = 0
            self._finish_answer()

    def _check_status(self, data: bytes) -> None:
        if not data.startswith(b"HTTP/1.1 200"):
            self._fail(f"not a 200: {data[:500]!r}")

    def _finish_answer(self) -> None:
        self._tail = b""
        self.answers += 1
        self.latencies.append(now() - self._waiting_since)
        if self._finished.done():
            return
        if next(self._budget, None) is not None:
            self._send()
        else:
            self._finished.set_result(None)

    def _fail(self, sentence: str) -> None:
        if not self._finished.done():
            self._finished.set_exception(RuntimeError(sentence))
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the connection was lost: {exc}")


def _content_length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    raise RuntimeError(f"no content-length: {head!r}")


def now() -> int:
    """Return the time in µs of a clock that all processes share."""
    return time.perf_counter_ns() // 1000


class Generator:
    """All connections of one load."""

    def __init__(self, load: Load, kind: type[Client]) -> None:
        self._load = load
        self._kind = kind
        self._clients: list[Client] = []
        requests = self._make_requests("", load.connections * load.requests)
        self._parts = [requests[at :: load.connections] for at in range(load.connections)]

    async def warm_up(self) -> None:
        """Warm the server up with bodies of their own, on connections of their own."""
        load = self._load
        if load.hold or not load.warm_up:
            return
        connections = min(_WARM_UP_CONNECTIONS, load.warm_up)
        requests = self._make_requests("warm-up ", load.warm_up)
        clients = [await self._connect(requests[at::connections]) for at in range(connections)]
        await asyncio.gather(*(client.send_all(iter(range(load.warm_up // connections))) for client in clients))
        for client in clients:
            client.close()

    async def connect(self) -> None:
        if not self._load.compete:
            self._clients = [await self._connect(part) for part in self._parts]

    async def run(self) -> LoadCounts:
        start = now()
        load = self._load
        if load.compete:
            budget = iter(range(load.connections * load.requests))
            await asyncio.gather(*(self._connect_and_send(part, budget, start) for part in self._parts))
        else:
            await asyncio.gather(*(client.send_all(iter(range(load.requests))) for client in self._clients))
        return self._count(now() - start)

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def _make_requests(self, seed: str, count: int) -> list[bytes]:
        load = self._load
        bodies = replace(load.traffic, seed=seed + load.traffic.seed).make_bodies(count)
        return [self._kind.render(load, body) for body in bodies]

    async def _connect(self, requests: Sequence[bytes]) -> Client:
        loop, load = asyncio.get_running_loop(), self._load
        return (await loop.create_connection(lambda: self._kind(load, requests), "127.0.0.1", load.port))[1]

    async def _connect_and_send(self, requests: Sequence[bytes], budget: Budget, start: int) -> None:
        client = await self._connect(requests)
        self._clients.append(client)
        await client.send_all(budget, start)

    def _count(self, elapsed: int) -> LoadCounts:
        clients = self._clients
        answers = [client.answers for client in clients]
        return LoadCounts(
            requests=sum(answers),
            failed=sum(client.failed for client in clients),
            tokens=sum(client.tokens for client in clients),
            seconds=elapsed / 1e6,
            latency=_percentiles(client.latencies for client in clients),
            first=_percentiles(client.firsts for client in clients),
            transit=_percentiles(client.transits for client in clients),
            answers=(min(answers), max(answers)),
        )


def _percentiles(times: Iterable[list[int]]) -> tuple[float, float]:
    values = sorted(chain.from_iterable(times)) or [0]
    return values[len(values) // 2] / 1e3, values[len(values) * 99 // 100] / 1e3


async def run(load: Load, kind: type[Client] = Client) -> None:
    generator = Generator(load, kind)
    await generator.warm_up()
    await generator.connect()
    gc.collect()
    gc.disable()
    await _print_and_wait("ready")
    counted = msgspec.json.encode(await generator.run()).decode()
    if load.hold:
        await _print_and_wait(counted)
    else:
        _print(counted)
    generator.close()


async def _print_and_wait(line: str) -> None:
    """Print a line and wait for a line on stdin, while the connections continue to receive data."""
    _print(line)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(kind: type[Client] = Client) -> None:
    try:
        uvloop.run(run(msgspec.json.decode(sys.stdin.readline(), type=Load), kind))
    except RuntimeError as error:
        sys.exit(f"load generator: {error}")


if __name__ == "__main__":
    main()

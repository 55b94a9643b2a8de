"""A load generator: sends requests at a fixed rate, regardless of earlier results, and records each result.

It runs as a separate process, receives a LoadSpec as its JSON argument, and writes the results as JSON. Only the head
and the length of an answer are evaluated.
"""

import asyncio
import sys
import time
from collections import deque
from typing import cast

import msgspec
import uvloop
from msgspec import Struct

KINDS = 10  # number of different questions
_ANSWER_SECONDS = 30.0  # for one answer
_RETRY_AFTER = b"\nretry-after: "


class LoadSpec(Struct, frozen=True, kw_only=True):
    port: int
    rate: float  # requests per second
    seconds: float
    before: str = ""  # text in front of the question
    key: str = ""
    max_connections: int = 2000


class LoadResult(Struct, frozen=True):
    """One result: the time of the request (wall clock), the status (0: no answer), and the latency in seconds."""

    at: float
    status: int
    took: float
    later: bool  # whether the answer has a Retry-After header


class LoadConnection(asyncio.Protocol):
    """One connection with one request at a time."""

    def __init__(self) -> None:
        self.closed = False
        self._head = b""
        self._remaining = -1  # bytes of the body; -1 until the head is complete
        self._answer: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(b"")

    async def send(self, request: bytes) -> bytes:
        """Send a request and return the head of its answer once the body is complete; b"" if there is no answer."""
        self._answer = asyncio.get_running_loop().create_future()
        self._head, self._remaining = b"", -1
        self._transport.write(request)
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return await self._answer
        except TimeoutError:
            self._transport.abort()
            return b""

    def data_received(self, data: bytes) -> None:
        if self._remaining < 0:
            self._head += data
            head, gap, body = self._head.partition(b"\r\n\r\n")
            if not gap:
                return
            self._head, data = head.lower(), body
            self._remaining = int(self._head.partition(b"\ncontent-length: ")[2].partition(b"\r\n")[0])
        self._remaining -= len(data)
        if self._remaining <= 0 and self._answer is not None and not self._answer.done():
            self._answer.set_result(self._head)

    def close(self) -> None:
        self._transport.abort()


class LoadGenerator:
    def __init__(self, spec: LoadSpec) -> None:
        self._spec = spec
        self._requests = [_render_request(spec, number) for number in range(KINDS)]
        self._idle: deque[LoadConnection] = deque()
        self._open_connections = 0
        self.results: list[LoadResult] = []

    async def run(self) -> None:
        spec, loop = self._spec, asyncio.get_running_loop()
        began, number = loop.time(), 0
        async with asyncio.TaskGroup() as tasks:
            while (due := number / spec.rate) < spec.seconds:
                if (delay := began + due - loop.time()) > 0:
                    await asyncio.sleep(delay)
                if self._idle or self._open_connections < spec.max_connections:
                    tasks.create_task(self._send_one(self._requests[number % KINDS]))
                number += 1
        for connection in self._idle:
            connection.close()

    async def _send_one(self, request: bytes) -> None:
        at = time.time()
        began = time.perf_counter()
        connection = await self._acquire_connection()
        head = b"" if connection is None else await connection.send(request)
        status = int(head[9:12]) if head else 0
        self.results.append(LoadResult(at, status, time.perf_counter() - began, _RETRY_AFTER in head))
        if connection is not None and not connection.closed and b"\nconnection: close" not in head:
            self._idle.append(connection)
        elif connection is not None:
            connection.close()
            self._open_connections -= 1

    async def _acquire_connection(self) -> LoadConnection | None:
        while self._idle:
            if not (connection := self._idle.pop()).closed:
                return connection
            self._open_connections -= 1
        self._open_connections += 1
        try:
            return (await asyncio.get_running_loop().create_connection(LoadConnection, "127.0.0.1", self._spec.port))[1]
        except OSError:
            self._open_connections -= 1
            return None


def question_text(number: int) -> str:
    return f"Question {number}?"


def _render_request(spec: LoadSpec, number: int) -> bytes:
    body = f'{{"model":"fake","input":"{spec.before}{question_text(number)}"}}'.encode()
    head = f"POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1:{spec.port}\r\nContent-Type: application/json\r\n"
    key = f"Authorization: Bearer {spec.key}\r\n" if spec.key else ""
    return f"{head}{key}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def main(spec: LoadSpec) -> None:
    generator = LoadGenerator(spec)
    await generator.run()
    sys.stdout.write(msgspec.json.encode(generator.results).decode())


if __name__ == "__main__":
    uvloop.run(main(msgspec.json.decode(sys.argv[1], type=LoadSpec)))

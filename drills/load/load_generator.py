"""A crowd: requests at a given pace, whatever becomes of those before, and what each got. A process of its own.

It is told what to do by one JSON argument (Asks), and says what came of it as JSON. It looks at the head of an answer
and its length alone.
"""

import asyncio
import sys
import time
from collections import deque
from typing import cast

import msgspec
import uvloop
from msgspec import Struct

KINDS = 10  # of questions
_PATIENCE = 30.0  # seconds for an answer
_RETRY = b"\nretry-after: "


class Asks(Struct, frozen=True, kw_only=True):
    port: int
    rate: float  # requests in a second
    seconds: float
    before: str = ""  # the question
    key: str = ""
    most: int = 2000  # connections


class Got(Struct, frozen=True):
    """One answer: when it was asked for (of a clock that all share), its status (0: none), and how long it took."""

    at: float
    status: int
    took: float
    later: bool  # is there a Retry-After?


class Client(asyncio.Protocol):
    """One connection, and its requests one after the other."""

    def __init__(self) -> None:
        self.closed = False
        self._head = b""
        self._left = -1  # bytes of the body; -1: the head is not here yet
        self._answer: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(b"")

    async def ask(self, request: bytes) -> bytes:
        """The head of the answer, once all of it is there; nothing if it never comes."""
        self._answer = asyncio.get_running_loop().create_future()
        self._head, self._left = b"", -1
        self._transport.write(request)
        try:
            async with asyncio.timeout(_PATIENCE):
                return await self._answer
        except TimeoutError:
            self._transport.abort()
            return b""

    def data_received(self, data: bytes) -> None:
        if self._left < 0:
            self._head += data
            head, gap, rest = self._head.partition(b"\r\n\r\n")
            if not gap:
                return
            self._head, data = head.lower(), rest
            self._left = int(self._head.partition(b"\ncontent-length: ")[2].partition(b"\r\n")[0])
        self._left -= len(data)
        if self._left <= 0 and self._answer is not None and not self._answer.done():
            self._answer.set_result(self._head)

    def close(self) -> None:
        self._transport.abort()


class Crowd:
    def __init__(self, asks: Asks) -> None:
        self._asks = asks
        self._requests = [_http(asks, number) for number in range(KINDS)]
        self._idle: deque[Client] = deque()
        self._all = 0
        self.got: list[Got] = []

    async def come(self) -> None:
        asks, loop = self._asks, asyncio.get_running_loop()
        began, number = loop.time(), 0
        async with asyncio.TaskGroup() as asking:
            while (due := number / asks.rate) < asks.seconds:
                if (early := began + due - loop.time()) > 0:
                    await asyncio.sleep(early)
                if self._idle or self._all < asks.most:
                    asking.create_task(self._one(self._requests[number % KINDS]))
                number += 1
        for client in self._idle:
            client.close()

    async def _one(self, request: bytes) -> None:
        at = time.time()
        began = time.perf_counter()
        client = await self._client()
        head = b"" if client is None else await client.ask(request)
        status = int(head[9:12]) if head else 0
        self.got.append(Got(at, status, time.perf_counter() - began, _RETRY in head))
        if client is not None and not client.closed and b"\nconnection: close" not in head:
            self._idle.append(client)
        elif client is not None:
            client.close()
            self._all -= 1

    async def _client(self) -> Client | None:
        while self._idle:
            if not (client := self._idle.pop()).closed:
                return client
            self._all -= 1
        self._all += 1
        try:
            return (await asyncio.get_running_loop().create_connection(Client, "127.0.0.1", self._asks.port))[1]
        except OSError:
            self._all -= 1
            return None


def question(number: int) -> str:
    return f"Question {number}?"


def _http(asks: Asks, number: int) -> bytes:
    body = f'{{"model":"fake","input":"{asks.before}{question(number)}"}}'.encode()
    head = f"POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1:{asks.port}\r\nContent-Type: application/json\r\n"
    key = f"Authorization: Bearer {asks.key}\r\n" if asks.key else ""
    return f"{head}{key}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def main(asks: Asks) -> None:
    crowd = Crowd(asks)
    await crowd.come()
    sys.stdout.write(msgspec.json.encode(crowd.got).decode())


if __name__ == "__main__":
    uvloop.run(main(msgspec.json.decode(sys.argv[1], type=Asks)))

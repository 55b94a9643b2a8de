"""The edge as a process of its own, and a client that sends it exactly the bytes it is given."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from msgspec import Struct

SECONDS = 30.0  # for anything that should take a moment, on a busy machine
TRIES = 9  # where the clocks of a server are so strict that a busy machine may miss them


class Process:
    def __init__(self, **settings: Any) -> None:
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `stop`
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tests.transport.minimal_app", json.dumps({"port": 0, **settings})],
            stdout=subprocess.PIPE,
            stderr=self.errors,
        )
        self.port = 0

    def started(self) -> "Process":
        """Wait until it listens. It ends by itself if it cannot, and then there is no address."""
        assert self._child.stdout
        address = self._child.stdout.readline().decode().strip()
        assert address, self.said()
        self.port = int(address.rpartition(":")[2])
        return self

    def send(self, number: signal.Signals) -> None:
        self._child.send_signal(number)

    def ended(self) -> int:
        return self._child.wait(SECONDS)

    def running(self) -> bool:
        return self._child.poll() is None

    def stop(self) -> None:
        self._child.kill()
        self._child.communicate()
        self.errors.close()

    def said(self) -> str:
        return os.pread(self.errors.fileno(), 1 << 20, 0).decode()

    async def says(self, words: str) -> None:
        async with asyncio.timeout(SECONDS):
            while words not in self.said():  # noqa: ASYNC110 - another process says it
                await asyncio.sleep(0.02)

    def resident(self) -> int:
        with open(f"/proc/{self._child.pid}/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def process(**settings: Any) -> Iterator[Process]:
    one = Process(**settings)
    try:
        yield one
    finally:
        one.stop()


class Reply(Struct, frozen=True):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        assert self.headers["content-type"] == "application/json"
        assert self.headers["x-request-id"]
        error = json.loads(self.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return dict(error)


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, since: float) -> None:
        self.reader = reader
        self.writer = writer
        self.since = since  # when it began to connect

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def ask(self, data: bytes) -> Reply:
        await self.send(data)
        return await self.reply()

    async def reply(self) -> Reply:
        async with asyncio.timeout(SECONDS):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
            return Reply(int(head[0].split()[1]), headers, body)

    async def hung_up(self) -> bytes:
        """What is left to read until the server hangs up, which it must."""
        async with asyncio.timeout(SECONDS):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""


@asynccontextmanager
async def connected(one: Process) -> AsyncIterator[Client]:
    since = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", one.port)
    try:
        yield Client(reader, writer, since)
    finally:
        writer.transport.abort()


@asynccontextmanager
async def kept(one: Process) -> AsyncIterator[Client]:
    """A connection that has had an answer. Where clocks are strict, a busy machine may need to try again for that."""
    for _ in range(TRIES):
        async with connected(one) as client:
            if (await client.ask(request())).status == 200:
                yield client
                return
    raise TimeoutError("No request came in time.")


def request(
    path: str = "/health", *lines: str, method: str = "GET", body: bytes = b"", host: str = "Host: localhost"
) -> bytes:
    head = [f"{method} {path} HTTP/1.1", host, *lines]
    if body:
        head += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*head, "", ""]).encode("latin-1") + body

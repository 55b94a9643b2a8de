"""The minimal application as a server process, and an HTTP/1.1 client that sends raw bytes."""

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

DEADLINE_SECONDS = 30.0  # limit for operations that take a moment, on a busy machine
MAX_ATTEMPTS = 9  # where the timeouts of a server are so short that a busy machine may miss them


class ServerProcess:
    """A child process that runs the minimal application on a free port."""

    def __init__(self, **settings: Any) -> None:
        self.stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `stop`
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tests.transport.minimal_app", json.dumps({"port": 0, **settings})],
            stdout=subprocess.PIPE,
            stderr=self.stderr,
        )
        self.port = 0

    def wait_started(self) -> "ServerProcess":
        """Wait until the server listens. If it cannot, it exits by itself and prints no address."""
        assert self._child.stdout
        address = self._child.stdout.readline().decode().strip()
        assert address, self.read_stderr()
        self.port = int(address.rpartition(":")[2])
        return self

    def send_signal(self, number: signal.Signals) -> None:
        self._child.send_signal(number)

    def wait_exit(self) -> int:
        return self._child.wait(DEADLINE_SECONDS)

    def is_running(self) -> bool:
        return self._child.poll() is None

    def stop(self) -> None:
        self._child.kill()
        self._child.communicate()
        self.stderr.close()

    def read_stderr(self) -> str:
        return os.pread(self.stderr.fileno(), 1 << 20, 0).decode()

    async def wait_for_stderr(self, text: str) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while text not in self.read_stderr():  # noqa: ASYNC110 - polls the output of another process
                await asyncio.sleep(0.02)

    def read_resident_bytes(self) -> int:
        with open(f"/proc/{self._child.pid}/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def run_server(**settings: Any) -> Iterator[ServerProcess]:
    server = ServerProcess(**settings)
    try:
        yield server
    finally:
        server.stop()


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


class RawClient:
    """One HTTP/1.1 connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, started_at: float) -> None:
        self.reader = reader
        self.writer = writer
        self.started_at = started_at  # start of the connection attempt, in monotonic seconds

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def fetch(self, data: bytes) -> Reply:
        await self.send(data)
        return await self.read_reply()

    async def read_reply(self) -> Reply:
        async with asyncio.timeout(DEADLINE_SECONDS):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
            return Reply(int(head[0].split()[1]), headers, body)

    async def read_until_closed(self) -> bytes:
        """Return the remaining bytes once the server closes the connection, which it must do within the deadline."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""


@asynccontextmanager
async def connect(server: ServerProcess) -> AsyncIterator[RawClient]:
    started_at = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        yield RawClient(reader, writer, started_at)
    finally:
        writer.transport.abort()


@asynccontextmanager
async def connect_persistent(server: ServerProcess) -> AsyncIterator[RawClient]:
    """Open a connection on which one request has been answered.

    Where timeouts are strict, a busy machine may need several attempts.
    """
    for _ in range(MAX_ATTEMPTS):
        async with connect(server) as client:
            if (await client.fetch(make_request())).status == 200:
                yield client
                return
    raise TimeoutError("No request was answered in time.")


def make_request(
    path: str = "/health", *lines: str, method: str = "GET", body: bytes = b"", host: str = "Host: localhost"
) -> bytes:
    head = [f"{method} {path} HTTP/1.1", host, *lines]
    if body:
        head += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*head, "", ""]).encode("latin-1") + body

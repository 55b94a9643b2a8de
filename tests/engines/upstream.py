"""A server on a unix socket that does what a test tells it to: the other end of the engine client."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter
Behaviour = Callable[[Reader, Writer], Awaitable[None]]

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


@asynccontextmanager
async def upstream(behave: Behaviour) -> AsyncIterator[str]:
    """The path of its socket. `behave` is called for every connection, which ends when it returns."""

    async def serve(reader: Reader, writer: Writer) -> None:
        try:
            await behave(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client went away, as many of these tests want it to
        finally:
            writer.close()

    with tempfile.TemporaryDirectory(prefix="up-") as folder:  # shorter than pytest's: a socket's path has 100 bytes
        path = str(Path(folder) / "s")
        server = await asyncio.start_unix_server(serve, path)
        try:
            yield path
        finally:
            server.close()


async def request(reader: Reader) -> bytes:
    """The next request's body; the path is in front of it."""
    head = await reader.readuntil(b"\r\n\r\n")
    size = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
    return head.split(b" ")[1] + b" " + await reader.readexactly(size)


def answer(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def piece(data: bytes) -> bytes:
    """A chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(data: bytes) -> bytes:
    return piece(b"data: " + data + b"\n\n")

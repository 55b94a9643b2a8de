"""A server on a unix socket that does what a test tells it to: the other end of the engine client."""

from tests.support.local_servers import Behaviour as Behaviour
from tests.support.local_servers import Reader as Reader
from tests.support.local_servers import Writer as Writer
from tests.support.local_servers import unix as upstream  # `upstream(behave)` gives the path of its socket

__all__ = ["END", "STREAM", "Behaviour", "Reader", "Writer", "answer", "event", "piece", "request", "upstream"]

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


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

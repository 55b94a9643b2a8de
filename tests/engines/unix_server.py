"""HTTP server on a unix socket whose behaviour a test defines: the peer of the engine client."""

from tests.support.local_servers import ConnectionHandler, Reader, Writer
from tests.support.local_servers import serve_unix as upstream  # `upstream(behave)` yields the path of its socket

__all__ = [
    "END",
    "STREAM",
    "ConnectionHandler",
    "Reader",
    "Writer",
    "http_chunk",
    "json_response",
    "read_request",
    "sse_event",
    "upstream",
]

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


async def read_request(reader: Reader) -> bytes:
    """Read the next request; return its path, a space and its body."""
    head = await reader.readuntil(b"\r\n\r\n")
    size = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
    return head.split(b" ")[1] + b" " + await reader.readexactly(size)


def json_response(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def http_chunk(data: bytes) -> bytes:
    """Return one chunk of a chunked body (RFC 9112 §7.1)."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def sse_event(data: bytes) -> bytes:
    """Return a server-sent event as one chunk."""
    return http_chunk(b"data: " + data + b"\n\n")

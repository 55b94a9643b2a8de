"""TCP proxy in front of a server that records the bytes of clients and the WebSocket messages of the server."""

import contextlib
import json
import socket
import socketserver
from collections.abc import Iterator
from threading import Thread
from typing import Any

from msgspec import Struct

_TEXT = 1
_SWITCHED = b"HTTP/1.1 101 "
_EXTENDED_SIZE_BYTES = {126: 2, 127: 8}  # width of the extended payload length (RFC 6455 §5.2)


class RecordedRequest(Struct, frozen=True):
    """One request. After an upgrade it holds the messages of both sides."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any = None
    messages: list[Any] = []
    received: list[Any] = []


class _ConnectionRecord(Struct):
    """The bytes of both directions of one connection."""

    sent: bytearray
    received: bytearray


class RecordingProxy(socketserver.ThreadingTCPServer):
    """Forwards all bytes unchanged."""

    daemon_threads = True

    def __init__(self, upstream_port: int) -> None:
        super().__init__(("127.0.0.1", 0), _ProxyHandler)
        self.upstream_port = upstream_port
        self.connections: list[_ConnectionRecord] = []

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def get_posts(self) -> list[RecordedRequest]:
        """Return the POST requests, in the order of their connections."""
        return [request for request in self._parse_all() if request.method == "POST"]

    def get_upgrades(self) -> list[RecordedRequest]:
        return [request for request in self._parse_all() if "upgrade" in request.headers]

    def get_bodies(self) -> list[Any]:
        return [request.body for request in self.get_posts()]

    def _parse_all(self) -> Iterator[RecordedRequest]:
        for connection in [*self.connections]:
            yield from _parse_requests(bytes(connection.sent), bytes(connection.received))


@contextlib.contextmanager
def run_recording_proxy(port: int) -> Iterator[RecordingProxy]:
    with RecordingProxy(port) as proxy:
        thread = Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()


class _ProxyHandler(socketserver.BaseRequestHandler):
    """The connection of one client."""

    server: RecordingProxy

    def handle(self) -> None:
        recorded = _ConnectionRecord(bytearray(), bytearray())
        self.server.connections.append(recorded)
        with socket.create_connection(("127.0.0.1", self.server.upstream_port)) as upstream:
            response_thread = Thread(target=_relay, args=(upstream, self.request, recorded.received))
            response_thread.start()
            _relay(self.request, upstream, recorded.sent)
            response_thread.join()


def _relay(source: socket.socket, sink: socket.socket, buffer: bytearray) -> None:
    """Forward and record bytes until either side closes or fails."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            buffer += data
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def _parse_requests(sent: bytes, received: bytes) -> Iterator[RecordedRequest]:
    while sent:
        line, headers, remaining = _parse_head(sent)
        method, path, _ = line.split()
        if "upgrade" in headers and _SWITCHED in received:
            _, _, frames = _parse_head(received[received.index(_SWITCHED) :])  # other responses may precede it
            yield RecordedRequest(
                method, path, headers, None, [*_parse_messages(remaining)], [*_parse_messages(frames)]
            )
            return
        assert "transfer-encoding" not in headers, f"{line} uses chunked encoding"
        size = int(headers.get("content-length", "0"))
        yield RecordedRequest(method, path, headers, json.loads(remaining[:size] or b"null"))
        sent = remaining[size:]


def _parse_head(data: bytes) -> tuple[str, dict[str, str], bytes]:
    head, _, remaining = data.partition(b"\r\n\r\n")
    line, *lines = head.decode("latin-1").split("\r\n")
    pairs = [each.partition(":") for each in lines]
    return line, {name.lower(): value.strip() for name, _, value in pairs}, remaining


def _parse_messages(data: bytes) -> Iterator[Any]:
    """Yield the messages of complete, uncompressed text frames; control frames are skipped."""
    while len(data) > 2:
        size, position = data[1] & 0x7F, 2
        if width := _EXTENDED_SIZE_BYTES.get(size):
            size, position = int.from_bytes(data[2 : 2 + width], "big"), 2 + width
        mask = data[position : position + 4] if data[1] & 0x80 else b"\0\0\0\0"
        position += 4 if data[1] & 0x80 else 0
        text, kind = data[position : position + size], data[0]
        if kind & 0x0F == _TEXT and len(text) == size:
            assert kind & 0xF0 == 0x80, "a fragmented or compressed message"
            yield json.loads(_unmask(text, mask))
        data = data[position + size :]


def _unmask(text: bytes, mask: bytes) -> bytes:
    key = (mask * (len(text) // 4 + 1))[: len(text)]
    return (int.from_bytes(text, "big") ^ int.from_bytes(key, "big")).to_bytes(len(text), "big")

"""A port in front of a server that keeps what clients send through it, byte for byte, and what they hear on sockets."""

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
_SIZES = {126: 2, 127: 8}  # in how many bytes a longer size is written


class Sent(Struct, frozen=True):
    """One request. After an upgrade the messages of both sides follow."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any = None
    messages: list[Any] = []
    heard: list[Any] = []


class _Talk(Struct):
    """What went each way on one connection."""

    sent: bytearray
    heard: bytearray


class Tap(socketserver.ThreadingTCPServer):
    """Passes on what comes, unchanged."""

    daemon_threads = True

    def __init__(self, behind: int) -> None:
        super().__init__(("127.0.0.1", 0), _Line)
        self.behind = behind
        self.talks: list[_Talk] = []

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def posts(self) -> list[Sent]:
        """In the order in which their connections were made."""
        return [sent for sent in self._all() if sent.method == "POST"]

    def upgrades(self) -> list[Sent]:
        return [sent for sent in self._all() if "upgrade" in sent.headers]

    def bodies(self) -> list[Any]:
        return [sent.body for sent in self.posts()]

    def _all(self) -> Iterator[Sent]:
        for talk in [*self.talks]:
            yield from _requests(bytes(talk.sent), bytes(talk.heard))


@contextlib.contextmanager
def tapping(port: int) -> Iterator[Tap]:
    with Tap(port) as tap:
        serving = Thread(target=tap.serve_forever, kwargs={"poll_interval": 0.05})
        serving.start()
        try:
            yield tap
        finally:
            tap.shutdown()
            serving.join()


class _Line(socketserver.BaseRequestHandler):
    """One client."""

    server: Tap

    def handle(self) -> None:
        talk = _Talk(bytearray(), bytearray())
        self.server.talks.append(talk)
        with socket.create_connection(("127.0.0.1", self.server.behind)) as far:
            back = Thread(target=_pass_on, args=(far, self.request, talk.heard))
            back.start()
            _pass_on(self.request, far, talk.sent)
            back.join()


def _pass_on(source: socket.socket, sink: socket.socket, kept: bytearray) -> None:
    """Until either side is gone, however that went."""
    with contextlib.suppress(OSError):
        while piece := source.recv(1 << 16):
            kept += piece
            sink.sendall(piece)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def _requests(sent: bytes, heard: bytes) -> Iterator[Sent]:
    while sent:
        line, headers, rest = _head(sent)
        method, path, _ = line.split()
        if "upgrade" in headers and _SWITCHED in heard:
            _, _, answers = _head(heard[heard.index(_SWITCHED) :])  # other requests may have come before it
            yield Sent(method, path, headers, None, [*_messages(rest)], [*_messages(answers)])
            return
        assert "transfer-encoding" not in headers, f"{line} comes in chunks"
        size = int(headers.get("content-length", "0"))
        yield Sent(method, path, headers, json.loads(rest[:size] or b"null"))
        sent = rest[size:]


def _head(data: bytes) -> tuple[str, dict[str, str], bytes]:
    head, _, rest = data.partition(b"\r\n\r\n")
    line, *lines = head.decode("latin-1").split("\r\n")
    pairs = [each.partition(":") for each in lines]
    return line, {name.lower(): value.strip() for name, _, value in pairs}, rest


def _messages(data: bytes) -> Iterator[Any]:
    """Of whole text frames, without compression; pings and closes are nothing that was said."""
    while len(data) > 2:
        size, place = data[1] & 0x7F, 2
        if width := _SIZES.get(size):
            size, place = int.from_bytes(data[2 : 2 + width], "big"), 2 + width
        mask = data[place : place + 4] if data[1] & 0x80 else b"\0\0\0\0"
        place += 4 if data[1] & 0x80 else 0
        text, kind = data[place : place + size], data[0]
        if kind & 0x0F == _TEXT and len(text) == size:
            assert kind & 0xF0 == 0x80, "a message in pieces, or compressed"
            yield json.loads(_unmasked(text, mask))
        data = data[place + size :]


def _unmasked(text: bytes, mask: bytes) -> bytes:
    whole = (mask * (len(text) // 4 + 1))[: len(text)]
    return (int.from_bytes(text, "big") ^ int.from_bytes(whole, "big")).to_bytes(len(text), "big")

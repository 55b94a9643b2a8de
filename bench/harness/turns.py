"""One conversation of many turns with a server, in one of three ways, and what each turn of it took.

A process of its own, told what to do by one JSON argument (a Talk). It is the same plain client for all ways, on one
connection: what differs is how a request and an answer are framed.
"""

import socket
import sys
import time
from typing import Protocol

import msgspec
from msgspec import Struct

from bench.harness.conversation_script import Conversation, Json, Way
from bench.harness.process_meter import cpu_ns

_PATH = "/v1/responses"
_FIRST = b"response.created"
_COMPLETED = b'{"type":"response.completed"'
_PIECE = 1 << 18


class Talk(Struct, frozen=True, kw_only=True):
    port: int
    pid: int  # of the server
    way: Way
    nonce: str
    turns: int


class Turn(Struct, frozen=True, kw_only=True):
    sent: int  # bytes
    first_ms: float  # to the first event
    whole_ms: float
    prefill: int  # tokens of the prompt that the engine did not have in its cache


class Talked(Struct, frozen=True, kw_only=True):
    turns: list[Turn]
    cpu_ms: float  # of the server, in all


class Framing(Protocol):
    def request(self, body: bytes) -> bytes: ...

    def last(self, heard: bytes) -> bytes | None:
        """The JSON of the last event; None if it has not come."""


class Http:
    def __init__(self, port: int) -> None:
        self._head = f"POST {_PATH} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"

    def request(self, body: bytes) -> bytes:
        return f"{self._head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def last(self, heard: bytes) -> bytes | None:
        if heard and not heard.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"not a 200: {heard[:1000]!r}")
        if not heard.endswith(b"\r\n0\r\n\r\n"):
            return None
        events = _without_chunks(heard.partition(b"\r\n\r\n")[2])
        at = events.rfind(b"data: " + _COMPLETED)
        return events[at + len("data: ") : events.index(b"\n\n", at)] if at >= 0 else b"{}"


class WebSocket:
    def __init__(self, connection: socket.socket, port: int) -> None:
        connection.sendall(upgrade(port))
        answer = connection.recv(_PIECE)
        if not answer.startswith(b"HTTP/1.1 101") or not answer.endswith(b"\r\n\r\n"):
            raise RuntimeError(f"not upgraded: {answer!r}")

    def request(self, body: bytes) -> bytes:
        return frame(body)

    def last(self, heard: bytes) -> bytes | None:
        at = 0
        while (start := at + head_size(heard, at)) <= len(heard):
            at = start + payload_size(heard, at)
            if heard.startswith((_COMPLETED, b'{"type":"error"'), start) and at <= len(heard):
                return heard[start:at]
        return None


def upgrade(port: int) -> bytes:
    lines = f"GET {_PATH} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Connection: Upgrade", "Upgrade: websocket"
    key = "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
    return "\r\n".join([*lines, *key, "", ""]).encode()


def frame(text: bytes) -> bytes:
    """Of a client, with a mask of zeros: it changes nothing, and the server has to take it off all the same."""
    if len(text) < 126:
        head = bytes((0x81, 0x80 | len(text)))
    elif len(text) < 1 << 16:
        head = b"\x81\xfe" + len(text).to_bytes(2, "big")
    else:
        head = b"\x81\xff" + len(text).to_bytes(8, "big")
    return head + bytes(4) + text


def head_size(heard: bytes, at: int) -> int:
    """Of the server's frame there; more than is left, if its head has not come."""
    return {126: 4, 127: 10}.get(heard[at + 1], 2) if at + 1 < len(heard) else 2


def payload_size(heard: bytes, at: int) -> int:
    size = heard[at + 1]
    return size if size < 126 else int.from_bytes(heard[at + 2 : at + head_size(heard, at)], "big")


def talked(talk: Talk) -> Talked:
    before = cpu_ns(talk.pid)
    with socket.create_connection(("127.0.0.1", talk.port), timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        framing: Framing = WebSocket(connection, talk.port) if talk.way == "socket" else Http(talk.port)
        conversation = Conversation(talk.way, talk.nonce, talk.turns)
        body, turns = conversation.first(), []
        for number in range(1, talk.turns + 1):
            turn, response = _turn(connection, framing, body)
            turns.append(turn)
            if number < talk.turns:
                body = conversation.next(number, response)
    return Talked(turns=turns, cpu_ms=(cpu_ns(talk.pid) - before) / 1e6)


def _turn(connection: socket.socket, framing: Framing, body: bytes) -> tuple[Turn, Json]:
    request, heard, first = framing.request(body), b"", 0.0
    began = time.perf_counter()
    connection.sendall(request)
    while (last := framing.last(heard)) is None:
        piece = connection.recv(_PIECE)
        if not piece:
            raise RuntimeError(f"the server hung up: {heard[-500:]!r}")
        heard += piece
        if not first and _FIRST in heard:
            first = time.perf_counter()
    ended = time.perf_counter()
    response = msgspec.json.decode(last).get("response")
    if response is None:
        raise RuntimeError(f"it did not complete: {heard[-500:]!r}")
    usage = response["usage"]
    prefill = usage["input_tokens"] - usage["input_tokens_details"]["cached_tokens"]
    took = Turn(sent=len(request), first_ms=(first - began) * 1e3, whole_ms=(ended - began) * 1e3, prefill=prefill)
    return took, response


def _without_chunks(body: bytes) -> bytes:
    pieces, at = [], 0
    while size := int(body[at : (end := body.index(b"\r\n", at))], 16):
        pieces.append(body[end + 2 : end + 2 + size])
        at = end + 2 + size + 2
    return b"".join(pieces)


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(talked(msgspec.json.decode(sys.argv[1], type=Talk))))

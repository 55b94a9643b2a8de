"""Runs one conversation of many turns with a server, in one of three modes, and measures each turn.

A separate process that is controlled by one JSON argument (a ConversationLoad). The same plain client on one connection
serves all modes; only the framing of requests and answers differs.
"""

import socket
import sys
import time
from typing import Protocol

import msgspec
from msgspec import Struct

from bench.harness.conversation_script import Conversation, Json, Mode
from bench.harness.process_meter import cpu_ns

_PATH = "/v1/responses"
_FIRST_EVENT = b"response.created"
_COMPLETED = b'{"type":"response.completed"'
_READ_BYTES = 1 << 18


class ConversationLoad(Struct, frozen=True, kw_only=True):
    port: int
    pid: int  # of the server
    mode: Mode
    nonce: str
    turns: int


class Turn(Struct, frozen=True, kw_only=True):
    sent: int  # bytes
    first_ms: float  # until the first event
    whole_ms: float
    prefill: int  # tokens of the prompt that were not in the engine's cache


class ConversationResult(Struct, frozen=True, kw_only=True):
    turns: list[Turn]
    cpu_ms: float  # CPU time of the server for all turns


class Framing(Protocol):
    def frame_request(self, body: bytes) -> bytes: ...

    def find_last_event(self, received: bytes) -> bytes | None:
        """Return the JSON of the last event, or None if it has not arrived."""


class HttpFraming:
    def __init__(self, port: int) -> None:
        self._head = f"POST {_PATH} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"

    def frame_request(self, body: bytes) -> bytes:
        return f"{self._head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def find_last_event(self, received: bytes) -> bytes | None:
        if received and not received.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"not a 200: {received[:1000]!r}")
        if not received.endswith(b"\r\n0\r\n\r\n"):
            return None
        events = _remove_chunk_framing(received.partition(b"\r\n\r\n")[2])
        at = events.rfind(b"data: " + _COMPLETED)
        return events[at + len("data: ") : events.index(b"\n\n", at)] if at >= 0 else b"{}"


class WebSocketFraming:
    def __init__(self, connection: socket.socket, port: int) -> None:
        connection.sendall(upgrade(port))
        answer = connection.recv(_READ_BYTES)
        if not answer.startswith(b"HTTP/1.1 101") or not answer.endswith(b"\r\n\r\n"):
            raise RuntimeError(f"not upgraded: {answer!r}")

    def frame_request(self, body: bytes) -> bytes:
        return frame(body)

    def find_last_event(self, received: bytes) -> bytes | None:
        at = 0
        while (start := at + head_size(received, at)) <= len(received):
            at = start + payload_size(received, at)
            if received.startswith((_COMPLETED, b'{"type":"error"'), start) and at <= len(received):
                return received[start:at]
        return None


def upgrade(port: int) -> bytes:
    lines = f"GET {_PATH} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Connection: Upgrade", "Upgrade: websocket"
    key = "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
    return "\r\n".join([*lines, *key, "", ""]).encode()


def frame(text: bytes) -> bytes:
    """Return a client's frame with a mask of zeros, which changes nothing but still has to be applied by the server."""
    if len(text) < 126:
        head = bytes((0x81, 0x80 | len(text)))
    elif len(text) < 1 << 16:
        head = b"\x81\xfe" + len(text).to_bytes(2, "big")
    else:
        head = b"\x81\xff" + len(text).to_bytes(8, "big")
    return head + bytes(4) + text


def head_size(received: bytes, at: int) -> int:
    """Return the size of the frame's head at `at`; if it has not arrived completely, more than the received bytes."""
    return {126: 4, 127: 10}.get(received[at + 1], 2) if at + 1 < len(received) else 2


def payload_size(received: bytes, at: int) -> int:
    size = received[at + 1]
    return size if size < 126 else int.from_bytes(received[at + 2 : at + head_size(received, at)], "big")


def run_conversation(load: ConversationLoad) -> ConversationResult:
    before = cpu_ns(load.pid)
    with socket.create_connection(("127.0.0.1", load.port), timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        framing: Framing = WebSocketFraming(connection, load.port) if load.mode == "socket" else HttpFraming(load.port)
        conversation = Conversation(load.mode, load.nonce, load.turns)
        body, turns = conversation.make_first_body(), []
        for number in range(1, load.turns + 1):
            turn, response = _run_turn(connection, framing, body)
            turns.append(turn)
            if number < load.turns:
                body = conversation.make_next_body(number, response)
    return ConversationResult(turns=turns, cpu_ms=(cpu_ns(load.pid) - before) / 1e6)


def _run_turn(connection: socket.socket, framing: Framing, body: bytes) -> tuple[Turn, Json]:
    request, received, first = framing.frame_request(body), b"", 0.0
    start = time.perf_counter()
    connection.sendall(request)
    while (last := framing.find_last_event(received)) is None:
        piece = connection.recv(_READ_BYTES)
        if not piece:
            raise RuntimeError(f"the server closed the connection: {received[-500:]!r}")
        received += piece
        if not first and _FIRST_EVENT in received:
            first = time.perf_counter()
    ended = time.perf_counter()
    response = msgspec.json.decode(last).get("response")
    if response is None:
        raise RuntimeError(f"the response did not complete: {received[-500:]!r}")
    usage = response["usage"]
    prefill = usage["input_tokens"] - usage["input_tokens_details"]["cached_tokens"]
    turn = Turn(sent=len(request), first_ms=(first - start) * 1e3, whole_ms=(ended - start) * 1e3, prefill=prefill)
    return turn, response


def _remove_chunk_framing(body: bytes) -> bytes:
    pieces, at = [], 0
    while size := int(body[at : (end := body.index(b"\r\n", at))], 16):
        pieces.append(body[end + 2 : end + 2 + size])
        at = end + 2 + size + 2
    return b"".join(pieces)


if __name__ == "__main__":
    sys.stdout.buffer.write(
        msgspec.json.encode(run_conversation(msgspec.json.decode(sys.argv[1], type=ConversationLoad)))
    )

"""Asks for stored responses in random order, one after the other on one connection, and says how long each took.

A process of its own, told what to do by one JSON argument (a Gets).
"""

import random
import socket
import sys
import time
from pathlib import Path

import msgspec
from msgspec import Struct


class Gets(Struct, frozen=True, kw_only=True):
    port: int
    ids: str  # a file with an id on each line
    count: int


class Took(Struct, frozen=True):
    p50_ms: float
    p99_ms: float


def took(gets: Gets) -> Took:
    ids = Path(gets.ids).read_text().split()
    chosen = random.Random(1).choices(ids, k=gets.count)
    with socket.create_connection(("127.0.0.1", gets.port), timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        times = sorted(_ask(connection, gets.port, response_id) for response_id in chosen)
    return Took(times[len(times) // 2] * 1e3, times[len(times) * 99 // 100] * 1e3)


def _ask(connection: socket.socket, port: int, response_id: str) -> float:
    request = f"GET /v1/responses/{response_id} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
    began = time.perf_counter()
    connection.sendall(request)
    answer = connection.recv(65_536)
    while not _whole(answer):
        answer += connection.recv(65_536)
    spent = time.perf_counter() - began
    if not answer.startswith(b"HTTP/1.1 200") or response_id.encode() not in answer:
        raise RuntimeError(f"GET {response_id}: {answer[:500]!r}")
    return spent


def _whole(answer: bytes) -> bool:
    head, gap, body = answer.partition(b"\r\n\r\n")
    if not gap:
        return False
    length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
    return len(body) == int(length)


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(took(msgspec.json.decode(sys.argv[1], type=Gets))))

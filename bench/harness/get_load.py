"""Retrieves stored responses in random order, sequentially on one connection, and reports how long each request took.

A separate process that is controlled by one JSON argument (a GetLoad).
"""

import random
import socket
import sys
import time
from pathlib import Path

import msgspec
from msgspec import Struct


class GetLoad(Struct, frozen=True, kw_only=True):
    port: int
    ids: str  # file with one id per line
    count: int


class GetTimes(Struct, frozen=True):
    p50_ms: float
    p99_ms: float


def measure_gets(load: GetLoad) -> GetTimes:
    ids = Path(load.ids).read_text().split()
    chosen = random.Random(1).choices(ids, k=load.count)
    with socket.create_connection(("127.0.0.1", load.port), timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        times = sorted(_measure_get(connection, load.port, response_id) for response_id in chosen)
    return GetTimes(times[len(times) // 2] * 1e3, times[len(times) * 99 // 100] * 1e3)


def _measure_get(connection: socket.socket, port: int, response_id: str) -> float:
    request = f"GET /v1/responses/{response_id} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
    start = time.perf_counter()
    connection.sendall(request)
    answer = connection.recv(65_536)
    while not _is_complete(answer):
        answer += connection.recv(65_536)
    spent = time.perf_counter() - start
    if not answer.startswith(b"HTTP/1.1 200") or response_id.encode() not in answer:
        raise RuntimeError(f"GET {response_id}: {answer[:500]!r}")
    return spent


def _is_complete(answer: bytes) -> bool:
    head, gap, body = answer.partition(b"\r\n\r\n")
    if not gap:
        return False
    length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
    return len(body) == int(length)


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(measure_gets(msgspec.json.decode(sys.argv[1], type=GetLoad))))

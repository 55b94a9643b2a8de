"""One measurement: a load against a server, and the CPU or memory that it cost the server's process tree."""

import contextlib
import statistics
import subprocess
import sys
from collections.abc import Iterator
from typing import IO, cast

import msgspec

from bench.harness.load import Counted, Load
from bench.harness.process_meter import cpu_ns, rss_bytes
from bench.harness.servers import LOAD_CORE, Server, pin

Line = IO[bytes]


def cpu_per_token_us(server: Server, load: Load, expected: int) -> float:
    nanoseconds, counted = spent(server, load)
    if counted.tokens != expected:
        raise RuntimeError(f"{expected} tokens were due, {counted.tokens} came ({load})")
    return nanoseconds / counted.tokens / 1e3


def cpu_per_request_ms(server: Server, load: Load) -> float:
    nanoseconds, counted = spent(server, load)
    if counted.requests != load.connections * load.requests:
        raise RuntimeError(f"{counted.requests} answers came ({load})")
    return nanoseconds / counted.requests / 1e6


def bytes_per_stream(server: Server, load: Load) -> float:
    with _generator(load) as (told, heard):
        before = rss_bytes(server.pid)
        _tell(told)
        _hear(heard)
        held = rss_bytes(server.pid) - before
        _tell(told)
    return held / load.connections


def median(values: list[float]) -> float:
    return statistics.median(values)


def spent(server: Server, load: Load) -> tuple[int, Counted]:
    """Nanoseconds of CPU, and what was counted."""
    with _generator(load) as (told, heard):
        before = cpu_ns(server.pid)
        _tell(told)
        counted = msgspec.json.decode(_hear(heard), type=Counted)
        return cpu_ns(server.pid) - before, counted


@contextlib.contextmanager
def _generator(load: Load) -> Iterator[tuple[Line, Line]]:
    """The load's process, warm and waiting for the word."""
    command = [sys.executable, "-m", load.module, msgspec.json.encode(load).decode()]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=lambda: pin(LOAD_CORE)
    )
    told, heard = cast(Line, process.stdin), cast(Line, process.stdout)
    try:
        _hear(heard)
        yield told, heard
    finally:
        with contextlib.suppress(BrokenPipeError):
            told.close()
        process.wait(timeout=30)
        heard.close()


def _tell(told: Line) -> None:
    told.write(b"go\n")
    told.flush()


def _hear(heard: Line) -> bytes:
    line = heard.readline()
    if not line:
        raise RuntimeError("the load generator failed; what it said is above")
    return line

"""One measurement: a load against a server, and the CPU time or memory that it cost the server's process tree."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import IO, cast

import msgspec

from bench.harness.load import Load, LoadCounts
from bench.harness.process_meter import cpu_ns, rss_bytes
from bench.harness.servers import Server, pin

Pipe = IO[bytes]


def cpu_per_token_us(server: Server, load: Load, expected: int) -> float:
    nanoseconds, (counted,) = measure_cpu(server, load)
    if counted.tokens != expected:
        raise RuntimeError(f"{expected} tokens were expected, {counted.tokens} arrived ({load})")
    return nanoseconds / counted.tokens / 1e3


def cpu_per_request_ms(server: Server, load: Load) -> float:
    nanoseconds, (counted,) = measure_cpu(server, load)
    if counted.requests != load.connections * load.requests:
        raise RuntimeError(f"{counted.requests} answers arrived ({load})")
    return nanoseconds / counted.requests / 1e6


def bytes_per_stream(server: Server, load: Load) -> float:
    with _start_generator(load) as (stdin, stdout):
        _read_line(stdout)
        before = rss_bytes(server.pid)
        _send_line(stdin)
        _read_line(stdout)
        held = rss_bytes(server.pid) - before
        _send_line(stdin)
    return held / load.connections


def measure_cpu(server: Server, *loads: Load) -> tuple[int, list[LoadCounts]]:
    """Run the loads at the same time; return the CPU time of the server in nanoseconds, and the counts."""
    with contextlib.ExitStack() as stack:
        # All prepare at the same time: servers close connections that wait too long for their first request.
        pipes = [stack.enter_context(_start_generator(load)) for load in loads]
        for _, stdout in pipes:
            _read_line(stdout)
        before = cpu_ns(server.pid)
        for stdin, _ in pipes:
            _send_line(stdin)
        counted = [msgspec.json.decode(_read_line(stdout), type=LoadCounts) for _, stdout in pipes]
        return cpu_ns(server.pid) - before, counted


@contextlib.contextmanager
def _start_generator(load: Load) -> Iterator[tuple[Pipe, Pipe]]:
    """Start the load generator. It prints a line when it is ready, and then waits for a line."""
    command = [sys.executable, "-m", load.module]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=lambda: pin(load.core)
    )
    stdin, stdout = cast(Pipe, process.stdin), cast(Pipe, process.stdout)
    stdin.write(msgspec.json.encode(load) + b"\n")
    stdin.flush()
    try:
        yield stdin, stdout
    finally:
        with contextlib.suppress(BrokenPipeError):
            stdin.close()
        process.wait(timeout=30)
        stdout.close()


def _send_line(stdin: Pipe) -> None:
    stdin.write(b"go\n")
    stdin.flush()


def _read_line(stdout: Pipe) -> bytes:
    line = stdout.readline()
    if not line:
        raise RuntimeError("the load generator failed; its output is above")
    return line

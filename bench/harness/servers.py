"""The servers under measurement, each in its own process, found by the address that it prints."""

import contextlib
import http.client
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

# Separate cores, so that the load does not use the server's time; with two cores, load and engine share one.
SERVER_CORE, LOAD_CORE = 0, 1
ENGINE_CORE = min(2, max(1, (os.cpu_count() or 1) - 1))
_START_SECONDS = 60.0
_ADDRESS = re.compile(rb"http://[\w.\[\]:]+?:(\d+)")


class Server:
    """A running server; `pid` is the root of its process tree."""

    def __init__(self, pid: int, port: int) -> None:
        self.pid = pid
        self.port = port

    def post(self, path: str, body: bytes) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"POST {path}: {answer.status} {content[:500]!r}")
        return content


@contextlib.contextmanager
def run_antiphon(*flags: str, engine: str = "fake", cores: Sequence[int] = (SERVER_CORE,)) -> Iterator[Server]:
    """Start Antiphon, with its own store unless the flags name one."""
    command = str(Path(sys.executable).with_name("antiphon"))
    with tempfile.TemporaryDirectory() as folder:
        serve = [command, "serve", "--engine", engine, "--port", "0", "--store", f"{folder}/bench.db", *flags]
        with run_process(serve, cores=cores) as server:
            yield server


def run_baseline(folder: Path) -> contextlib.AbstractContextManager[Server]:
    return run_process([sys.executable, "-m", "bench.harness.raw_asgi", str(folder)])


@contextlib.contextmanager
def run_upstream(*cores: int) -> Iterator[Server]:
    """Start the fake engine, one process per core; all listen on one port, and the kernel divides the connections."""
    with contextlib.ExitStack() as stack:
        command = [sys.executable, "-m", "bench.harness.upstream"]
        first = stack.enter_context(run_process([*command, "0"], cores=cores[:1]))
        for core in cores[1:]:
            stack.enter_context(run_process([*command, str(first.port)], cores=(core,)))
        yield first


def pin(*cores: int) -> None:
    if (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(0, cores)


@contextlib.contextmanager
def run_process(
    command: list[str],
    port: int | None = None,
    cores: Sequence[int] = (SERVER_CORE,),
    environment: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Start a server. `port` is the port that it listens on; None: it prints its address."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            env={**os.environ, **(environment or {})},
            preexec_fn=lambda: pin(*cores),
        )
        try:
            yield Server(process.pid, _wait_for_port(process, output.fileno(), port))
        finally:
            process.send_signal(signal.SIGTERM)
            stop = threading.Timer(5.0, process.kill)
            stop.start()
            process.wait()
            stop.cancel()


def _wait_for_port(process: subprocess.Popen[bytes], output: int, expected_port: int | None) -> int:
    """Wait until the server accepts connections; return the expected port or the one that it printed."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        found = _ADDRESS.search(os.pread(output, 1 << 16, 0))
        port = expected_port or (int(found[1]) if found else None)
        if port is not None and _accepts_requests(port):
            return port
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise RuntimeError(f"{' '.join(process.args)} did not start:\n{os.pread(output, 1 << 16, 0).decode()}")  # type: ignore[arg-type]  # args is the list from Popen


def _accepts_requests(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    with contextlib.closing(connection), contextlib.suppress(OSError):
        connection.request("GET", "/ready")
        return connection.getresponse().status in (200, 404)
    return False

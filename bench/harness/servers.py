"""The servers under measurement, each a process of its own, found by the address it prints."""

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
from collections.abc import Iterator
from pathlib import Path

SERVER_CORE, LOAD_CORE = 0, 1  # apart, so that the load does not take the server's time
_START_SECONDS = 60.0
_ADDRESS = re.compile(rb"http://[\w.\[\]:]+?:(\d+)")


class Server:
    """A running server; `pid` is the root of its process tree."""

    def __init__(self, pid: int, port: int) -> None:
        self.pid = pid
        self.port = port

    def post(self, path: str, body: str) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"POST {path}: {answer.status} {content[:500]!r}")
        return content


@contextlib.contextmanager
def antiphon(*flags: str, engine: str = "fake") -> Iterator[Server]:
    """With a store of its own, unless the flags name one."""
    command = str(Path(sys.executable).with_name("antiphon"))
    with tempfile.TemporaryDirectory() as folder:
        serve = [command, "serve", "--engine", engine, "--port", "0", "--store", f"{folder}/bench.db", *flags]
        with started(serve) as server:
            yield server


def yardstick(folder: Path) -> contextlib.AbstractContextManager[Server]:
    files = ["--stream", str(folder / "stream"), "--json", str(folder / "json")]
    return started([sys.executable, "-m", "bench.harness.raw_asgi", *files])


def upstream() -> contextlib.AbstractContextManager[Server]:
    """The fake engine, where the load is: what it costs is nobody's."""
    return started([sys.executable, "-m", "bench.harness.upstream"], core=LOAD_CORE)


def pin(core: int) -> None:
    if (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(0, {core})


@contextlib.contextmanager
def started(command: list[str], port: int | None = None, core: int = SERVER_CORE) -> Iterator[Server]:
    """`port` is what it was told to listen on; None: it says so itself."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, preexec_fn=lambda: pin(core))
        try:
            yield Server(process.pid, _port(process, said.fileno(), port))
        finally:
            process.send_signal(signal.SIGTERM)
            stop = threading.Timer(5.0, process.kill)
            stop.start()
            process.wait()
            stop.cancel()


def _port(process: subprocess.Popen[bytes], said: int, told: int | None) -> int:
    """The port the server says it listens on, or was told to, once it accepts connections there."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        found = _ADDRESS.search(os.pread(said, 1 << 16, 0))
        port = told or (int(found[1]) if found else None)
        if port is not None and _accepts(port):
            return port
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise RuntimeError(f"{' '.join(process.args)} did not start:\n{os.pread(said, 1 << 16, 0).decode()}")  # type: ignore[arg-type]  # we gave it a list


def _accepts(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    with contextlib.closing(connection), contextlib.suppress(OSError):
        connection.request("GET", "/ready")
        return connection.getresponse().status in (200, 404)
    return False

"""A real server process for tests: `antiphon serve` on a free port, started before the test and stopped after it.

The output of the server is attached to the report of every failed test that used it.
"""

import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import pytest

_ADDRESS = re.compile(rb"http://127\.0\.0\.1:(\d+)")
_POLL_SECONDS = 0.02
_ANSWER_SECONDS = 60.0


class ServerProcess:
    """A running server process and a minimal HTTP client for it."""

    def __init__(self, process: subprocess.Popen[bytes], output_file: IO[bytes]) -> None:
        self.process = process
        self.port = 0
        self._output_file = output_file
        self._reported_bytes = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def v1(self) -> str:
        return f"{self.url}/v1"

    def read_output(self) -> bytes:
        """Return everything the server has written so far; empty after the server has ended."""
        return b"" if self._output_file.closed else os.pread(self._output_file.fileno(), 1 << 24, 0)

    def read_new_output(self) -> str:
        """Return what the server has written since the last call."""
        output = self.read_output()
        new, self._reported_bytes = output[self._reported_bytes :], len(output)
        return new.decode(errors="replace")

    def get(self, path: str) -> tuple[int, bytes]:
        return self.send("GET", path)

    def post(self, body: Any) -> tuple[int, bytes]:
        """Post a body to /v1/responses."""
        return self.send("POST", "/v1/responses", body)

    def send(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Send one request and return the status and the body of the response."""
        content = None if body is None else json.dumps(body)
        all_headers = {"Content-Type": "application/json", **(headers or {})}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_ANSWER_SECONDS)
        with contextlib.closing(connection):
            connection.request(method, path, content, all_headers)
            response = connection.getresponse()
            return response.status, response.read()


@contextlib.contextmanager
def run_server(
    *flags: str,
    ready_seconds: float = 120.0,
    program: Sequence[str] = (str(Path(sys.executable).with_name("antiphon")),),
) -> Iterator[ServerProcess]:
    """Run `antiphon serve` with these flags and yield it once it is ready."""
    command = [*program, "serve", "--port", "0", *_add_default_store(flags)]
    with tempfile.TemporaryFile() as output_file:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output_file, stderr=output_file)
        try:
            yield _wait_until_ready(ServerProcess(process, output_file), ready_seconds)
        finally:
            _stop(process)


def repeat_until_timeout(seconds: float = 100.0) -> Iterator[None]:
    """Yield repeatedly until the timeout: `for _ in repeat_until_timeout(): …` polls and fails only on a hang.

    There is a pause between two polls, because client and server would otherwise keep two cores busy during the wait.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield
        time.sleep(_POLL_SECONDS)


def _add_default_store(flags: tuple[str, ...]) -> tuple[str, ...]:
    """Default to the memory store, so that a test writes nothing into the current folder."""
    return flags if {"--store", "--disable-store", "--config"} & {*flags} else ("--store", "memory", *flags)


def _wait_until_ready(server: ServerProcess, seconds: float) -> ServerProcess:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and server.process.poll() is None:
        if not server.port and (found := _ADDRESS.search(server.read_output())):
            server.port = int(found[1])
        with contextlib.suppress(OSError):
            if server.port and server.get("/ready")[0] == 200:
                return server
        time.sleep(_POLL_SECONDS)
    raise RuntimeError(
        f"the server was not ready in {seconds} s (exit {server.process.poll()}):\n{server.read_new_output()}"
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(timeout=60)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the server output to failed tests. Imported by the conftest.py of tests that use servers."""
    report = yield
    for value in getattr(item, "funcargs", {}).values():
        if isinstance(value, ServerProcess) and (output := value.read_new_output()) and report.failed:
            report.sections.append((f"server on {value.url}: output", output))
    return report

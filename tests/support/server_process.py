"""A real server process for tests: `antiphon serve` on a free port, ready before the test begins, gone after it.

What the server wrote is shown with every failed test that used it.
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
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

_ADDRESS = re.compile(rb"http://127\.0\.0\.1:(\d+)")
_POLL_SECONDS = 0.02
_ANSWER_SECONDS = 60.0


class Live:
    """A running server."""

    def __init__(self, process: subprocess.Popen[bytes], said: IO[bytes]) -> None:
        self.process = process
        self.port = 0
        self._said = said
        self._shown = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def v1(self) -> str:
        return f"{self.url}/v1"

    def output(self) -> bytes:
        """All that it has written so far; nothing once it is gone."""
        return b"" if self._said.closed else os.pread(self._said.fileno(), 1 << 24, 0)

    def news(self) -> str:
        """What it has written since this was last asked."""
        output = self.output()
        fresh, self._shown = output[self._shown :], len(output)
        return fresh.decode(errors="replace")

    def get(self, path: str) -> tuple[int, bytes]:
        return self.send("GET", path)

    def post(self, body: Any) -> tuple[int, bytes]:
        return self.send("POST", "/v1/responses", body)

    def send(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        content = None if body is None else json.dumps(body)
        sent = {"Content-Type": "application/json", **(headers or {})}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_ANSWER_SECONDS)
        with contextlib.closing(connection):
            connection.request(method, path, content, sent)
            answer = connection.getresponse()
            return answer.status, answer.read()


@contextlib.contextmanager
def serving(*flags: str, ready_seconds: float = 120.0) -> Iterator[Live]:
    command = [str(Path(sys.executable).with_name("antiphon")), "serve", "--port", "0", *_stored(flags)]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        try:
            yield _ready(Live(process, said), ready_seconds)
        finally:
            _stop(process)


def patiently(seconds: float = 100.0) -> Iterator[None]:
    """As often as there is time for: `for _ in patiently(): …` gives up only what hangs."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield


def _stored(flags: tuple[str, ...]) -> tuple[str, ...]:
    """Nothing of a test belongs into the folder of whoever runs it."""
    return flags if {"--store", "--disable-store", "--config"} & {*flags} else ("--store", "memory", *flags)


def _ready(live: Live, seconds: float) -> Live:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and live.process.poll() is None:
        if not live.port and (found := _ADDRESS.search(live.output())):
            live.port = int(found[1])
        with contextlib.suppress(OSError):
            if live.port and live.get("/ready")[0] == 200:
                return live
        time.sleep(_POLL_SECONDS)
    raise RuntimeError(f"the server was not ready in {seconds} s (exit {live.process.poll()}):\n{live.news()}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(timeout=60)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """For the conftest.py of tests that use servers."""
    report = yield
    for value in getattr(item, "funcargs", {}).values():
        if isinstance(value, Live) and (news := value.news()) and report.failed:
            report.sections.append((f"what the server on {value.url} wrote", news))
    return report

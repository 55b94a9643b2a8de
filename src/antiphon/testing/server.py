"""A server in a process of its own, for tests of clients and agents. It has the fake engine and a store in memory:

    with server() as antiphon:
        client = OpenAI(base_url=antiphon.v1, api_key=antiphon.api_key)

docs/fake-engine.md has the answers that the fake engine gives, and how a test scripts others.
"""

import http.client
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from antiphon.config.settings import Setting, settings
from antiphon.config.sources import make_clean_environment
from antiphon.errors import StartupError

DEFAULTS: Final[Mapping[str, Any]] = {"engine": "fake", "store": "memory", "host": "127.0.0.1", "port": 0}
_ADDRESS = re.compile(rb"http://127\.0\.0\.1:(\d+)")
_POLL_SECONDS = 0.02
_ANSWER_SECONDS = 60.0
_STOP_SECONDS = 60.0


class ServerProcess:
    """A running server process and a minimal HTTP client for it."""

    def __init__(self, process: "subprocess.Popen[bytes]", output: Path) -> None:
        self.process = process
        self.port = 0
        self.api_key = "unused"  # clients insist on one
        self._output = output
        self._reported_bytes = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def v1(self) -> str:
        """The base URL that clients of OpenAI's API are configured with."""
        return f"{self.url}/v1"

    def read_output(self) -> bytes:
        """Return everything the server has written so far; empty after the server has ended."""
        return self._output.read_bytes() if self._output.exists() else b""

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
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Send one request and return the status and the body of the response."""
        content = None if body is None else json.dumps(body)
        all_headers = {"Content-Type": "application/json", **(headers or {})}
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=_ANSWER_SECONDS)) as connection:
            connection.request(method, path, content, all_headers)
            response = connection.getresponse()
            return response.status, response.read()


@contextmanager
def server(*, seconds: float = 120.0, **values: Any) -> Iterator[ServerProcess]:
    """Run `antiphon serve` until the end of the block, with settings by name: `server(fake_rate=50)`.

    Variables and files of this user have no effect. Raises StartupError if it does not answer within `seconds`.
    """
    rows = settings()
    if unknown := values.keys() - rows.keys():
        raise StartupError(f"{', '.join(sorted(unknown))}: not a setting; docs/configuration.md lists them.")
    flags = [flag for name, value in {**DEFAULTS, **values}.items() for flag in _make_flags(rows[name], value)]
    with tempfile.TemporaryDirectory(prefix="antiphon-") as folder:
        environment = make_clean_environment(Path(folder))
        command = [sys.executable, "-m", "antiphon", "serve", *flags]
        with run_process(command, seconds, cwd=folder, env=environment) as running:
            yield running


@contextmanager
def run_process(command: Sequence[str], seconds: float, **options: Any) -> Iterator[ServerProcess]:
    """Run a command that serves on a free port of 127.0.0.1, and yield it once it is ready."""
    with tempfile.TemporaryDirectory(prefix="antiphon-") as folder:
        output = Path(folder) / "output"
        with output.open("wb") as file:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, **options)
        try:
            yield _wait_until_ready(ServerProcess(process, output), seconds)
        finally:
            _stop(process)


def _make_flags(row: Setting, value: Any) -> list[str]:
    if row.is_switch:
        return [row.flag if value else row.flag.replace("--", "--no-", 1)]
    values = value if row.is_repeatable and not isinstance(value, str) else [value]
    return [text for one in values for text in (row.flag, str(one))]


def _wait_until_ready(running: ServerProcess, seconds: float) -> ServerProcess:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and running.process.poll() is None:
        if not running.port and (found := _ADDRESS.search(running.read_output())):
            running.port = int(found[1])
        with suppress(OSError):
            if running.port and running.get("/ready")[0] == 200:
                return running
        time.sleep(_POLL_SECONDS)
    code, output = running.process.poll(), running.read_new_output()
    state = f"does not answer within {seconds:g} s" if code is None else f"has ended with the exit code {code}"
    raise StartupError(f"The server {state}:\n{output}")


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(timeout=_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(timeout=_STOP_SECONDS)

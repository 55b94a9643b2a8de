"""Fixtures for the fault tests: real servers with the fake engine."""

import asyncio
import re
from collections.abc import Iterator

import pytest

from tests.support.server_process import ServerProcess, pytest_runtest_makereport, run_server

__all__ = ["pytest_runtest_makereport"]

KEY = "sk-test-1234567890"
_RUNNING = re.compile(rb"^antiphon_num_requests_running(?:\{[^}]*\})? (\d+)", re.MULTILINE)
_CANCELLED = re.compile(rb'^antiphon_responses_total\{status="cancelled"\} (\d+)', re.MULTILINE)


async def count_running_requests(live: ServerProcess) -> int:
    """Return the number of requests that the engine is processing, from the server's own gauge."""
    (count,) = _RUNNING.findall(await _fetch_metrics(live))
    return int(count)


async def count_cancelled_responses(live: ServerProcess) -> int:
    """Return the number of responses that were cancelled since the server started."""
    return sum(map(int, _CANCELLED.findall(await _fetch_metrics(live))))


async def _fetch_metrics(live: ServerProcess) -> bytes:
    status, metrics = await asyncio.to_thread(live.get, "/metrics")
    assert status == 200
    return metrics


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    with run_server("--engine", "fake") as live:
        yield live


@pytest.fixture(scope="session")
def keyed_server() -> Iterator[ServerProcess]:
    """A server that requires an API key."""
    with run_server("--engine", "fake", "--api-key", KEY) as live:
        yield live


@pytest.fixture(scope="session")
def short_timeout_server() -> Iterator[ServerProcess]:
    """A server with timeouts of one second."""
    flags = ("--limit-header-seconds", "1", "--limit-body-seconds", "1", "--stall-seconds", "1", "--keep-streams", "0")
    with run_server("--engine", "fake", "--fake-tokens", "30000", *flags) as live:
        yield live


@pytest.fixture(scope="session")
def slow_server() -> Iterator[ServerProcess]:
    """A server whose responses take minutes, or end with their clients."""
    flags = ("--fake-tokens", "10000", "--fake-rate", "20", "--keep-streams", "0")
    with run_server("--engine", "fake", *flags) as live:
        yield live


@pytest.fixture(autouse=True)
def server_check(request: pytest.FixtureRequest) -> Iterator[None]:
    """After every test, its servers must be healthy and must have logged no new traceback."""
    used = [
        request.getfixturevalue(name)
        for name in ("server", "keyed_server", "short_timeout_server", "slow_server")
        if name in request.fixturenames
    ]
    before = [_count_tracebacks(live) for live in used]
    yield
    assert [live.get("/health")[0] for live in used] == [200] * len(used)
    assert [_count_tracebacks(live) for live in used] == before


def _count_tracebacks(live: ServerProcess) -> int:
    return live.read_output().count(b"Traceback")

"""Real servers with the fake engine, as the faults need them."""

import asyncio
import re
from collections.abc import Iterator

import pytest

from tests.support.server_process import Live, pytest_runtest_makereport, serving

__all__ = ["pytest_runtest_makereport"]

KEY = "sk-test-1234567890"
_RUNNING = re.compile(rb"^antiphon_num_requests_running(?:\{[^}]*\})? (\d+)", re.MULTILINE)
_CANCELLED = re.compile(rb'^antiphon_responses_total\{status="cancelled"\} (\d+)', re.MULTILINE)


async def running(live: Live) -> int:
    """How many requests the engine works on, by the server's own gauge."""
    (count,) = _RUNNING.findall(await _metrics(live))
    return int(count)


async def cancelled(live: Live) -> int:
    """How many responses nobody waited for any more, since it began."""
    return sum(map(int, _CANCELLED.findall(await _metrics(live))))


async def _metrics(live: Live) -> bytes:
    status, metrics = await asyncio.to_thread(live.get, "/metrics")
    assert status == 200
    return metrics


@pytest.fixture(scope="session")
def server() -> Iterator[Live]:
    with serving("--engine", "fake") as live:
        yield live


@pytest.fixture(scope="session")
def guarded() -> Iterator[Live]:
    """A server that wants a key."""
    with serving("--engine", "fake", "--api-key", KEY) as live:
        yield live


@pytest.fixture(scope="session")
def hasty() -> Iterator[Live]:
    """A server that waits one second for anything."""
    flags = ("--limit-header-seconds", "1", "--limit-body-seconds", "1", "--stall-seconds", "1")
    with serving("--engine", "fake", "--fake-tokens", "30000", *flags) as live:
        yield live


@pytest.fixture(scope="session")
def slow() -> Iterator[Live]:
    """A server whose answers take minutes."""
    with serving("--engine", "fake", "--fake-tokens", "10000", "--fake-rate", "20") as live:
        yield live


@pytest.fixture(autouse=True)
def still_alive(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test did, the server answers after it and has logged no traceback."""
    used = [
        request.getfixturevalue(name) for name in ("server", "guarded", "hasty", "slow") if name in request.fixturenames
    ]
    before = [_tracebacks(live) for live in used]
    yield
    assert [live.get("/health")[0] for live in used] == [200] * len(used)
    assert [_tracebacks(live) for live in used] == before


def _tracebacks(live: Live) -> int:
    return live.output().count(b"Traceback")

"""A real server process for tests: `antiphon serve` on a free port, started before the test and stopped after it.

The output of the server is attached to the report of every failed test that used it.
"""

import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from antiphon.testing.server import ServerProcess as ServerProcess
from antiphon.testing.server import run_process

COMMAND = (str(Path(sys.executable).with_name("antiphon")),)
_POLL_SECONDS = 0.02


@contextmanager
def run_server(*flags: str, ready_seconds: float = 120.0, program: Sequence[str] = COMMAND) -> Iterator[ServerProcess]:
    """Run `antiphon serve` with these flags and yield it once it is ready."""
    with run_process([*program, "serve", "--port", "0", *_add_default_store(flags)], ready_seconds) as server:
        yield server


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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the server output to failed tests. Imported by the conftest.py of tests that use servers."""
    report = yield
    for value in getattr(item, "funcargs", {}).values():
        if isinstance(value, ServerProcess) and (output := value.read_new_output()) and report.failed:
            report.sections.append((f"server on {value.url}: output", output))
    return report

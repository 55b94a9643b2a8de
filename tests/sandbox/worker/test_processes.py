"""What is read about processes of containers."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon.sandbox.worker import processes


@pytest.fixture
def sleeper() -> Iterator[int]:
    """A shell that waits for input."""
    with subprocess.Popen(["sh", "-c", "while read x; do :; done"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.kill()


def _await_state(pid: int, state: str) -> None:
    while Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] != state:
        os.sched_yield()


def test_turns_differ_only_after_a_process_has_run(sleeper: int) -> None:
    _await_state(sleeper, "S")
    before = processes.read_turns(sleeper)
    assert processes.read_turns(sleeper) == before != [""]
    os.kill(sleeper, signal.SIGSTOP)
    _await_state(sleeper, "T")
    assert processes.read_turns(sleeper) != before

"""Runs `antiphon` as a process, either to its end or at a pseudo-terminal."""

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from antiphon.config.sources import make_clean_environment

COMMAND = [sys.executable, "-m", "antiphon"]
TIMEOUT_SECONDS = 100.0

Environment = dict[str, str]


def clean_environment(folder: Path) -> Environment:
    """Return an environment without the settings and the cache of the user who runs the tests."""
    return {**make_clean_environment(folder), "TERM": "xterm", "COLUMNS": "100"}


def run_antiphon(
    folder: Path,
    *arguments: str,
    stdin: str = "",
    seconds: float = TIMEOUT_SECONDS,
    program: Sequence[str] = COMMAND,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*program, *arguments],
        input=stdin,
        env=clean_environment(folder),
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        timeout=seconds,
        check=False,
    )


class Terminal:
    """The screen and the keyboard of one process."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process = process
        self.screen = ""
        self._descriptor = descriptor

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def wait_for(self, text: str) -> str:
        """Wait until this text has appeared; return and consume the output up to and including it."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while text not in self.screen:
            ready, _, _ = select.select([self._descriptor], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{text!r} did not appear in {self.screen!r}"
            self.screen += os.read(self._descriptor, 65536).decode(errors="replace")
        seen, _, self.screen = self.screen.partition(text)
        return seen + text


@contextlib.contextmanager
def open_terminal(folder: Path, *arguments: str) -> Iterator[Terminal]:
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        env=clean_environment(folder),
        cwd=folder,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        # a shell that runs the tests in the background has it ignored (POSIX 2.11), and children inherit that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    os.close(follower)
    try:
        yield Terminal(process, leader)
    finally:
        process.kill()
        process.wait(timeout=TIMEOUT_SECONDS)
        os.close(leader)

"""`antiphon` as a process: run to its end, or held at a terminal of its own."""

import contextlib
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

COMMAND = [sys.executable, "-m", "antiphon"]
DEADLINE = 100.0

Environment = dict[str, str]


def clean(folder: Path) -> Environment:
    """An environment without the settings and the cache of whoever runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON_")}
    homes = {f"XDG_{kind}_HOME": str(folder) for kind in ("CONFIG", "CACHE", "DATA")}
    return {**kept, **homes, "TERM": "xterm", "COLUMNS": "100"}


def run(folder: Path, *arguments: str, given: str = "", seconds: float = DEADLINE) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        input=given,
        env=clean(folder),
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        timeout=seconds,
        check=False,
    )


class Terminal:
    """The screen and the keyboard of one process."""

    def __init__(self, process: subprocess.Popen[bytes], end: int) -> None:
        self.process = process
        self.screen = ""
        self._end = end

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def wait_for(self, text: str) -> str:
        """Until it has appeared; what came up to then, which is not looked at again."""
        deadline = time.monotonic() + DEADLINE
        while text not in self.screen:
            ready, _, _ = select.select([self._end], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{text!r} did not appear in {self.screen!r}"
            self.screen += os.read(self._end, 65536).decode(errors="replace")
        seen, _, self.screen = self.screen.partition(text)
        return seen + text


@contextlib.contextmanager
def terminal(folder: Path, *arguments: str) -> Iterator[Terminal]:
    end, its_end = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *arguments], env=clean(folder), cwd=folder, stdin=its_end, stdout=its_end, stderr=its_end
    )
    os.close(its_end)
    try:
        yield Terminal(process, end)
    finally:
        process.kill()
        process.wait(timeout=DEADLINE)
        os.close(end)

"""`make test`: all tests in three lanes side by side: even small machines have two cores, and who starts servers waits.

Each lane is a pytest of its own (tests/plugin_lanes.py tells which tests are whose). The first is heard while it runs,
the others when it has ended. The claims of requirements.toml are judged over all.
"""

import json
import subprocess
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.requirements import Row, load, ripe, unproved

LANES = ("others", "servers", "models")


def main() -> int:
    with TemporaryDirectory() as name:
        folder = Path(name)
        with ExitStack() as stack:
            rest = [stack.enter_context(_started(lane, folder)) for lane in LANES[1:]]
            codes = [subprocess.call(_command(LANES[0], folder)), *[lane.wait() for lane in rest]]
        for lane in LANES[1:]:
            sys.stdout.write(_log(lane, folder).read_text("utf-8", "replace"))
        if any(codes):
            return max(codes)
        shown = [json.loads(_shown(lane, folder).read_text()) for lane in LANES]
        return judged(load().rows().values(), {name for names in shown for name in names})


def _started(lane: str, folder: Path) -> "subprocess.Popen[bytes]":
    with _log(lane, folder).open("wb") as log:
        return subprocess.Popen(_command(lane, folder), stdout=log, stderr=log)


def judged(rows: Iterable[Row], shown: set[str]) -> int:
    """1 if a row claims what no test has shown."""
    rows = list(rows)
    wrong = unproved(rows, shown)
    _tell("Requirements that claim to work, and no test shows it:", wrong)
    _tell("Requirements still planned, although tests show them:", ripe(rows, shown))
    return 1 if wrong else 0


def _command(lane: str, folder: Path) -> list[str]:
    shown = str(_shown(lane, folder))
    return [sys.executable, "-m", "pytest", "--lane", lane, "--shown", shown, "-p", "no:cacheprovider"]


def _shown(lane: str, folder: Path) -> Path:
    return folder / f"{lane}.json"


def _log(lane: str, folder: Path) -> Path:
    return folder / f"{lane}.log"


def _tell(title: str, rows: list[Row]) -> None:
    if rows:
        print(title, *[f"{row.id:6} {row.text}" for row in rows], sep="\n")


if __name__ == "__main__":
    sys.exit(main())

"""`make test`: all tests in two lanes side by side, since even small machines have two cores.

One lane starts whole servers and models, one after the other; the other lane is the rest. Each is a pytest of its own,
and the rest is quiet until the first has ended. The claims of requirements.toml are judged over both.
"""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.requirements import Row, load, ripe, unproved

LANES = ("servers", "others")


def main() -> int:
    with TemporaryDirectory() as folder:
        said, shown = Path(folder) / "others.log", {lane: Path(folder) / f"{lane}.json" for lane in LANES}
        with (
            said.open("wb") as log,
            subprocess.Popen(_command("others", shown["others"]), stdout=log, stderr=log) as others,
        ):
            first = subprocess.call(_command("servers", shown["servers"]))
            second = others.wait()
        sys.stdout.write(said.read_text("utf-8", "replace"))
        if first or second:
            return first or second
        return judged(
            load().rows().values(), {name for file in shown.values() for name in json.loads(file.read_text())}
        )


def judged(rows: Iterable[Row], shown: set[str]) -> int:
    """1 if a row claims what no test has shown."""
    rows = list(rows)
    wrong = unproved(rows, shown)
    _tell("Requirements that claim to work, and no test shows it:", wrong)
    _tell("Requirements still planned, although tests show them:", ripe(rows, shown))
    return 1 if wrong else 0


def _command(lane: str, shown: Path) -> list[str]:
    return [sys.executable, "-m", "pytest", "--lane", lane, "--shown", str(shown), "-p", "no:cacheprovider"]


def _tell(title: str, rows: list[Row]) -> None:
    if rows:
        print(title, *[f"{row.id:6} {row.text}" for row in rows], sep="\n")


if __name__ == "__main__":
    sys.exit(main())

"""`make test`: mypy and all tests in parts, several side by side: who starts servers mostly waits for them.

Every folder of tests/ is a part, a pytest of its own, which loads only what it needs. Tests that load a model are one
more, wherever they stand: two models at once would be in each other's way. Who takes long begins first; each is heard
when it has ended. The claims of requirements.toml are judged over all.

Many a test starts servers, kills them and waits for them, beside three other parts on as little as two cores. So one
that failed is heard once more when all others are done. What fails again has failed; what passes then is named as
unsteady at the very end, for it is to be mended; and more than a few are no accident and not heard again.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct

from tools.requirements import ROOT, Row, load, ripe, unproved

LANES = (os.cpu_count() or 1) + 2
MODELS = "models"
MARK = "real_model"  # tests/plugins/selection.py sees to it that a file with such tests says so itself
NONE = 5  # pytest's word for a folder whose tests were all left out
FAILED = 1  # its word for tests that failed, and nothing worse
FEW = 5
LONG = (
    *(MODELS, "tests/faults", "types", "tests/clients", "tests/transport", "tests/cli", "tests/engines", "tests/tools"),
    *(
        "tests/contracts",
        "tests/core",
        "tests/service",
        "tests/parsers",
        "tests/api",
        "tests/deploy",
        "tests/repository",
        "tests/bench",
        "tests",
    ),
)


class Part(Struct, frozen=True):
    """One process."""

    name: str
    command: list[str]
    kept: Path | None = None  # where pytest notes what failed

    def failed(self) -> list[str]:
        noted = self.kept and self.kept / "v" / "cache" / "lastfailed"
        return list(json.loads(noted.read_bytes())) if noted and noted.exists() else []

    def again(self) -> "Part":
        """Only what failed. What the others have shown is not written over."""
        return Part(f"{self.name} again", [*self.command, "--last-failed", "--shown", f"{self.kept}.json"])


class Outcome(Struct, frozen=True):
    part: Part
    code: int
    output: str
    seconds: float

    def __str__(self) -> str:
        last = self.output.strip().rpartition("\n")[2]
        return f"{self.part.name:16} {last or 'clean'} ({self.seconds:.0f} s)\n"


def main() -> int:
    with TemporaryDirectory() as name:
        quick = "--quick" in sys.argv
        outcomes = [_told(outcome) for outcome in _run(parts(Path(name), models=not quick))]
        wrong = [outcome for outcome in outcomes if outcome.code]
        if wrong and not heard_again(wrong):
            return 1
        files = [json.loads(path.read_text()) for path in Path(name).glob("*.json")]
        return 0 if quick else judged(load().rows().values(), {row for rows in files for row in rows})


def heard_again(wrong: list[Outcome]) -> bool:
    """Whether all that failed beside others passes by itself; if so, these are named."""
    names = [name for outcome in wrong for name in outcome.part.failed()]
    if any(outcome.code != FAILED or not outcome.part.failed() for outcome in wrong) or len(names) > FEW:
        return False
    if any(_told(_ran(outcome.part.again())).code for outcome in wrong):
        return False
    print("Unsteady, and to be mended: failed beside others, passed alone:", *names, sep="\n")
    return True


def parts(folder: Path, *, models: bool = True) -> list[Part]:
    """All of them, those that take long first."""
    places = [path.relative_to(ROOT) for path in sorted((ROOT / "tests").iterdir())]
    files = [str(path) for path in places if path.match("test_*.py")]
    found = [Part("types", [sys.executable, "-m", "mypy", "--no-error-summary"]), _tests("tests", files, folder)]
    found += [_tests(str(path), [str(path)], folder) for path in places if any((ROOT / path).rglob("test_*.py"))]
    if models:
        found.append(_tests(MODELS, _with_models(), folder, MARK))
    return sorted(found, key=lambda part: LONG.index(part.name) if part.name in LONG else len(LONG))


def _with_models() -> list[str]:
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(path.relative_to(ROOT)) for path in files if MARK in path.read_text("utf-8")]


def _tests(name: str, places: list[str], folder: Path, marked: str = f"not {MARK}") -> Part:
    kept = folder / name.replace("/", "-")
    flags = ["-o", f"cache_dir={kept}", "--shown", f"{kept}-all.json", "-m", marked]
    return Part(name, [sys.executable, "-m", "pytest", *flags, *places], kept)


def _run(parts: Iterable[Part]) -> Iterable[Outcome]:
    """As they end."""
    pool = ThreadPoolExecutor(LANES)
    try:
        yield from (done.result() for done in as_completed([pool.submit(_ran, part) for part in parts]))
    finally:
        pool.shutdown(cancel_futures=True)  # after an interrupt, which all that run got, nobody else begins


def _ran(part: Part) -> Outcome:
    began = time.monotonic()
    done = subprocess.run(
        part.command, cwd=ROOT, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    code = 0 if done.returncode == NONE else done.returncode
    return Outcome(part, code, done.stdout.decode("utf-8", "replace"), time.monotonic() - began)


def _environment() -> dict[str, str]:
    """Bytecode is kept, whatever the user likes: some two hundred servers start, and each would compile everything."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _told(outcome: Outcome) -> Outcome:
    """In one line if all is well, else with all it said."""
    sys.stdout.write(f"{outcome.output}\n{outcome}" if outcome.code else str(outcome))
    sys.stdout.flush()
    return outcome


def judged(rows: Iterable[Row], shown: set[str]) -> int:
    """1 if a row claims what no test has shown."""
    rows = list(rows)
    wrong = unproved(rows, shown)
    _tell("Requirements that claim to work, and no test shows it:", wrong)
    _tell("Requirements still planned, although tests show them:", ripe(rows, shown))
    return 1 if wrong else 0


def _tell(title: str, rows: list[Row]) -> None:
    if rows:
        print(title, *[f"{row.id:6} {row.text}" for row in rows], sep="\n")


if __name__ == "__main__":
    sys.exit(main())

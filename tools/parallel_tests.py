"""`make test`: runs mypy and all tests as several processes, then merges coverage and requirements of all of them.

Coverage costs a tenth of the time, so it is measured in CI, or with COVERAGE=1. A part is one pytest process. There are
few, and only some of them measure coverage: a process that imports the server and the SDKs with line coverage needs 5
to 10 CPU seconds before its first test. Most tests of servers wait for processes, so more parts than cores run at a
time. Tests that load a model form one more part wherever they are, because two models at once slow each other down. The
parts that take longest start first. Tests that measure time or memory run after all others: on busy cores they would
measure the other tests.

Tests marked as slow, such as drills and clients beside several servers, run in CI, or with SLOW=1. Only these runs can
check that every requirement has a test.

A test may fail only because of the load, for example when a deadline passes on two busy cores. Failed tests therefore
run once more after all others, unless there are many of them. Tests that fail again fail the run. Tests that pass then
are reported as unsteady at the end, because they have to be fixed. Under CI they fail the run too, except for those
that tools/unsteady.toml lists.
"""

import json
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import date
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from msgspec import Struct

from tools import coverage
from tools.requirements import ROOT, Row, find_proved_plans, find_unproved, load

LANES = (os.cpu_count() or 1) + 2
MEASURES_COVERAGE = bool(os.environ.get("CI") or os.environ.get("COVERAGE"))
MODELS = "models"
MODEL_MARK = "real_model"  # tests/plugins/selection.py verifies that a file with such tests contains this word
MEASUREMENTS = "measurements"
MEASUREMENT_MARK = "quiet_cores"  # likewise
SLOW_MARK = "slow"
RUNS_SLOW = bool(os.environ.get("CI") or os.environ.get("SLOW"))
NO_TESTS = 5  # exit code of pytest if all tests of a folder were deselected
TESTS_FAILED = 1  # exit code of pytest if tests failed and nothing worse happened
MAX_RERUNS = 5
UNSTEADY = ROOT / "tools" / "unsteady.toml"
# Longest first: what starts last should be short, so that all lanes end together. Folders that no part names, and the
# files directly in tests/, are in the part OTHERS.
OTHERS = "others"
FOLDERS = {
    "transport": ("transport", "cli", "engines"),
    "server": ("agent", "api", "contracts", "service", "wiring"),
    OTHERS: (),
    "sandbox": ("deploy", "sandbox"),
    "clients": ("clients",),
    "ui": ("tools", "ui"),
    "repository": ("repository",),
    "faults": ("faults",),
    "drills": ("drills",),
}
# Parts whose tests drive servers in other processes, or examine the source: they execute hardly a line that others do
# not, and to instrument all modules for coverage takes 5 to 10 CPU seconds per process.
UNMEASURED = {"drills", "faults", "clients", "repository", MEASUREMENTS}


class Part(Struct, frozen=True):
    """One process."""

    name: str
    command: list[str]
    cache: Path | None = None  # folder in which pytest records failed tests

    def list_failures(self) -> list[str]:
        """Return the ids of the failed tests."""
        record = self.cache and self.cache / "v" / "cache" / "lastfailed"
        return list(json.loads(record.read_bytes())) if record and record.exists() else []

    def make_rerun(self) -> "Part":
        """Return a part with the failed tests only; it leaves the results of the others in place."""
        return Part(f"{self.name} again", [*self.command, "--last-failed", "--shown", f"{self.cache}.json"])


class UnsteadyTest(Struct, frozen=True, forbid_unknown_fields=True):
    """A test that may pass only when it runs again."""

    id: str
    reason: str
    since: date


class PartResult(Struct, frozen=True):
    """How a part ended, and what it printed."""

    part: Part
    code: int
    output: str
    seconds: float
    cpu_seconds: float = 0.0  # of the process and all its children

    def __str__(self) -> str:
        last_line = self.output.strip().rpartition("\n")[2]
        return f"{self.part.name:16} {last_line or 'clean'} ({self.seconds:.0f} s, CPU {self.cpu_seconds:.0f} s)\n"


def main() -> int:
    """Run all parts; with `--quick`, without models, coverage and requirements. Returns the exit code."""
    quick = "--quick" in sys.argv
    with TemporaryDirectory() as name:
        folder = Path(name)
        *parts, measurements = list_parts(folder, models=not quick)
        results = [_print_result(result) for result in chain(_run_all(parts), _run_all([measurements]))]
        return judge([result for result in results if result.code], folder, quick=quick)


def judge(failures: list[PartResult], folder: Path, *, quick: bool = False) -> int:
    """Return the exit code of the run. Requirements and coverage are judged even if unsteady tests fail the run."""
    names = [name for result in failures for name in result.part.list_failures()]  # before a rerun changes them
    if failures and not passes_again(failures):
        return 1
    code = judge_unsteady(names)
    return code if quick else max(code, _judge_results(folder))


def _judge_results(folder: Path) -> int:
    proved = {row for path in folder.glob("*.json") for row in json.loads(path.read_text())}
    code = judge_requirements(load().rows().values(), proved) if RUNS_SLOW else 0
    return max(code, coverage.judge(folder.glob("*.coverage"))) if MEASURES_COVERAGE else code


def passes_again(failures: list[PartResult]) -> bool:
    """Rerun the failed tests alone, unless there are many or a part failed otherwise; return whether all pass."""
    tests = [result.part.list_failures() for result in failures]
    unclear = any(result.code != TESTS_FAILED for result in failures) or not all(tests)
    if unclear or sum(map(len, tests)) > MAX_RERUNS:
        return False
    return not any(_print_result(_run(result.part.make_rerun())).code for result in failures)


def judge_unsteady(names: list[str]) -> int:
    """Print the tests that failed and passed again; return 1 if one of them fails the run."""
    if names:
        print("Unsteady tests, to be fixed: they failed beside others and passed alone:", *names, sep="\n")
    if os.environ.get("CI") and {*names} - {test.id for test in list_unsteady()}:
        print("Under CI they fail the run, unless tools/unsteady.toml lists them.")
        return 1
    return 0


def list_unsteady() -> list[UnsteadyTest]:
    return msgspec.convert(tomllib.loads(UNSTEADY.read_text("utf-8")).get("tests", []), list[UnsteadyTest])


def list_parts(folder: Path, *, models: bool = True) -> list[Part]:
    """Return all parts, longest first, and at the end the measurements. They write their results to the folder."""
    parts = [make_part(name, paths, folder) for name, paths in _list_paths().items()]
    types = Part("types", [sys.executable, "-m", "mypy", "--no-error-summary"])
    with_model = make_part(MODELS, _list_marked(MODEL_MARK), folder, MODEL_MARK)
    measurements = make_part(MEASUREMENTS, _list_marked(MEASUREMENT_MARK), folder, MEASUREMENT_MARK)
    return [*([with_model] if models else []), types, *parts, measurements]


def _list_paths() -> dict[str, list[str]]:
    """Return the paths of each part without models; every entry of tests/ with tests is in one of them."""
    part_names = {folder: name for name, folders in FOLDERS.items() for folder in folders}
    paths: dict[str, list[str]] = {name: [] for name in FOLDERS}
    for path in sorted((ROOT / "tests").iterdir()):
        if path.match("test_*.py") or any(path.rglob("test_*.py")):
            paths[part_names.get(path.name, OTHERS)].append(str(path.relative_to(ROOT)))
    return paths


def _list_marked(mark: str) -> list[str]:
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(path.relative_to(ROOT)) for path in files if mark in path.read_text("utf-8")]


def make_part(
    name: str, paths: list[str], folder: Path, marks: str = f"not {MODEL_MARK} and not {MEASUREMENT_MARK}"
) -> Part:
    """Return the part that runs the tests of these paths which the marks select."""
    cache = folder / name.replace("/", "-")
    marks = marks if RUNS_SLOW else f"({marks}) and not {SLOW_MARK}"
    flags = ["-o", f"cache_dir={cache}", "--shown", f"{cache}-all.json", "-m", marks]
    return Part(name, [sys.executable, "-m", "pytest", *flags, *paths], cache)


def _run_all(parts: Iterable[Part]) -> Iterator[PartResult]:
    """Run the parts and yield results as they end."""
    pool = ThreadPoolExecutor(LANES)
    try:
        yield from (done.result() for done in as_completed([pool.submit(_run, part) for part in parts]))
    finally:
        pool.shutdown(cancel_futures=True)  # an interrupt reaches all running parts; no other one starts


def _run(part: Part) -> PartResult:
    start = time.monotonic()
    with subprocess.Popen(
        part.command, cwd=ROOT, env=_environment(part), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        output = process.stdout.read().decode("utf-8", "replace")
        _, status, usage = os.wait4(process.pid, 0)  # with the CPU time of the servers that the tests started
        process.returncode = os.waitstatus_to_exitcode(status)
    code = 0 if process.returncode == NO_TESTS else process.returncode
    return PartResult(part, code, output, time.monotonic() - start, usage.ru_utime + usage.ru_stime)


def _environment(part: Part) -> dict[str, str]:
    """Enable bytecode files, since some two hundred servers start and each would compile everything; set coverage."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    measured = MEASURES_COVERAGE and part.cache is not None and part.name not in UNMEASURED
    return env | {coverage.VARIABLE: f"{part.cache}.coverage"} if measured else env


def _print_result(result: PartResult) -> PartResult:
    """Print one line for a part that passed, else all its output."""
    sys.stdout.write(f"{result.output}\n{result}" if result.code else str(result))
    sys.stdout.flush()
    return result


def judge_requirements(rows: Iterable[Row], proved: set[str]) -> int:
    """Print rows whose status differs from the tests; return 1 if a row claims to work and no test shows it."""
    rows = list(rows)
    unproved = find_unproved(rows, proved)
    _print_rows("Requirements that claim to work, and no test shows it:", unproved)
    _print_rows("Requirements still planned, although tests show them:", find_proved_plans(rows, proved))
    return 1 if unproved else 0


def _print_rows(title: str, rows: list[Row]) -> None:
    if rows:
        print(title, *[f"{row.id:6} {row.text}" for row in rows], sep="\n")


if __name__ == "__main__":
    sys.exit(main())

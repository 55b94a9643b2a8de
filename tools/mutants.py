"""`make mutants`: changes single rules of the source, and counts the changes that no test notices.

A mutant is one changed expression in a copy of the source: another comparison, a negation removed, `and` for `or`, a
call left out. Changes that no test could notice are not made: to log calls, annotations, assertions, and to `strict` of
`zip`. Nor are changes that any test notices, such as a difference of two strings.

The sample is drawn by a seed, and property tests take the examples of CI, so a run can be repeated. The folders of
tests that use an area first run on the unchanged source, for two reasons: a test that always fails would notice every
mutant, and the lines that each folder executes are recorded. A mutant then runs the tests that mirror its file, and
those of the folders that execute its lines, until a test fails twice and passes on the unchanged source: a test that
fails on a busy machine is no notice. A run that hangs or crashes has noticed the mutant too. A mutant whose lines are
not executed by any of these tests survives.
"""

import argparse
import ast
import compileall
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct

from tools.coverage import VARIABLE as COVERAGE_VARIABLE

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "antiphon"
# Folders of the source, and the folders of tests that use them. Those that notice most are first.
AREAS = {
    "core": (
        "tests/core",
        "tests/agent",
        "tests/parsers",
        "tests/render",
        "tests/service",
        "tests/api",
        "tests/transport",
    ),
    "agent": ("tests/agent", "tests/service", "tests/api", "tests/transport"),
    "stores": (
        "tests/stores",
        "tests/contracts/store",
        "tests/contracts/test_contents.py",
        "tests/contracts/test_live_log.py",
        "tests/service",
    ),
    "service/access": ("tests/service/access", "tests/transport/middleware", "tests/api", "tests/wiring"),
    "egress": ("tests/egress", "tests/tools", "tests/service/attachments", "tests/wiring"),
}
GOAL = 85.0  # percent of the mutants that tests notice
NO_TESTS = 5  # exit code of pytest if all tests were deselected
_TEST_SECONDS = 120  # after which a test counts as hanging
_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
# Statements whose absence or change is no other behaviour: log calls, and code that is never reached.
_IRRELEVANT = re.compile(r"(_?log\.(debug|info|warning|error|exception|critical|log)|assert_never)\(")


class Mutant(Struct, frozen=True):
    area: str
    path: Path  # below the package
    line: int
    before: str
    after: str
    source: bytes  # of the whole changed file
    statement: int  # the line on which the changed statement begins
    end: int  # the last line of what is changed

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {' '.join(self.before.split())}  →  {self.after}"

    def is_executed(self, lines: dict[str, set[int]]) -> bool:
        executed = lines.get(f"antiphon/{self.path.as_posix()}", set())
        return any(line in executed for line in range(self.statement, self.end + 1))


class Baseline(Struct, frozen=True):
    """How a folder of tests runs on the unchanged source."""

    failure: str | None
    seconds: float
    lines: dict[str, set[int]]  # executed, by file


def list_mutants(area: str, path: Path, source: bytes) -> Iterator[Mutant]:
    """Yield all mutants of a file: changes within functions."""
    starts = [0, *accumulate(map(len, source.splitlines(keepends=True)))]  # of the lines
    for statement, node in _walk_functions(ast.parse(source)):
        if (changed := _mutate(node)) is None:
            continue
        begin, end = _find_range(node, starts)
        before, after = source[begin:end].decode(), changed if isinstance(changed, str) else ast.unparse(changed)
        text = after if isinstance(node, ast.stmt) else f"({after})"
        mutated = source[:begin] + text.encode() + source[end:]
        last_line = node.end_lineno or node.lineno
        yield Mutant(area, path, node.lineno, before, after, mutated, statement.lineno, last_line)


def _walk_functions(node: ast.AST, statement: ast.stmt | None = None) -> Iterator[tuple[ast.stmt, ast.expr | ast.stmt]]:
    """Yield what is executed within functions, each node with its statement; the statement is None outside of them."""
    inside = statement is not None or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    for child in _list_changeable(node):
        owner = child if inside and isinstance(child, ast.stmt) else statement
        if owner is not None and isinstance(child, ast.expr | ast.stmt):
            yield owner, child
        yield from _walk_functions(child, owner)


def _list_changeable(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the children of a node whose change is another behaviour."""
    match node:
        case ast.FunctionDef(body=body) | ast.AsyncFunctionDef(body=body):
            yield from body  # neither decorators, defaults nor annotations
        case ast.AnnAssign(value=value):
            yield from [value] if value else []
        case ast.Assert() | ast.JoinedStr():
            pass  # before Python 3.12, positions within an f-string are not those of the file
        case ast.Expr() if _IRRELEVANT.match(ast.unparse(node)):
            pass
        case ast.Call(func=ast.Name(id="zip"), args=arguments):
            yield from arguments
        case _:
            yield from ast.iter_child_nodes(node)


def _mutate(node: ast.AST) -> ast.AST | str | None:
    """Return what replaces an expression or statement, or None if it stays."""
    match node:
        case ast.Compare(left=left, ops=[operator, *others], comparators=compared):
            return ast.Compare(left, [_COMPARISONS[type(operator)](), *others], compared)
        case ast.BoolOp(op=operator, values=values):
            return ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return operand
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as operator, right=right):
            if _is_sequence(left) or _is_sequence(right):
                return None  # a TypeError wherever it is executed
            return ast.BinOp(left, ast.Sub() if isinstance(operator, ast.Add) else ast.Add(), right)
        case ast.Constant(value=bool(value)):
            return repr(not value)
        case ast.Expr(value=ast.Call() | ast.Await()) if not _IRRELEVANT.match(ast.unparse(node)):
            return "pass"
    return None


def _is_sequence(node: ast.expr) -> bool:
    literal = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    return literal or isinstance(node, ast.JoinedStr | ast.List | ast.Tuple | ast.ListComp)


def _find_range(node: ast.expr | ast.stmt, starts: list[int]) -> tuple[int, int]:
    """Return the byte offsets of a node; its columns are counted in UTF-8 bytes."""
    return starts[node.lineno - 1] + node.col_offset, starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)


def draw_mutants(areas: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Draw mutants of each area in proportion to its size."""
    found = [
        mutant
        for area in areas
        for path in sorted((PACKAGE / area).rglob("*.py"))
        for mutant in list_mutants(area, path.relative_to(PACKAGE), path.read_bytes())
    ]
    return random.Random(seed).sample(found, min(count, len(found)))


class Sources:
    """Copies of the source for the runs of tests, with compiled files: every run would compile everything again.

    Compiled files of the checkout remain valid in a copy, since the times of their sources are kept.
    """

    def __init__(self, folder: Path) -> None:
        self._original = folder / "src"
        shutil.copytree(PACKAGE.parent, self._original, ignore=shutil.ignore_patterns("*.pyc.*"))
        compileall.compile_dir(self._original, quiet=2)

    def measure(self, tests: str) -> Baseline:
        """Run tests on the unchanged source, and record the lines that they execute."""
        with TemporaryDirectory() as folder:
            report, start = Path(folder) / "lines.json", time.monotonic()
            environment = _make_environment(self._original) | {COVERAGE_VARIABLE: str(report)}
            failure = _find_failure([tests], environment, 3600)
            lines = json.loads(report.read_bytes()) if report.exists() else {}
        executed = {name: set(numbers) for name, (numbers, _) in lines.items()}
        return Baseline(failure, time.monotonic() - start, executed)

    def find_notice(self, mutant: Mutant, baselines: dict[str, Baseline]) -> str | None:
        """Return the test that notices a mutant, or how its run ended; None if the mutant survives."""
        groups = [name for name, baseline in baselines.items() if mutant.is_executed(baseline.lines)]
        mirrored = Path("tests") / mutant.path.parent / f"test_{mutant.path.stem}.py"
        if groups and (ROOT / mirrored).exists():
            groups.insert(0, str(mirrored))
        seconds = 300 + 5 * max((baseline.seconds for baseline in baselines.values()), default=0)
        with TemporaryDirectory() as folder:
            source = Path(folder) / "src"
            shutil.copytree(self._original, source)
            # The compiled file is ignored, since the time of its source is another one.
            (source / "antiphon" / mutant.path).write_bytes(mutant.source)
            failures = (self._find_steady_failure(group, _make_environment(source), seconds) for group in groups)
            return next(filter(None, failures), None)

    def _find_steady_failure(self, group: str, environment: dict[str, str], seconds: float) -> str | None:
        """Return a test of a group that fails twice, and passes on the unchanged source.

        Other tests that fail are left out, at most three of them.
        """
        unsteady: list[str] = []
        for _ in range(3):
            failure = _find_failure([group, *(f"--deselect={name}" for name in unsteady)], environment, seconds)
            if failure is None or "::" not in failure or self._is_caused(failure, environment, seconds):
                return failure
            unsteady.append(failure)
        return None

    def _is_caused(self, failure: str, environment: dict[str, str], seconds: float) -> bool:
        """Return whether the change of the source is why a test fails."""
        fails_again = _find_failure([failure], environment, seconds) is not None
        return fails_again and _find_failure([failure], _make_environment(self._original), seconds) is None


def _make_environment(source: Path) -> dict[str, str]:
    """Return the environment of tests; CI pins the examples of property tests."""
    return {**os.environ, "PYTHONPATH": f"{source}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1", "CI": "1"}


def _find_failure(arguments: list[str], environment: dict[str, str], seconds: float) -> str | None:
    """Run tests until one fails; return its id, or how the run ended if there is none."""
    flags = ["-x", "-rfE", "--tb=no", "-p", "no:cacheprovider", f"--timeout={_TEST_SECONDS}"]
    command = [sys.executable, "-m", "pytest", *flags, "-m", "not real_model", *arguments]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with the servers that it started, which hold the pipe open
            return f"no end within {seconds:.0f} s"
    if process.returncode in (0, NO_TESTS):
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (\S+::.+?)(?: - .*)?$", output.decode("utf-8", "replace"), re.MULTILINE)
    return failed[1] if failed else f"exit code {process.returncode}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=60, help="mutants to draw (60)")
    parser.add_argument("--seed", type=int, default=1, help="of the sample (1)")
    parser.add_argument("--area", choices=AREAS, action="append", help="only this folder; may be repeated")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time (one per core)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the mutants and what noticed them")
    options = parser.parse_args()
    drawn = draw_mutants(options.area or [*AREAS], options.count, options.seed)
    with TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        noticed = run_mutants(drawn, Sources(Path(folder)), pool)
    if options.json:
        options.json.write_text(json.dumps([_describe(*one) for one in zip(drawn, noticed, strict=True)], indent=1))
    return _judge(drawn, noticed)


def run_mutants(drawn: list[Mutant], sources: Sources, pool: ThreadPoolExecutor) -> list[str | None]:
    """Return what noticed each mutant."""
    groups = [*dict.fromkeys(group for mutant in drawn for group in AREAS[mutant.area])]
    baselines = dict(zip(groups, pool.map(sources.measure, groups), strict=True))
    if failures := {group: baseline.failure for group, baseline in baselines.items() if baseline.failure}:
        sys.exit(f"Tests fail on the unchanged source: {failures}")

    def run(mutant: Mutant) -> str | None:
        found = sources.find_notice(mutant, {group: baselines[group] for group in AREAS[mutant.area]})
        print(f"noticed  {mutant}  by {found}" if found else f"SURVIVED {mutant}", flush=True)
        return found

    return list(pool.map(run, drawn))


def _describe(mutant: Mutant, noticed_by: str | None) -> dict[str, object]:
    names = ("area", "line", "before", "after")
    return {"path": str(mutant.path), **{name: getattr(mutant, name) for name in names}, "noticed_by": noticed_by}


def _judge(drawn: list[Mutant], noticed: list[str | None]) -> int:
    """Print the scores and all survivors; return 1 if the score is below the goal."""
    results = [*zip(drawn, noticed, strict=True)]
    for area in sorted({mutant.area for mutant in drawn}):
        of_area = [bool(found) for mutant, found in results if mutant.area == area]
        print(f"{area:16} {sum(of_area)} of {len(of_area)}")
    for survivor in sorted(str(mutant) for mutant, found in results if found is None):
        print("SURVIVED", survivor)
    count = sum(found is not None for found in noticed)
    score = 100 * count / max(1, len(noticed))
    print(f"{count} of {len(noticed)} mutants were noticed: {score:.0f} %, goal {GOAL:.0f} %")
    return int(score < GOAL)


if __name__ == "__main__":
    sys.exit(main())

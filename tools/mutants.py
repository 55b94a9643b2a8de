"""`make mutants`: changes single rules of the source, and counts the changes that no test notices.

A mutant is one changed expression in a copy of the source: another comparison, a negation removed, `and` for `or`, a
call left out. Changes that no test could notice are not made: to log calls, annotations, assertions, and to `strict` of
`zip`. Nor are changes that any test notices, such as a difference of two strings.

The sample is drawn by a seed, and property tests take the examples of CI, so a run can be repeated. In one copy of the
source each mutant of the sample is a switch. One process imports it and collects the tests. Every run of tests is a
fork of that process with at most one switch turned on, also in the servers that tests start. All tests first run
without a mutant, to record the switches that each of them reaches. With a mutant run those that reach it, within a
minute: those that mirror its file, then quick ones. A test that fails, crashes or hangs has noticed the mutant if it
does so again alone, and passes alone without the mutant: a test that fails on a busy machine is no notice.

A mutant that no test reaches survives. So does one that is reached only by an import or in another process, or noticed
only by tests that are left out: those that load a model, are slow, or measure time.
"""

import argparse
import ast
import os
import random
import re
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from itertools import accumulate, groupby
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

import msgspec
import pytest
from msgspec import Struct

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "antiphon"
# Folders of the source, and tests: those that mirror them, their contracts, and quick ones that reach most of the rest.
AREAS = {
    "core": (
        "tests/core", "tests/service/model_io", "tests/service/prompting/test_output_requirements.py",
        "tests/service/persistence/test_stored_images.py", "tests/api/output/test_include.py",
        "tests/api/input/test_engine_fields.py",
    ),
    "agent": ("tests/agent", "tests/service/tool_loop", "tests/api/operations/test_traces.py"),
    "stores": (
        "tests/stores", "tests/contracts/store", "tests/contracts/test_contents.py", "tests/contracts/test_live_log.py",
        "tests/contracts/test_vector_indexes.py", "tests/contracts/test_search.py",
        "tests/api/operations/test_inbox.py",
    ),
    "service/access": ("tests/service/access",),
    "egress": ("tests/egress", "tests/tools/mcp/test_hostile.py"),
}  # fmt: skip
GOAL = 85.0  # percent of the mutants that tests notice
_SELECTION = "not real_model and not slow and not quiet_cores"
_GROUP = 60  # tests of a file that run together without a mutant
_TEST_SECONDS = 120  # after which a test counts as hanging
_SLACK_SECONDS = 20.0  # that a test may take longer than ten times its time without a mutant
_MUTANT_SECONDS = 60.0  # that the tests of one mutant take without it
_MAX_FAILURES = 3  # failed tests of one mutant that are run again
SWITCH = "mutant_switch"
SWITCH_SOURCE = """
import os

active = int(os.environ.get("MUTANT") or -1)
reached = set()

def is_mutated(number):
    reached.add(number)
    return number == active
"""
_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
# Statements whose absence or change is no other behaviour: log calls, and code that is never reached.
_IRRELEVANT = re.compile(r"(_?log\.(debug|info|warning|error|exception|critical|log)|assert_never)\(")


class Mutant(Struct, frozen=True):
    area: str
    path: Path  # below the package
    place: int  # among the mutants of its file
    line: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.before}  →  {self.after}"


def list_mutants(area: str, path: Path, source: bytes) -> Iterator[Mutant]:
    """Yield all mutants of a file: changes within functions."""
    for place, (node, after) in enumerate(_list_changes(ast.parse(source))):
        yield Mutant(area, path, place, node.lineno, ast.unparse(node), after)


def add_switches(source: bytes, switches: dict[int, int]) -> str:
    """Return the source of a file with mutants that can be turned on: numbers of switches by their places."""
    tree = ast.parse(source)
    listed = enumerate(_list_changes(tree))
    changes = {id(node): (switches[place], after) for place, (node, after) in listed if place in switches}
    return ast.unparse(ast.fix_missing_locations(_Switcher(changes).visit(tree)))


class _Switcher(ast.NodeTransformer):
    """Replaces each changed node by a choice between both forms."""

    def __init__(self, changes: dict[int, tuple[int, str]]) -> None:
        self._changes = changes

    def visit(self, node: ast.AST) -> ast.AST:
        visited: ast.AST = self.generic_visit(node)
        if id(node) not in self._changes:
            return visited
        number, after = self._changes[id(node)]
        condition = ast.parse(f"__import__({SWITCH!r}).is_mutated({number})", mode="eval").body
        if isinstance(visited, ast.stmt):
            return ast.If(condition, [ast.Pass()], [visited])
        assert isinstance(visited, ast.expr)
        return ast.IfExp(condition, ast.parse(after, mode="eval").body, visited)


def _list_changes(tree: ast.Module) -> list[tuple[ast.expr | ast.stmt, str]]:
    """Return the nodes within functions that can be changed, and what replaces them."""
    return [(node, after) for node in _walk_functions(tree) if (after := _mutate(node)) is not None]


def _walk_functions(node: ast.AST, inside: bool = False) -> Iterator[ast.expr | ast.stmt]:
    """Yield what is executed within functions."""
    inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    for child in _list_changeable(node):
        if inside and isinstance(child, ast.expr | ast.stmt):
            yield child
        yield from _walk_functions(child, inside)


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


def _mutate(node: ast.AST) -> str | None:
    """Return what replaces an expression or statement, or None if it stays."""
    match node:
        case ast.Compare(left=left, ops=[operator, *others], comparators=compared):
            return ast.unparse(ast.Compare(left, [_COMPARISONS[type(operator)](), *others], compared))
        case ast.BoolOp(op=operator, values=values):
            return ast.unparse(ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return ast.unparse(operand)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as operator, right=right):
            if _is_sequence(left) or _is_sequence(right):
                return None  # a TypeError wherever it is executed
            return ast.unparse(ast.BinOp(left, ast.Sub() if isinstance(operator, ast.Add) else ast.Add(), right))
        case ast.Constant(value=bool(value)):
            return repr(not value)
        case ast.Expr(value=ast.Call() | ast.Await()) if not _IRRELEVANT.match(ast.unparse(node)):
            return "pass"
    return None


def _is_sequence(node: ast.expr) -> bool:
    literal = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    return literal or isinstance(node, ast.JoinedStr | ast.List | ast.Tuple | ast.ListComp)


def draw_mutants(areas: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Draw mutants of each area in proportion to its size."""
    found = [
        mutant
        for area in areas
        for path in sorted((PACKAGE / area).rglob("*.py"))
        for mutant in list_mutants(area, path.relative_to(PACKAGE), path.read_bytes())
    ]
    return random.Random(seed).sample(found, min(count, len(found)))


def copy_source(folder: Path, drawn: Sequence[Mutant]) -> None:
    """Copy the source, with a switch for each mutant: its number is its place in the sample."""
    shutil.copytree(PACKAGE.parent, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / f"{SWITCH}.py").write_text(SWITCH_SOURCE)
    for path in {mutant.path for mutant in drawn}:
        switches = {mutant.place: number for number, mutant in enumerate(drawn) if mutant.path == path}
        (folder / "antiphon" / path).write_text(add_switches((PACKAGE / path).read_bytes(), switches), "utf-8")


class Report(Struct, array_like=True, frozen=True):
    """A test that has passed or was skipped."""

    skipped: str  # the reason, if it was
    seconds: float
    reached: list[int]  # switches


class Trial:
    """A plugin of pytest: runs the collected tests without a mutant, then with each mutant those that reach it."""

    def __init__(self, drawn: Sequence[Mutant], jobs: int) -> None:
        self.drawn, self._jobs = drawn, jobs
        self._tests: dict[str, pytest.Item] = {}
        self._current: list[pytest.TestReport] = []  # of the test that runs
        self._passed: dict[str, Report] = {}  # without a mutant
        self.noticed: list[str | None] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._current.append(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed:
            return None  # pytest reports the errors of the collection
        session.config.pluginmanager.unregister(name="terminalreporter")  # prints what happens in all forks
        self._tests = {test.nodeid: test for test in session.items}
        with _share_postgres(session.items):
            self._record_tests()
            for mutant, found in zip(self.drawn, self._map("find_notice", range(len(self.drawn))), strict=True):
                print(f"noticed  {mutant}  by {found}" if found else f"SURVIVED {mutant}", flush=True)
                self.noticed.append(found)
        return True

    def judge(self) -> int:
        """Print the scores and all survivors; return 1 if the score is below the goal."""
        results = [*zip(self.drawn, self.noticed, strict=True)]
        for area in sorted({mutant.area for mutant in self.drawn}):
            of_area = [bool(found) for mutant, found in results if mutant.area == area]
            print(f"{area:16} {sum(of_area)} of {len(of_area)}")
        for survivor in sorted(str(mutant) for mutant, found in results if found is None):
            print("SURVIVED", survivor)
        count = sum(found is not None for found in self.noticed)
        score = 100 * count / max(1, len(results))
        print(f"{count} of {len(results)} mutants were noticed: {score:.0f} %, goal {GOAL:.0f} %")
        return int(score < GOAL)

    def _map(self, method: str, arguments: Sequence[Any]) -> Iterator[Any]:
        """Yield what a method returns for each argument, from forks of this process."""
        global _trial
        _trial = self
        with ProcessPoolExecutor(self._jobs, get_context("fork")) as executor:
            yield from executor.map(_call, [method] * len(arguments), arguments)

    def _record_tests(self) -> None:
        files = [[*names] for _, names in groupby(self._tests, lambda name: name.partition("::")[0])]
        groups = [names[at : at + _GROUP] for names in files for at in range(0, len(names), _GROUP)]
        reports = {name: report for found in self._map("run_unchanged", groups) for name, report in found.items()}
        self._passed = {name: report for name, report in reports.items() if not report.skipped}
        print(f"{len(self._passed)} of {len(self._tests)} tests pass without a mutant and are used.", flush=True)
        for reason, count in Counter(report.skipped for report in reports.values() if report.skipped).items():
            print(f"  {count} skipped, {reason}")
        for name in self._tests.keys() - reports:
            print(f"  failed: {name}")

    def run_unchanged(self, names: Sequence[str]) -> dict[str, Report]:
        """Return the reports of the tests that do not fail."""
        reports: dict[str, Report] = {}
        while names:
            ended = self.run(names)
            reports |= zip(names, ended, strict=False)
            names = names[len(ended) + 1 :]
        return reports

    def find_notice(self, number: int) -> str | None:
        """Return the test that notices a mutant; None if the mutant survives."""
        names = self.choose_tests(number)
        for _ in range(_MAX_FAILURES):
            count = len(self.run(names, number))
            if count == len(names):
                return None
            failed = names.pop(count)
            if not self.run([failed], number) and self.run([failed]):
                return failed
        return None

    def choose_tests(self, number: int) -> list[str]:
        """Return the tests that reach a mutant: first those that mirror its file, then quick ones."""
        path = self.drawn[number].path
        mirror = f"tests/{path.parent.as_posix()}/test_{path.stem}.py::"
        reaching = [name for name, report in self._passed.items() if number in report.reached]
        reaching.sort(key=lambda name: (not name.startswith(mirror), self._passed[name].seconds))
        starts = accumulate((self._passed[name].seconds for name in reaching), initial=0.0)
        return [name for name, start in zip(reaching, starts, strict=False) if start < _MUTANT_SECONDS]

    def run(self, names: Sequence[str], mutant: int | None = None) -> list[Report]:
        """Run tests in a fork, up to the first that fails, crashes, or exceeds a limit that depends on its time."""
        known = [self._passed.get(name) for name in names]
        limits = [_TEST_SECONDS if report is None else _SLACK_SECONDS + 10 * report.seconds for report in known]
        with _make_folder() as folder:
            reader, writer = os.pipe()
            if not (pid := os.fork()):
                self._run_and_exit([self._tests[name] for name in names], mutant, writer, folder)
            os.close(writer)
            reports = [msgspec.json.decode(line, type=Report) for line in _read_lines(reader, limits)]
            os.close(reader)
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        return reports

    def _run_and_exit(self, tests: Sequence[pytest.Item], mutant: int | None, writer: int, folder: str) -> NoReturn:
        try:
            os.setsid()
            os.environ["TMPDIR"] = tempfile.tempdir = folder
            if mutant is not None:
                os.environ["MUTANT"] = str(mutant)
                vars(import_module(SWITCH))["active"] = mutant
            for test, following in zip(tests, [*tests[1:], None], strict=True):
                if (report := self._run_test(test, following)) is None:
                    test.session._setupstate.teardown_exact(None)  # fixtures that the next test would use
                    break
                os.write(writer, msgspec.json.encode(report) + b"\n")
        finally:
            os._exit(0)

    def _run_test(self, test: pytest.Item, following: pytest.Item | None) -> Report | None:
        """Return None if the test fails."""
        reached: set[int] = import_module(SWITCH).reached
        reached.clear()
        self._current.clear()
        start = time.monotonic()
        test.ihook.pytest_runtest_protocol(item=test, nextitem=following)
        if any(report.failed for report in self._current):
            return None
        skips = [report.longrepr for report in self._current if report.skipped]
        reason = str(skips[0][2] if isinstance(skips[0], tuple) else "expected to fail") if skips else ""
        return Report(reason, time.monotonic() - start, sorted(reached))


_trial: Trial  # for workers: an executor sends them names of functions and arguments, but no tests


def _call(method: str, argument: Any) -> Any:
    return getattr(_trial, method)(argument)


def _read_lines(reader: int, limits: Sequence[float]) -> Iterator[bytes]:
    """Yield one line per limit, until a line takes longer than its limit or the other side has ended."""
    received = b""
    for limit in limits:
        deadline = time.monotonic() + limit
        while b"\n" not in received:
            ready, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
            if not ready or not (part := os.read(reader, 1 << 16)):
                return
            received += part
        line, _, received = received.partition(b"\n")
        yield line


@contextmanager
def _make_folder() -> Iterator[str]:
    """Yield a temporary folder. Its path is short, for those of sockets, and other users may enter it."""
    with TemporaryDirectory(prefix="m", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        yield folder


@contextmanager
def _share_postgres(tests: Sequence[pytest.Item]) -> Iterator[None]:
    """Start PostgreSQL once, if it is installed and a test uses it: each fork would start its own."""
    services = import_module("tests.plugins.services")
    if not services.postgres_home() or not any("postgres" in getattr(test, "fixturenames", ()) for test in tests):
        yield
        return
    with services.postgres_server() as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr(services, "postgres_server", lambda: nullcontext(server))
        yield


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=100, help="mutants to draw (100)")
    parser.add_argument("--seed", type=int, default=1, help="of the sample (1)")
    parser.add_argument("--area", choices=AREAS, action="append", help="only this folder; may be repeated")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time (one per core)")
    parser.add_argument("tests", nargs="*", help="files or folders of tests (those that use the areas)")
    options = parser.parse_args()
    areas = options.area or [*AREAS]
    trial = Trial(draw_mutants(areas, options.count, options.seed), options.jobs)
    tests = options.tests or dict.fromkeys(folder for area in areas for folder in AREAS[area])
    with _make_folder() as folder:
        copy_source(Path(folder, "src"), trial.drawn)
        sys.path.insert(0, f"{folder}/src")
        os.environ |= {"PYTHONPATH": f"{folder}/src:{ROOT}", "CI": "1"}  # CI pins the examples of property tests
        flags = ["-p", "no:cacheprovider", f"--timeout={_TEST_SECONDS}", "-m", _SELECTION]
        status = pytest.main([f"--rootdir={ROOT}", *flags, *tests], plugins=[trial])
    return trial.judge() if len(trial.noticed) == len(trial.drawn) else int(status)


if __name__ == "__main__":
    sys.exit(main())

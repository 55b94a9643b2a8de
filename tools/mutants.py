"""`make mutants`: changes single rules of the source, and counts the changes that no test notices.

A mutant is one changed expression in a copy of the source: another comparison, a negation removed, `and` for `or`, a
call left out. The sample is drawn by a seed, so a run can be repeated. Each mutant runs the tests that mirror its
file, then those of the folders that use it, until one fails; a run that hangs has noticed it too. The same tests run
on the unchanged source first, because a test that always fails would kill every mutant.
"""

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "antiphon"
# Folders of the source, and the tests that use them besides those that mirror a file.
AREAS = {
    "core": ("tests/core", "tests/agent", "tests/parsers", "tests/service", "tests/api"),
    "agent": ("tests/agent", "tests/service", "tests/api"),
    "stores": ("tests/stores", "tests/contracts/store", "tests/service"),
    "service/access": ("tests/service/access", "tests/transport/middleware", "tests/api"),
    "egress": ("tests/egress", "tests/tools", "tests/service/attachments"),
}
GOAL = 85.0  # percent of the mutants that tests notice
_TIMEOUT_SECONDS = 900
_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


class Mutant(Struct, frozen=True):
    path: Path  # below the package
    line: int
    before: str
    after: str
    source: bytes  # of the whole changed file

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.before}  →  {self.after}"


def list_mutants(path: Path, source: bytes) -> Iterator[Mutant]:
    """Yield all mutants of a file: changes within functions, except to logs and type annotations."""
    for node in _walk_functions(ast.parse(source)):
        if (changed := _mutate(node)) is None:
            continue
        begin, end = _find_range(node, source)
        before, after = source[begin:end].decode(), changed if isinstance(changed, str) else ast.unparse(changed)
        text = after if isinstance(node, ast.stmt) else f"({after})"
        yield Mutant(path, node.lineno, before, after, source[:begin] + text.encode() + source[end:])


def _walk_functions(tree: ast.AST, inside: bool = False) -> Iterator[ast.expr | ast.stmt]:
    for child in ast.iter_child_nodes(tree):
        # Before Python 3.12, positions within an f-string are not those of the file.
        if isinstance(child, ast.arguments | ast.JoinedStr) or (isinstance(child, ast.Expr) and _is_log(child)):
            continue
        if inside and isinstance(child, ast.expr | ast.stmt):
            yield child
        yield from _walk_functions(child, inside or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))


def _is_log(statement: ast.Expr) -> bool:
    return ast.unparse(statement).startswith(("log.", "_log."))


def _mutate(node: ast.AST) -> ast.AST | str | None:
    """Return what replaces an expression or statement, or None if it stays."""
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=compared):
            return ast.Compare(left, [_COMPARISONS[type(operator)]()], compared)
        case ast.BoolOp(op=operator, values=values):
            return ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return operand
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as operator, right=right):
            return ast.BinOp(left, ast.Sub() if isinstance(operator, ast.Add) else ast.Add(), right)
        case ast.Constant(value=bool(value)):
            return repr(not value)
        case ast.Expr(value=ast.Call() | ast.Await()):
            return "pass"
    return None


def _find_range(node: ast.expr | ast.stmt, source: bytes) -> tuple[int, int]:
    """Return the byte offsets of a node; its columns are counted in UTF-8 bytes."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts[node.lineno - 1] + node.col_offset, starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)


def draw_mutants(count: int, seed: int) -> list[tuple[str, Mutant]]:
    """Draw mutants of each area in proportion to its size."""
    found = [
        (area, mutant)
        for area in AREAS
        for path in sorted((PACKAGE / area).rglob("*.py"))
        for mutant in list_mutants(path.relative_to(PACKAGE), path.read_bytes())
    ]
    return random.Random(seed).sample(found, min(count, len(found)))


def list_tests(area: str, path: Path) -> list[list[str]]:
    """Return the groups of tests to run, one after the other."""
    mirrored = ROOT / "tests" / path.parent / f"test_{path.stem}.py"
    groups = [[str(mirrored.relative_to(ROOT))]] if mirrored.exists() else []
    return [*groups, *([folder] for folder in AREAS[area])]


def is_noticed(area: str, mutant: Mutant | None, path: Path) -> bool:
    """Run the tests of an area on a copy of the source, changed if there is a mutant."""
    with TemporaryDirectory() as folder:
        shutil.copytree(PACKAGE.parent, f"{folder}/src", ignore=shutil.ignore_patterns("__pycache__"))
        if mutant is not None:
            (Path(folder) / "src" / "antiphon" / mutant.path).write_bytes(mutant.source)
        environment = {**os.environ, "PYTHONPATH": f"{folder}/src:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
        return any(_fails(group, environment) for group in list_tests(area, path))


def _fails(tests: list[str], environment: dict[str, str]) -> bool:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not real_model", *tests]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=60, help="mutants to draw (60)")
    parser.add_argument("--seed", type=int, default=1, help="of the sample (1)")
    parser.add_argument("--area", choices=AREAS, action="append", help="only this folder; may be repeated")
    options = parser.parse_args()
    drawn = [(area, one) for area, one in draw_mutants(options.count, options.seed) if area in (options.area or AREAS)]
    for area in sorted({area for area, _ in drawn}):
        if is_noticed(area, None, Path()):
            sys.exit(f"The tests of {area} fail on the unchanged source: {' '.join(AREAS[area])}")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        noticed = list(pool.map(lambda one: _judge(*one), drawn))
    score = 100 * sum(noticed) / max(1, len(noticed))
    print(f"{sum(noticed)} of {len(noticed)} mutants were noticed: {score:.0f} %, goal {GOAL:.0f} %")
    return int(score < GOAL)


def _judge(area: str, mutant: Mutant) -> bool:
    noticed = is_noticed(area, mutant, mutant.path)
    print("noticed " if noticed else "SURVIVED", mutant, flush=True)
    return noticed


if __name__ == "__main__":
    sys.exit(main())

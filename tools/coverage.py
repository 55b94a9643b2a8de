"""Line coverage of `make test`: merges what the parts measured, prints the figure and compares it with the floor.

Measured is the code that test processes execute. What only servers in child processes execute is not counted, so the
true figure is higher. The program of the sandbox is left out: it only runs in confined processes with an empty
environment (tests/sandbox and the drill `sandbox` run it). So are the contract suites, which are tests themselves and
imported before the measurement begins, and the program of OpenVINO's child process.

slipcover measures, because it costs 15 % of CPU time; coverage.py costs 240 % on Python 3.11, which has no
sys.monitoring.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType

SOURCE = Path(__file__).parents[1] / "src"
VARIABLE = "TEST_COVERAGE"  # the file that tests/plugins/line_coverage.py writes
FLOOR = 96.5  # percent; raise it when the figure rises
UNMEASURED = (
    "antiphon/sandbox/worker/",
    "antiphon/testing/",
    *(
        f"antiphon/engines/openvino/{name}.py"
        for name in ("bert_graph", "child", "encoder", "generation", "loader", "server")
    ),
)


def judge(files: Iterable[Path]) -> int:
    """Print the coverage of all files together; return 1 if it is below the floor."""
    executed, missing = _merge(json.loads(path.read_text()) for path in files)
    missing |= {name: lines for name, lines in _list_lines() if name not in executed}
    missing = {name: lines for name, lines in missing.items() if not name.startswith(UNMEASURED)}
    lines = sum(len(ran) for name, ran in executed.items() if not name.startswith(UNMEASURED))
    percent = 100 * lines / max(1, lines + sum(map(len, missing.values())))
    print(f"Line coverage: {percent:.2f} %, floor {FLOOR} %")
    if percent >= FLOOR:
        return 0
    worst = sorted(missing, key=lambda name: len(missing[name]), reverse=True)[:10]
    print("Most lines without a test:", *[f"{len(missing[name]):5} {name}" for name in worst], sep="\n")
    return 1


def _merge(reports: Iterable[dict[str, list[list[int]]]]) -> tuple[dict[str, set[int]], dict[str, set[int]]]:
    """Return executed and missing lines by file. A line is missing if no report executed it."""
    executed: dict[str, set[int]] = {}
    missing: dict[str, set[int]] = {}
    for report in reports:
        for name, (ran, others) in report.items():
            executed.setdefault(name, set()).update(ran)
            missing.setdefault(name, set()).update(others)
    return executed, {name: lines - executed[name] for name, lines in missing.items()}


def _list_lines() -> Iterator[tuple[str, set[int]]]:
    """Yield all lines with code of every source file, for those that no test process imported."""
    for path in SOURCE.rglob("*.py"):
        yield path.relative_to(SOURCE).as_posix(), set(_code_lines(compile(path.read_bytes(), str(path), "exec")))


def _code_lines(code: CodeType) -> Iterator[int]:
    yield from (line for _, _, line in code.co_lines() if line)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code_lines(constant)

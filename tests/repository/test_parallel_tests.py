"""`make test` in parts: each test is in exactly one part, the claims are checked over all parts, and a few failures are
run again alone.
"""

import json
import sys
from datetime import date
from pathlib import Path

import pytest

from tools import parallel_tests
from tools.parallel_tests import MAX_RERUNS, PartResult, _run, judge, make_part, passes_again
from tools.requirements import ROOT, load

FAILING_TEST = "def test_never_right():\n    assert False\n"
FLAKY_TEST = """
from pathlib import Path

def test_wrong_at_first():
    seen = Path(__file__).with_suffix(".seen")
    second = seen.exists()
    seen.touch()
    assert second

def test_right():
    assert Path(__file__).exists()
"""


# A file outside the repository does not load tests/conftest.py. Two plugins take half of the time of such a run.
PYTEST_FLAGS = [
    "-c",
    "pyproject.toml",
    "-p",
    "tests.plugins.requirements",
    "-p",
    "no:anyio",
    "-p",
    "no:hypothesispytest",
]


def run_failing_part(folder: Path, text: str, code: int = 1) -> PartResult:
    file = folder / "test_one.py"
    file.write_text(text)
    first = _run(make_part("one", [*PYTEST_FLAGS, str(file)], folder))
    assert first.code == code, first.output
    return first


def test_claims_are_checked_over_all_parts(capsys: pytest.CaptureFixture[str]) -> None:
    rows = load().rows()
    claimed = {row.id for row in rows.values() if row.is_claimed}
    assert parallel_tests.judge_requirements(rows.values(), claimed) == 0
    assert parallel_tests.judge_requirements(rows.values(), claimed - {"A.1"}) == 1
    assert "A.1 " in capsys.readouterr().out


def test_every_test_file_is_in_exactly_one_part(tmp_path: Path) -> None:
    found = {part.name: part.command for part in parallel_tests.list_parts(tmp_path)}
    assert next(iter(found)) == parallel_tests.MODELS
    assert found.keys() == {parallel_tests.MODELS, "types", *parallel_tests.FOLDERS, parallel_tests.MEASUREMENTS}
    assert parallel_tests.MODEL_MARK in found[parallel_tests.MODELS][found[parallel_tests.MODELS].index("-m", 3) + 1]
    assert "tests/clients/embedded_model/test_responses.py" in found[parallel_tests.MODELS]
    assert "tests/clients" in found["clients"]
    assert {"tests/core", "tests/test_ids.py"} <= {*found[parallel_tests.OTHERS]}
    files = [path.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py")]
    marked = (parallel_tests.MODELS, parallel_tests.MEASUREMENTS)
    arguments = [argument for name, command in found.items() if name not in marked for argument in command]
    assert [str(file) for file in files if sum(map(file.is_relative_to, arguments)) != 1] == []


def test_measurements_are_the_last_part(tmp_path: Path) -> None:
    *parts, measurements = parallel_tests.list_parts(tmp_path)
    assert measurements.name == parallel_tests.MEASUREMENTS
    assert "tests/clients/persistence/test_large_requests.py" in measurements.command
    folders = [part for part in parts if part.name in parallel_tests.FOLDERS]
    assert all(f"not {parallel_tests.MEASUREMENT_MARK}" in " ".join(part.command) for part in folders)


@pytest.mark.parametrize("runs_slow", [True, False])
def test_slow_tests_are_left_out_unless_they_are_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs_slow: bool
) -> None:
    monkeypatch.setattr(parallel_tests, "RUNS_SLOW", runs_slow)
    chosen = [part for part in parallel_tests.list_parts(tmp_path) if part.name != "types"]
    assert {f"not {parallel_tests.SLOW_MARK}" in " ".join(part.command) for part in chosen} == {not runs_slow}


def test_a_failing_part_is_printed_and_fails_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    commands = {"good": "print('fine')", "bad": "print('a reason'); print('failed'); raise SystemExit(3)"}
    some = [parallel_tests.Part(name, [sys.executable, "-c", code]) for name, code in commands.items()]
    assert sorted(parallel_tests._print_result(outcome).code for outcome in parallel_tests._run_all(some)) == [0, 3]
    output = capsys.readouterr().out
    assert "good             fine (" in output
    assert "a reason\nfailed\n\nbad              failed (" in output


def test_a_test_that_passes_when_rerun_is_reported_as_unsteady(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    assert judge([run_failing_part(tmp_path, FLAKY_TEST)], tmp_path, quick=True) == 0
    output = capsys.readouterr().out
    assert "1 passed" in output
    assert output.splitlines()[-2].startswith("Unsteady")
    assert output.splitlines()[-1].endswith("::test_wrong_at_first")


@pytest.mark.parametrize("listed", [False, True])
def test_an_unsteady_test_fails_a_run_under_ci_unless_it_is_listed_and_requirements_are_judged_in_any_case(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, listed: bool
) -> None:
    monkeypatch.setenv("CI", "1")
    monkeypatch.setattr(parallel_tests, "RUNS_SLOW", True)
    monkeypatch.setattr(parallel_tests, "MEASURES_COVERAGE", False)
    first = run_failing_part(tmp_path, FLAKY_TEST)
    entry = f'[[tests]]\nid = "{first.part.list_failures()[0]}"\nreason = "a clock"\nsince = 2026-11-17\n'
    (tmp_path / "unsteady.toml").write_text(entry if listed else "")
    monkeypatch.setattr(parallel_tests, "UNSTEADY", tmp_path / "unsteady.toml")
    claimed = [row.id for row in load().rows().values() if row.is_claimed]
    (tmp_path / "others.json").write_text(json.dumps(claimed if listed else claimed[1:]))
    assert judge([first], tmp_path) == (0 if listed else 1)
    output = capsys.readouterr().out
    assert ("Under CI" in output) is not listed
    assert ("Requirements that claim to work" in output) is not listed


def test_listed_unsteady_tests_exist_and_are_listed_for_thirty_days_at_most() -> None:
    for test in parallel_tests.list_unsteady():
        file, _, name = test.id.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text("utf-8"), test.id
        assert (date.today() - test.since).days <= 30, f"{test.id}: fix its cause, {test.reason}"


def test_a_test_that_fails_again_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not passes_again([run_failing_part(tmp_path, FAILING_TEST)])
    assert "Unsteady" not in capsys.readouterr().out


def test_many_failures_are_not_rerun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "".join(FAILING_TEST.replace("never", f"never_{number}") for number in range(MAX_RERUNS + 1))
    assert not passes_again([run_failing_part(tmp_path, text)])
    assert not capsys.readouterr().out


def test_a_part_that_cannot_be_collected_is_not_rerun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not passes_again([run_failing_part(tmp_path, "import nothing_of_this_name\n", code=2)])
    assert not capsys.readouterr().out


def test_failures_are_not_rerun_beside_a_failed_part_without_tests(tmp_path: Path) -> None:
    first = run_failing_part(tmp_path, FLAKY_TEST)
    types = PartResult(first.part.make_rerun(), 1, "an error", 0.0)
    assert not passes_again([first, types])

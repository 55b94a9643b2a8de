"""`make test` in parts: each test is in one, all are judged together, what failed beside others is heard again."""

import sys
from pathlib import Path

import pytest

from tools import parallel_tests
from tools.parallel_tests import FEW, Outcome, _ran, _tests, heard_again
from tools.requirements import ROOT, load

ALWAYS = "def test_never_right():\n    assert False\n"
ONCE = """
from pathlib import Path

def test_wrong_at_first():
    seen = Path(__file__).with_suffix(".seen")
    known = seen.exists()
    seen.touch()
    assert known

def test_right():
    assert Path(__file__).exists()
"""


OURS = ["-c", "pyproject.toml", "-p", "tests.plugins.requirements"]  # a file elsewhere does not see our conftest.py


def outcome(folder: Path, text: str, code: int = 1) -> Outcome:
    file = folder / "test_one.py"
    file.write_text(text)
    first = _ran(_tests("one", [*OURS, str(file)], folder))
    assert first.code == code, first.output
    return first


def test_claims_are_judged_over_all_parts(capsys: pytest.CaptureFixture[str]) -> None:
    rows = load().rows()
    claimed = {row.id for row in rows.values() if row.claims}
    assert parallel_tests.judged(rows.values(), claimed) == 0
    assert parallel_tests.judged(rows.values(), claimed - {"A.1"}) == 1
    assert "A.1 " in capsys.readouterr().out


def test_every_test_is_in_one_part(tmp_path: Path) -> None:
    found = {part.name: part.command for part in parallel_tests.parts(tmp_path)}
    assert next(iter(found)) == parallel_tests.MODELS
    assert found.keys() >= {"types", *parallel_tests.LONG}
    assert found[parallel_tests.MODELS][found[parallel_tests.MODELS].index("-m", 3) + 1] == parallel_tests.MARK
    assert "tests/clients/embedded_model/test_responses.py" in found[parallel_tests.MODELS]
    assert found["tests/core"][-2:] == [f"not {parallel_tests.MARK}", "tests/core"]
    assert "tests/test_ids.py" in found["tests"]
    files = [path.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py")]
    places = [place for name, command in found.items() if name != parallel_tests.MODELS for place in command]
    assert [str(file) for file in files if sum(map(file.is_relative_to, places)) != 1] == []


def test_a_part_that_fails_is_heard_and_fails_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    commands = {"good": "print('fine')", "bad": "print('a reason'); print('failed'); raise SystemExit(3)"}
    some = [parallel_tests.Part(name, [sys.executable, "-c", code]) for name, code in commands.items()]
    assert sorted(parallel_tests._told(outcome).code for outcome in parallel_tests._run(some)) == [0, 3]
    said = capsys.readouterr().out
    assert "good             fine (" in said
    assert "a reason\nfailed\n\nbad              failed (" in said


def test_what_fails_beside_others_and_passes_alone_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = outcome(tmp_path, ONCE)
    assert heard_again([first])
    said = capsys.readouterr().out
    assert "1 passed" in said
    assert said.splitlines()[-2].startswith("Unsteady")
    assert said.splitlines()[-1].endswith("::test_wrong_at_first")


def test_what_fails_again_has_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not heard_again([outcome(tmp_path, ALWAYS)])
    assert "Unsteady" not in capsys.readouterr().out


def test_many_are_no_accident(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "".join(ALWAYS.replace("never", f"never_{number}") for number in range(FEW + 1))
    assert not heard_again([outcome(tmp_path, text)])
    assert not capsys.readouterr().out


def test_what_cannot_be_run_is_not_heard_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not heard_again([outcome(tmp_path, "import nothing_of_this_name\n", code=2)])
    assert not capsys.readouterr().out


def test_what_is_no_test_is_not_heard_again(tmp_path: Path) -> None:
    first = outcome(tmp_path, ONCE)
    types = Outcome(first.part.again(), 1, "an error", 0.0)
    assert not heard_again([first, types])

"""tools/lanes.py: who failed beside others is heard once more, alone; what fails again has failed."""

from pathlib import Path

import pytest

from tools.lanes import FEW, Outcome, _ran, _tests, heard_again

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


OURS = ["-c", "pyproject.toml", "-p", "tests.plugin_requirements"]  # a file elsewhere does not see our conftest.py


def outcome(folder: Path, text: str, code: int = 1) -> Outcome:
    file = folder / "test_one.py"
    file.write_text(text)
    first = _ran(_tests("one", [*OURS, str(file)], folder))
    assert first.code == code, first.output
    return first


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

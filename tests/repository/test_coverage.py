"""The coverage figure of `make test`: parts are merged, files that no test imports count, and the floor is enforced."""

import json
from pathlib import Path

import pytest

from tools import coverage
from tools.requirements import ROOT


def write_report(folder: Path, number: int, executed: list[int], missing: list[int]) -> Path:
    path = folder / f"{number}.coverage"
    path.write_text(json.dumps({"antiphon/a.py": [executed, missing]}))
    return path


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    source = tmp_path / "src"
    (source / "antiphon").mkdir(parents=True)
    (source / "antiphon" / "a.py").write_text("x = 1\ny = 2\nz = 3\nw = 4\n")
    monkeypatch.setattr(coverage, "SOURCE", source)
    return source


def test_a_line_counts_if_any_part_executed_it(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coverage, "FLOOR", 75.0)
    reports = [write_report(tmp_path, 1, [1, 2], [3, 4]), write_report(tmp_path, 2, [1, 3], [2, 4])]
    assert coverage.judge(reports) == 0
    assert capsys.readouterr().out == "Line coverage: 75.00 %, floor 75.0 %\n"


def test_a_file_that_no_part_imported_is_not_covered(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (source / "antiphon" / "b.py").write_text("def f():\n    return 1\n\n\nf()\n")
    assert coverage.judge([write_report(tmp_path, 1, [1, 2, 3, 4], [])]) == 1
    output = capsys.readouterr().out
    assert "57.14 %" in output
    assert "3 antiphon/b.py" in output


def test_the_program_of_the_sandbox_is_left_out(source: Path, tmp_path: Path) -> None:
    (source / coverage.UNMEASURED[0]).mkdir(parents=True)
    (source / coverage.UNMEASURED[0] / "c.py").write_text("x = 1\n" * 9)
    assert coverage.judge([write_report(tmp_path, 1, [1, 2, 3, 4], [])]) == 0


def test_the_plugin_reports_executed_and_missing_lines(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = pytester.path / "out.coverage"
    pytester.makepyfile("from antiphon.core.usage import sum_counts\n\ndef test_one():\n    assert sum_counts\n")
    monkeypatch.setenv(coverage.VARIABLE, str(report))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")  # an installed package may be that of another checkout
    result = pytester.runpytest_subprocess("-p", "tests.plugins.line_coverage", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)
    executed, missing = json.loads(report.read_text())["antiphon/core/usage.py"]
    assert executed
    assert missing

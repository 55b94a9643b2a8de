"""The results of drills: which figures are violations, and the section that a run writes into a page."""

import math
import re
from pathlib import Path

import pytest

from drills import report
from drills.harness.findings import Figure, Findings


@pytest.mark.parametrize(
    ("figure", "excess"),
    [
        (Figure("lag ms", 50.0, maximum=50.0), ""),
        (Figure("lag ms", 51.0, maximum=50.0), "lag ms 51 is above the limit of 50"),
        (Figure("goodput", 0.9, minimum=0.9), ""),
        (Figure("goodput", 0.5, minimum=0.9), "goodput 0.5 is below the limit of 0.9"),
        (Figure("ratio", math.nan, maximum=2.0), "ratio nan is above the limit of 2"),
        (Figure("recovery s", math.inf, maximum=5.0), "recovery s inf is above the limit of 5"),
        (Figure("responses", 1e9), ""),
    ],
)
def test_a_figure_beyond_its_limit_is_a_violation(figure: Figure, excess: str) -> None:
    findings = Findings("drill")
    findings.add_figure(figure)
    findings.check_figures()
    assert findings.reported == ([excess] if excess else [])
    assert findings.violations == bool(excess)


def _make_findings(drill: str, trials: int) -> Findings:
    findings = Findings(drill)
    findings.add_trials(trials)
    findings.add_figure(Figure("recovery p99 s", 1.25, maximum=10.0))
    return findings


def _write_page(folder: Path) -> Path:
    page = folder / "page.md"
    page.write_text(f"# Drills\n\n{report.BEGIN}\nnothing yet\n{report.END}\n\nMore text.\n")
    return page


def test_a_report_names_the_commit_the_date_the_machine_and_the_trials(tmp_path: Path) -> None:
    page = _write_page(tmp_path)
    report.write_report(page, "full", [_make_findings("kill9-sqlite", 1_200)])
    text = page.read_text()
    assert re.search(r"A full run at commit [0-9a-f]{12}.*, \d{4}-\d\d-\d\d, on \d+ cores .*: 1 drills?, 1,200", text)
    assert "kill9-sqlite   1,200           0        0  recovery p99 s 1.25" in text
    assert text.startswith("# Drills\n")
    assert text.endswith("\n\nMore text.\n")


def test_a_report_keeps_the_rows_of_other_drills_at_the_same_commit(tmp_path: Path) -> None:
    page = _write_page(tmp_path)
    report.write_report(page, "full", [_make_findings("kill9-sqlite", 1_200), _make_findings("disk", 5)])
    report.write_report(page, "full", [_make_findings("disk", 70)])
    assert "2 drills, 1,270 trials" in page.read_text()
    report.write_report(page, "quick", [_make_findings("disk", 3)])
    assert "1 drills, 3 trials" in page.read_text()


def test_a_page_without_a_section_is_rejected(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Drills\n")
    with pytest.raises(ValueError, match="has no section"):
        report.write_report(page, "full", [])

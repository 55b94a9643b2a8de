"""The progress display on a terminal and on other outputs."""

import io

import pytest

from antiphon.cli import progress
from antiphon.cli.progress import ProgressBar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def immediate_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "REDRAW_SECONDS", 0.0)
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)


@pytest.mark.shows("I.4")
@pytest.mark.usefixtures("immediate_output")
def test_a_terminal_gets_a_redrawn_bar_that_ends_with_one_newline(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    bar = ProgressBar()
    for done in (0, 500, 1000, 1000):
        bar("Fetching", done, 1000)
    drawn = screen.getvalue().split("\r")
    assert [line.count("█") for line in drawn] == [0, 0, 15, 30]
    assert drawn[2].startswith("Fetching [")
    assert "50 %" in drawn[2]
    assert screen.getvalue().count("\n") == 1


@pytest.mark.usefixtures("immediate_output")
@pytest.mark.shows("I.4", "I.5")
def test_other_outputs_get_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr("sys.stderr", screen)
    lines = ProgressBar()
    lines("Fetching", 1, 4)
    lines("Fetching", 4, 4)
    lines("Loading", 0, 1)
    lines("Loading", 1, 1)
    assert screen.getvalue() == "Fetching: 25 %\nFetching: 100 %\nLoading: …\nLoading: done\n"


def test_a_quick_task_prints_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr("sys.stderr", screen)
    lines = ProgressBar()
    for done in range(101):
        lines("Checking", done, 100)
    assert screen.getvalue() == "Checking: 100 %\n"

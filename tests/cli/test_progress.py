"""How far it has come, on a terminal and elsewhere."""

import io

import pytest

from antiphon.cli import progress
from antiphon.cli.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "REDRAW_SECONDS", 0.0)
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)


@pytest.mark.shows("I.4")
@pytest.mark.usefixtures("at_once")
def test_a_terminal_gets_a_bar_that_is_drawn_anew_and_ends_its_line_once(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    bar = Progress()
    for done in (0, 500, 1000, 1000):
        bar("Fetching", done, 1000)
    drawn = screen.getvalue().split("\r")
    assert [line.count("█") for line in drawn] == [0, 0, 15, 30]
    assert drawn[2].startswith("Fetching [")
    assert "50 %" in drawn[2]
    assert screen.getvalue().count("\n") == 1


@pytest.mark.usefixtures("at_once")
@pytest.mark.shows("I.4", "I.5")
def test_elsewhere_it_is_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr("sys.stderr", screen)
    lines = Progress()
    lines("Fetching", 1, 4)
    lines("Fetching", 4, 4)
    lines("Loading", 0, 1)
    lines("Loading", 1, 1)
    assert screen.getvalue() == "Fetching: 25 %\nFetching: 100 %\nLoading: …\nLoading: done\n"


def test_what_is_quick_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr("sys.stderr", screen)
    lines = Progress()
    for done in range(101):
        lines("Checking", done, 100)
    assert screen.getvalue() == "Checking: 100 %\n"

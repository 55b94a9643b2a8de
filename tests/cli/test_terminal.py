"""The startup message of a server, and the progress display on a terminal and on other outputs."""

import io

import pytest

from antiphon.cli import terminal
from antiphon.cli.terminal import ProgressBar, print_banner, suggest_openvino
from antiphon.config import Config
from antiphon.config.engines import EngineSpec


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def immediate_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "REDRAW_SECONDS", 0.0)
    monkeypatch.setattr(terminal, "LINE_SECONDS", 0.0)


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


def test_the_banner_names_every_engine_and_marks_drained_ones(capsys: pytest.CaptureFixture[str]) -> None:
    engines = (EngineSpec(url="vllm://a:1", key="hush"), EngineSpec(url="vllm://b:1", drain=True))
    print_banner(Config.from_settings(engines=engines, store="memory"), "http://127.0.0.1:8000", ["m", "n"])
    shown = capsys.readouterr().err
    assert "serves m, n with vllm://a:1, vllm://b:1 (drained)\n" in shown
    assert "hush" not in shown


def test_the_banner_line_is_shortened_with_many_engines_and_models(capsys: pytest.CaptureFixture[str]) -> None:
    urls = tuple(f"vllm://gpu-{number}:8000" for number in range(20))
    models = [f"m{number}" for number in range(50)]
    print_banner(Config.from_settings(engine=urls, store="memory"), "http://127.0.0.1:8000", models)
    first = capsys.readouterr().err.splitlines()[0]
    assert first.endswith("gpu-5:8000 and 14 more")
    assert len(first) < 250


@pytest.mark.parametrize(
    ("settings", "machine", "suggested"),
    [
        ({"slots": 8}, "x86_64", True),
        ({"slots": 4}, "x86_64", False),
        ({}, "x86_64", False),
        ({"slots": 32}, "aarch64", False),
        ({"slots": 32, "gpu_layers": 99}, "x86_64", False),
        ({"slots": 32, "engine": "openvino"}, "x86_64", False),
    ],
)
@pytest.mark.shows("C.29")
def test_openvino_is_suggested_for_many_streams_on_x86(
    settings: dict[str, object], machine: str, suggested: bool
) -> None:
    assert suggest_openvino(Config.from_settings(**settings), machine) is suggested


def test_the_suggestion_says_how_to_install_the_engine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(terminal, "find_spec", lambda name: None)
    print_banner(Config.from_settings(slots=16), "http://127.0.0.1:1", ["a"])
    assert "--engine openvino, after pip install 'antiphon[openvino]'" in capsys.readouterr().err

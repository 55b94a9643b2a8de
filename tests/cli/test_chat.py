"""A chat in the terminal and in a pipe, with a real server."""

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon.cli.client import Client
from antiphon.errors import StartupError
from tests.cli.process import DEADLINE, run, terminal
from tests.support.server_process import Live, pytest_runtest_makereport, serving

__all__ = ["pytest_runtest_makereport"]

pytestmark = pytest.mark.shows("I.2")
DIM = "\x1b[2m"


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with serving("--engine", "fake", "--context", "120") as live:
        yield live


def test_a_pipe_gets_an_answer_for_each_line_and_nothing_else(tmp_path: Path, server: Live) -> None:
    ran = run(tmp_path, "chat", "--url", server.url, "--effort", "high", given="One\n\nTwo\n")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "You said: One\nYou said: Two\n", "")


def test_a_single_question_can_be_an_argument(tmp_path: Path, server: Live) -> None:
    ran = run(tmp_path, "chat", "Well?", "--url", server.url)
    assert (ran.returncode, ran.stdout) == (0, "You said: Well?\n")


@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/"])
def test_an_address_may_be_the_servers_or_its_apis(server: Live, ending: str) -> None:
    assert Client(server.url + ending, None).models() == ["fake"]


def test_the_conversation_is_sent_with_every_question_until_a_new_one_begins(tmp_path: Path, server: Live) -> None:
    """The context of this server has room for one long question, not for two."""
    long = "word " * 60
    ran = run(tmp_path, "chat", "--url", server.url, given=f"{long}\n{long}\n/new\n{long}\n")
    assert ran.stdout.count("You said") == 2
    assert ran.stderr.count("context") == 1
    assert ran.returncode == 1


def test_thoughts_are_dimmed_at_a_terminal(tmp_path: Path, server: Live) -> None:
    with terminal(tmp_path, "chat", "--url", server.url, "--effort", "high") as screen:
        screen.wait_for("> ")
        screen.type("Hello\n")
        told = screen.wait_for("You said: Hello")
        assert DIM in told.partition("Hello")[2]
        screen.wait_for(" tokens in ")
        screen.wait_for("> ")
        screen.type("/help\n")
        screen.wait_for("Ctrl-D")
        screen.wait_for("> ")
        screen.type("/nonsense\n")
        screen.wait_for("There is no /nonsense here.")
        screen.wait_for("> ")
        screen.type("\x04")
        assert screen.process.wait(timeout=DEADLINE) == 0


def test_an_interrupt_stops_the_answer_and_the_servers_work_but_not_the_chat(tmp_path: Path) -> None:
    flags = ("--engine", "fake", "--fake-tokens", "5000", "--fake-rate", "50")
    with serving(*flags) as live, terminal(tmp_path, "chat", "--url", live.url) as screen:
        screen.wait_for("> ")
        screen.type("Go on\n")
        screen.wait_for(" ")
        wait_until(live, "antiphon_num_requests_running 1")
        os.kill(screen.process.pid, signal.SIGINT)
        screen.wait_for("(stopped)")
        wait_until(live, 'antiphon_responses_total{status="cancelled"} 1')
        screen.wait_for("> ")
        screen.type("\x04")
        assert screen.process.wait(timeout=DEADLINE) == 0


def test_bytes_that_are_no_text_do_no_harm(tmp_path: Path, server: Live) -> None:
    ran = run(tmp_path, "chat", "--url", server.url, given="a\udcffb\n")
    assert (ran.returncode, ran.stdout) == (0, "You said: a\ufffdb\n")
    assert run(tmp_path, "chat", "--url", server.url, "a\udcffb").stdout == "You said: a?b\n"


def test_control_characters_of_a_model_do_not_reach_the_terminal(tmp_path: Path, server: Live) -> None:
    ran = run(tmp_path, "chat", "a\x1b]0;title\x07b\x9bc", "--url", server.url)
    assert ran.stdout == "You said: a]0;titlebc\n"


def test_without_a_server_a_chat_says_how_to_start_one(tmp_path: Path) -> None:
    ran = run(tmp_path, "chat", "--url", "http://127.0.0.1:9", given="Hello\n")
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (1, "", 1)
    assert re.search(r"No server answers at http://127.0.0.1:9 .*antiphon serve", ran.stderr)


@pytest.mark.parametrize("url", ["ftp://x", "http://", "nonsense", "http://a:99999"])
def test_an_address_that_is_none_is_one_sentence(url: str) -> None:
    with pytest.raises(StartupError, match="is not a server's address"):
        Client(url, None)


def test_a_missing_key_is_told_and_a_key_lets_in(tmp_path: Path) -> None:
    with serving("--engine", "fake", "--api-key", "hush") as live:
        ran = run(tmp_path, "chat", "--url", live.url, "Hello")
        assert (ran.returncode, "ANTIPHON_API_KEY" in ran.stderr) == (1, True)
        assert run(tmp_path, "chat", "--url", live.url, "--api-key", "hush", "Hello").stdout == "You said: Hello\n"


def test_what_the_server_says_of_an_error_is_shown(tmp_path: Path) -> None:
    (tmp_path / "script.toml").write_text('[[reply]]\n[[reply.steps]]\nerror = { message = "The dog ate it." }\n')
    with serving("--engine", "fake", "--fake-script", str(tmp_path / "script.toml")) as live:
        ran = run(tmp_path, "chat", "--url", live.url, "Hello")
    assert (ran.returncode, ran.stdout.strip()) == (1, "")
    assert "The dog ate it." in ran.stderr


def wait_until(live: Live, line: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while line.encode() not in (numbers := live.get("/metrics")[1]):
        assert time.monotonic() < deadline, numbers.decode()
        time.sleep(0.02)

"""`antiphon chat` at a terminal and in a pipe, against a real server.

Covers `cli/client.py`.
"""

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon.cli.client import ServerClient
from antiphon.errors import StartupError
from tests.cli.process import TIMEOUT_SECONDS, open_terminal, run_antiphon
from tests.support.server_process import ServerProcess, pytest_runtest_makereport, run_server

__all__ = ["pytest_runtest_makereport"]

pytestmark = pytest.mark.shows("I.2")
DIM = "\x1b[2m"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with run_server("--engine", "fake", "--context", "120") as server:
        yield server


def test_a_pipe_gets_an_answer_for_each_line_and_nothing_else(tmp_path: Path, server: ServerProcess) -> None:
    ran = run_antiphon(tmp_path, "chat", "--url", server.url, "--effort", "high", stdin="One\n\nTwo\n")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "You said: One\nYou said: Two\n", "")


def test_a_single_question_can_be_an_argument(tmp_path: Path, server: ServerProcess) -> None:
    ran = run_antiphon(tmp_path, "chat", "Well?", "--url", server.url)
    assert (ran.returncode, ran.stdout) == (0, "You said: Well?\n")


@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/"])
def test_the_url_may_include_the_api_path(server: ServerProcess, ending: str) -> None:
    client = ServerClient(server.url + ending, None)
    assert client.run(client.list_models()) == ["fake"]


def test_the_history_is_sent_until_a_new_conversation_begins(tmp_path: Path, server: ServerProcess) -> None:
    """The context of this server has room for one long question, not for two."""
    long = "word " * 60
    ran = run_antiphon(tmp_path, "chat", "--url", server.url, stdin=f"{long}\n{long}\n/new\n{long}\n")
    assert ran.stdout.count("You said") == 2
    assert ran.stderr.count("context") == 1
    assert ran.returncode == 1


def test_reasoning_is_dimmed_at_a_terminal(tmp_path: Path, server: ServerProcess) -> None:
    with open_terminal(tmp_path, "chat", "--url", server.url, "--effort", "high") as screen:
        screen.wait_for("> ")
        screen.type("Hello\n")
        output = screen.wait_for("You said: Hello")
        assert DIM in output.partition("Hello")[2]
        screen.wait_for(" tokens in ")
        screen.wait_for("> ")
        screen.type("/help\n")
        screen.wait_for("Ctrl-D")
        screen.wait_for("> ")
        screen.type("/nonsense\n")
        screen.wait_for("Unknown command: /nonsense")
        screen.wait_for("> ")
        screen.type("\x04")
        assert screen.process.wait(timeout=TIMEOUT_SECONDS) == 0


def test_an_interrupt_cancels_the_response_but_not_the_chat(tmp_path: Path) -> None:
    flags = ("--engine", "fake", "--fake-tokens", "5000", "--fake-rate", "50", "--keep-streams", "0")
    with run_server(*flags) as server, open_terminal(tmp_path, "chat", "--url", server.url) as screen:
        screen.wait_for("> ")
        screen.type("Go on\n")
        screen.wait_for(" ")
        wait_for_metric(server, "antiphon_num_requests_running 1")
        os.kill(screen.process.pid, signal.SIGINT)
        screen.wait_for("(stopped)")
        wait_for_metric(server, 'antiphon_responses_total{status="cancelled"} 1')
        screen.wait_for("> ")
        screen.type("\x04")
        assert screen.process.wait(timeout=TIMEOUT_SECONDS) == 0


def test_invalid_utf8_input_is_replaced(tmp_path: Path, server: ServerProcess) -> None:
    ran = run_antiphon(tmp_path, "chat", "--url", server.url, stdin="a\udcffb\n")
    assert (ran.returncode, ran.stdout) == (0, "You said: a\ufffdb\n")
    assert run_antiphon(tmp_path, "chat", "--url", server.url, "a\udcffb").stdout == "You said: a?b\n"


def test_control_characters_of_a_model_do_not_reach_the_terminal(tmp_path: Path, server: ServerProcess) -> None:
    ran = run_antiphon(tmp_path, "chat", "a\x1b]0;title\x07b\x9bc", "--url", server.url)
    assert ran.stdout == "You said: a]0;titlebc\n"


def test_chat_without_a_server_explains_how_to_start_one(tmp_path: Path) -> None:
    ran = run_antiphon(tmp_path, "chat", "--url", "http://127.0.0.1:9", stdin="Hello\n")
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (1, "", 1)
    assert re.search(r"No server answers at http://127.0.0.1:9 .*antiphon serve", ran.stderr)


@pytest.mark.parametrize("url", ["ftp://x", "http://", "nonsense", "http://a:99999"])
def test_an_invalid_url_raises_a_startup_error(url: str) -> None:
    with pytest.raises(StartupError, match="is not a server's address"):
        ServerClient(url, None)


def test_a_missing_key_is_reported_and_a_valid_key_works(tmp_path: Path) -> None:
    with run_server("--engine", "fake", "--api-key", "hush") as server:
        ran = run_antiphon(tmp_path, "chat", "--url", server.url, "Hello")
        assert (ran.returncode, "ANTIPHON_API_KEY" in ran.stderr) == (1, True)
        assert (
            run_antiphon(tmp_path, "chat", "--url", server.url, "--api-key", "hush", "Hello").stdout
            == "You said: Hello\n"
        )


def test_the_error_message_of_the_server_is_printed(tmp_path: Path) -> None:
    (tmp_path / "script.toml").write_text('[[reply]]\n[[reply.steps]]\nerror = { message = "The dog ate it." }\n')
    with run_server("--engine", "fake", "--fake-script", str(tmp_path / "script.toml")) as server:
        ran = run_antiphon(tmp_path, "chat", "--url", server.url, "Hello")
    assert (ran.returncode, ran.stdout.strip()) == (1, "")
    assert "The dog ate it." in ran.stderr


def wait_for_metric(server: ServerProcess, line: str) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while line.encode() not in (metrics := server.get("/metrics")[1]):
        assert time.monotonic() < deadline, metrics.decode()
        time.sleep(0.02)

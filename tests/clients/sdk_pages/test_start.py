"""The program of docs/start runs as it is written, except for the address, with the fake engine."""

from pathlib import Path

from tests.clients.sdk_pages.client_pages import run_program
from tests.support.server_process import ServerProcess


def test_the_first_program_prints_answers_and_a_stored_response(fake_server: ServerProcess, tmp_path: Path) -> None:
    output = run_program("../start/first-answer.md", fake_server.port, tmp_path).splitlines()
    assert len(output) == 4
    assert all(output)
    assert output[-1] == "completed"

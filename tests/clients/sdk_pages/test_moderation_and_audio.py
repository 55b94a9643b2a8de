"""The programs of docs/moderation.md and docs/audio.md run as they are written, except for the address, with the fake
engine.
"""

from pathlib import Path

import pytest

from tests.clients.sdk_pages.client_pages import run_program
from tests.support.server_process import ServerProcess, run_server


@pytest.mark.shows("G3.1", "G3.2")
def test_the_moderation_program_prints_scores_and_a_blocked_response(tmp_path: Path) -> None:
    with run_server("--engine", "fake", "--moderation-model", "fake") as server:
        output = run_program("../moderation.md", server.port, tmp_path)
    assert output.splitlines() == ["False 0.01", "True 0.99", "incomplete content_filter True"]


@pytest.mark.shows("G3.3", "G3.4")
def test_the_audio_program_prints_what_the_model_hears(fake_server: ServerProcess, tmp_path: Path) -> None:
    output = run_program("../audio.md", fake_server.port, tmp_path)
    assert output.splitlines() == ["8000", "You said: [audio] What do you hear?"]

"""The page of llm, run against a real server: its commands and its Python code."""

import json
from pathlib import Path

import pytest

from tests.clients.coding.recording_proxy import RecordingProxy
from tests.clients.sdk_pages.client_pages import extract_block, extract_blocks
from tests.clients.sdk_pages.page_runner import run_command, run_page

pytestmark = [pytest.mark.real_client, pytest.mark.timeout(240)]


@pytest.fixture
def home(recording_proxy: RecordingProxy, tmp_path: Path) -> Path:
    """Home directory with the model configured in the file that the page names."""
    folder = Path(run_command(["llm", "logs", "path"], tmp_path).strip()).parent
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "extra-openai-models.yaml").write_text(extract_block("llm.md", "yaml", port=recording_proxy.port))
    return tmp_path


@pytest.mark.shows("I.14")
@pytest.mark.uses("llm", "answers", "tools", "structured output")
def test_the_commands_print_the_scripted_answers(recording_proxy: RecordingProxy, home: Path) -> None:
    outputs = [
        run_command(["bash", "-euc", block], home)
        for block in extract_blocks("llm.md", "bash", port=recording_proxy.port)
    ]
    at_once, plain, continued, tools, shape = outputs
    assert at_once == "fake\nOslo.\n"
    assert plain == "Oslo.\n"
    assert continued == "Oslo.\nSome 700,000.\n"
    assert tools == "It is sunny in Oslo.\n"
    assert {post.path for post in recording_proxy.get_posts()} == {"/v1/responses"}
    assert {body["store"] for body in recording_proxy.get_bodies()} == {False}
    assert json.loads(shape) == {"city": "Oslo", "people": 700_000}


@pytest.mark.shows("I.14")
@pytest.mark.uses("llm", "streaming")
def test_the_python_code_prints_the_scripted_answers(recording_proxy: RecordingProxy, home: Path) -> None:
    assert run_page("llm.md", recording_proxy.port, home) == ["Oslo.\nSome |700,000|.|\n"]

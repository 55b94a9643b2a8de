"""llm does what its page shows: on the command line, and in Python."""

import json
from pathlib import Path

import pytest

from tests.clients.coding.recording_proxy import Tap
from tests.clients.sdk_pages.client_pages import blocks, shown
from tests.clients.sdk_pages.page_runner import printed, run

pytestmark = [pytest.mark.real_client, pytest.mark.timeout(240)]


@pytest.fixture
def home(tapped: Tap, tmp_path: Path) -> Path:
    """With the model named where the page says."""
    folder = Path(run(["llm", "logs", "path"], tmp_path).strip()).parent
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "extra-openai-models.yaml").write_text(shown("llm.md", "yaml", port=tapped.port))
    return tmp_path


@pytest.mark.shows("I.14")
def test_the_commands_print_what_the_model_says(tapped: Tap, home: Path) -> None:
    said = [run(["bash", "-euc", block], home) for block in blocks("llm.md", "bash", port=tapped.port)]
    at_once, plain, continued, tools, shape = said
    assert at_once == "fake\nOslo.\n"
    assert plain == "Oslo.\n"
    assert continued == "Oslo.\nSome 700,000.\n"
    assert tools == "It is sunny in Oslo.\n"
    assert {post.path for post in tapped.posts()} == {"/v1/responses"}
    assert {body["store"] for body in tapped.bodies()} == {False}
    assert json.loads(shape) == {"city": "Oslo", "people": 700_000}


@pytest.mark.shows("I.14")
def test_the_same_model_in_python(tapped: Tap, home: Path) -> None:
    assert printed("llm.md", tapped.port, home) == ["Oslo.\nSome |700,000|.|\n"]

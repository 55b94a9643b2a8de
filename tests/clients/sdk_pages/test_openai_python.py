"""The page of the openai package for Python, run over HTTP and over a WebSocket."""

from pathlib import Path

import pytest

from tests.clients.coding.recording_proxy import RecordingProxy
from tests.clients.sdk_pages.page_runner import run_page

pytestmark = [pytest.mark.real_client, pytest.mark.timeout(240)]


@pytest.mark.shows("I.10", "F.3", "F.4", "F.6")
@pytest.mark.uses(
    "openai-python", "answers", "streaming", "tools", "structured output", "stored state", "background", "WebSocket"
)
def test_the_page_prints_the_scripted_answers(recording_proxy: RecordingProxy, tmp_path: Path) -> None:
    assert run_page("openai-python.md", recording_proxy.port, tmp_path) == [
        "Oslo.\n",
        "Os|lo|.| (completed)\n",
        "It is sunny in Oslo.\n",
        "Oslo 700000\n",
        "Some 700,000.\n",
        f"Some 700,000.\n{['message'] * 4}\n",
        "response.completed Oslo.\n",
        "Oslo.\nSome 700,000.\n",  # over a WebSocket
        "['Oslo.', 'Stockholm.']\n",  # on two lanes
    ]
    one, lanes = recording_proxy.get_upgrades()
    assert [message.get("generate") for message in one.messages] == [False, None, None]
    ids = [event["response"]["id"] for event in one.received if event["type"] == "response.completed"]
    assert [message.get("previous_response_id") for message in one.messages] == [None, *ids[:-1]]
    assert [message["stream_id"] for message in lanes.messages] == ["one", "two"]

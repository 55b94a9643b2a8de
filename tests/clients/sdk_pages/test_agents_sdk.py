"""The page of the OpenAI Agents SDK for Python, run over HTTP and over a WebSocket."""

from pathlib import Path

import pytest

from tests.clients.coding.recording_proxy import RecordingProxy
from tests.clients.sdk_pages.page_runner import run_page

pytestmark = [pytest.mark.real_client, pytest.mark.timeout(240)]


@pytest.mark.shows("I.14", "F.1", "F.4")
@pytest.mark.uses("agents-sdk", "answers", "streaming", "tools", "stored state", "WebSocket")
def test_the_page_prints_the_scripted_answers(recording_proxy: RecordingProxy, tmp_path: Path) -> None:
    *definitions, output = run_page("agents-sdk.md", recording_proxy.port, tmp_path)
    assert not any(definitions)
    assert output.splitlines() == [
        "Oslo.",
        "Os|lo|.|",
        "It is sunny in Oslo.",
        "Some 700,000.",
        "Some 700,000. 4",  # a conversation of four items
        "It is sunny in Oslo.",  # over a WebSocket
        "Some |700,000|.|",
        "Some 700,000.",  # without stored responses
    ]
    stored, unstored = recording_proxy.get_upgrades()
    assert len(stored.messages) == 3  # the tool took two turns
    assert [message["store"] for message in unstored.messages] == [False, False]
    assert [len(message["input"]) for message in unstored.messages] == [1, 1]

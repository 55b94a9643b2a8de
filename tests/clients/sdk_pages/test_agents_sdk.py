"""The OpenAI Agents SDK for Python does what its page shows, over HTTP and over a WebSocket."""

from pathlib import Path

import pytest

from tests.clients.coding.recording_proxy import Tap
from tests.clients.sdk_pages.page_runner import printed

pytestmark = [pytest.mark.real_client, pytest.mark.timeout(240)]


@pytest.mark.shows("I.14", "F.1", "F.4")
def test_the_page_prints_what_the_model_says(tapped: Tap, tmp_path: Path) -> None:
    *definitions, said = printed("agents-sdk.md", tapped.port, tmp_path)
    assert not any(definitions)
    assert said.splitlines() == [
        "Oslo.",
        "Os|lo|.|",
        "It is sunny in Oslo.",
        "Some 700,000.",
        "Some 700,000. 4",  # in a conversation of four items
        "It is sunny in Oslo.",  # over a WebSocket
        "Some |700,000|.|",
        "Some 700,000.",  # with nothing stored
    ]
    stored, unstored = tapped.upgrades()
    assert len(stored.messages) == 3  # the tool took two turns
    assert [message["store"] for message in unstored.messages] == [False, False]
    assert [len(message["input"]) for message in unstored.messages] == [1, 1]

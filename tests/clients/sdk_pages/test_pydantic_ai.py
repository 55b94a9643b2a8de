"""The page of Pydantic AI, run against a real server."""

from pathlib import Path

import pytest

from tests.clients.coding.recording_proxy import RecordingProxy
from tests.clients.sdk_pages.page_runner import run_page

pytestmark = [pytest.mark.real_client, pytest.mark.timeout(240)]


@pytest.mark.shows("I.14")
@pytest.mark.uses("pydantic-ai", "answers", "streaming", "tools", "structured output", "stored state")
def test_the_page_prints_the_scripted_answers(recording_proxy: RecordingProxy, tmp_path: Path) -> None:
    assert run_page("pydantic-ai.md", recording_proxy.port, tmp_path) == [
        "Oslo.\n",
        "Os|lo|.|\n",
        "It is sunny in Oslo.\n",
        "city='Oslo' people=700000\n",
        "Some 700,000.\n",
    ]
    last = recording_proxy.get_bodies()[-1]
    assert last["previous_response_id"].startswith("resp_")
    assert [message["role"] for message in last["input"]] == ["user"]  # earlier messages are not repeated

"""Pydantic AI does what its page shows."""

from pathlib import Path

import pytest

from tests.clients.coding.recording_proxy import Tap
from tests.clients.sdk_pages.page_runner import printed

pytestmark = [pytest.mark.real_client, pytest.mark.timeout(240)]


@pytest.mark.shows("I.14")
def test_the_page_prints_what_the_model_says(tapped: Tap, tmp_path: Path) -> None:
    assert printed("pydantic-ai.md", tapped.port, tmp_path) == [
        "Oslo.\n",
        "Os|lo|.|\n",
        "It is sunny in Oslo.\n",
        "city='Oslo' people=700000\n",
        "Some 700,000.\n",
    ]
    last = tapped.bodies()[-1]
    assert last["previous_response_id"].startswith("resp_")
    assert [message["role"] for message in last["input"]] == ["user"]  # and nothing of what was said before

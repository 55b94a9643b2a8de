"""The page of LiteLLM, run against a real server."""

from pathlib import Path

import pytest

from tests.clients.coding.recording_proxy import RecordingProxy
from tests.clients.sdk_pages.page_runner import run_page

pytestmark = [pytest.mark.real_client, pytest.mark.timeout(240)]


@pytest.mark.shows("I.14")
@pytest.mark.uses("litellm", "answers", "streaming", "tools", "stored state")
def test_the_page_prints_the_scripted_answers(recording_proxy: RecordingProxy, tmp_path: Path) -> None:
    assert run_page("litellm.md", recording_proxy.port, tmp_path, install="litellm") == [
        "Oslo.\n",
        "Os|lo|.|\n",
        "It is sunny in Oslo.\n",
        "Some 700,000.\n",
        "Oslo.\n",
    ]
    assert {post.path for post in recording_proxy.get_posts()} == {"/v1/responses"}
    assert [bool(body.get("stream")) for body in recording_proxy.get_bodies()] == [False, True, *[False] * 5]

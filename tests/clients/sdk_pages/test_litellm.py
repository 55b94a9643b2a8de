"""LiteLLM does what its page shows."""

from pathlib import Path

import pytest

from tests.clients.coding.recording_proxy import Tap
from tests.clients.sdk_pages.page_runner import printed

pytestmark = [pytest.mark.real_client, pytest.mark.timeout(240)]


@pytest.mark.shows("I.14")
def test_the_page_prints_what_the_model_says(tapped: Tap, tmp_path: Path) -> None:
    assert printed("litellm.md", tapped.port, tmp_path, place="litellm") == [
        "Oslo.\n",
        "Os|lo|.|\n",
        "It is sunny in Oslo.\n",
        "Some 700,000.\n",
        "Oslo.\n",
    ]
    assert {post.path for post in tapped.posts()} == {"/v1/responses"}
    assert [bool(body.get("stream")) for body in tapped.bodies()] == [False, True, *[False] * 5]

"""Claude Code, run as its page shows, with the Messages API."""

import pytest

from tests.clients.coding.client_runner import Client
from tests.clients.coding.recording_proxy import RecordingProxy
from tests.clients.sdk_pages.client_pages import extract_block

pytestmark = [pytest.mark.real_client, pytest.mark.needs("node"), pytest.mark.timeout(700)]

PAGE = "claude-code.md"


@pytest.mark.shows("I2.5")
@pytest.mark.uses("claude-code", "answers")
def test_claude_code_answers_with_the_settings_of_its_page(client: Client, proxy: RecordingProxy) -> None:
    client.write_file(".claude/settings.json", extract_block(PAGE, "json", port=proxy.port))
    ran = client.run(extract_block(PAGE, "sh"))
    assert ran.code == 0, str(ran)
    assert ran.out.strip() == "Oslo.", str(ran)
    bodies = proxy.get_bodies()
    assert {body["model"] for body in bodies} == {"qwen3-coder"}
    assert {body["max_tokens"] for body in bodies} == {8192}
    assert "Bash" in {tool["name"] for body in bodies for tool in body.get("tools", [])}
    assert all(post.headers["authorization"] == "Bearer unused" for post in proxy.get_posts())

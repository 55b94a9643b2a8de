"""opencode, run as its page shows: it runs a real command, then answers."""

import json
from typing import Any

import pytest

from tests.clients.coding.client_runner import Client
from tests.clients.coding.recording_proxy import RecordingProxy
from tests.clients.sdk_pages.client_pages import extract_block

pytestmark = [pytest.mark.real_client, pytest.mark.needs("node"), pytest.mark.timeout(700)]

PAGE = "opencode.md"
SUM = "The sum is 42."
# opencode looks for updates of itself, of models and of language servers when it starts.
OFFLINE = {
    f"OPENCODE_DISABLE_{feature}": "1"
    for feature in ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS", "SHARE")
}


def select_by_tool(bodies: list[Any], name: str) -> list[Any]:
    """Return the bodies that offer this tool."""
    return [body for body in bodies if name in {tool.get("name") for tool in body.get("tools", [])}]


@pytest.fixture
def client(client: Client) -> Client:
    if not client.has_program("opencode"):
        pytest.skip("platform: opencode is pinned for Linux alone")
    return client


@pytest.mark.shows("I.14")
@pytest.mark.uses("opencode", "answers", "streaming", "tools")
def test_opencode_runs_a_command_and_sends_its_output(client: Client, proxy: RecordingProxy) -> None:
    client.write_file("project/opencode.json", extract_block(PAGE, "json", port=proxy.port))
    ran = client.run(extract_block(PAGE, "sh"), OFFLINE, seconds=120)
    assert ran.code == 0, str(ran)
    assert f"The tool said: {SUM}" in ran.out, str(ran)
    bodies = proxy.get_bodies()
    first, second = select_by_tool(bodies, "bash")
    (title,) = [body for body in bodies if not body.get("tools")]
    assert "title" in json.dumps(title["input"])
    for body in bodies:
        assert (body["model"], body["store"], body["stream"]) == ("qwen3-coder", False, True)
    assert first["prompt_cache_key"] == second["prompt_cache_key"]
    (output,) = [item for item in second["input"] if item.get("type") == "function_call_output"]
    assert SUM in json.dumps(output["output"])


def test_a_session_is_continued(client: Client, proxy: RecordingProxy) -> None:
    client.write_file("project/opencode.json", extract_block(PAGE, "json", port=proxy.port))
    assert client.run(extract_block(PAGE, "sh"), OFFLINE, seconds=120).code == 0
    ran = client.run('opencode run --continue "What is the capital of Norway?"', OFFLINE, seconds=120)
    assert ran.code == 0, str(ran)
    assert "Oslo." in ran.out, str(ran)
    last = max(select_by_tool(proxy.get_bodies(), "bash"), key=lambda body: len(body["input"]))
    assert SUM in json.dumps(last["input"])

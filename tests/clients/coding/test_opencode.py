"""opencode as its page shows it: a command that is really run, then an answer."""

import json
from typing import Any

import pytest

from tests.clients.coding.client_runner import Client
from tests.clients.coding.recording_proxy import Tap
from tests.clients.sdk_pages.client_pages import shown

pytestmark = [pytest.mark.real_client, pytest.mark.needs("node"), pytest.mark.timeout(700)]

PAGE = "opencode.md"
SUM = "The sum is 42."
# It looks for news of itself, of models and of language servers when it starts.
ALONE = {
    f"OPENCODE_DISABLE_{what}": "1"
    for what in ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS", "SHARE")
}


def about(bodies: list[Any], name: str) -> list[Any]:
    """Those that offer such a tool."""
    return [body for body in bodies if name in {tool.get("name") for tool in body.get("tools", [])}]


@pytest.fixture
def client(client: Client) -> Client:
    if not client.has("opencode"):
        pytest.skip("opencode is pinned for Linux alone")
    return client


@pytest.mark.shows("I.14")
def test_a_command_is_run_and_told(client: Client, tap: Tap) -> None:
    client.write("project/opencode.json", shown(PAGE, "json", port=tap.port))
    ran = client.run(shown(PAGE, "sh"), ALONE, seconds=120)
    assert ran.code == 0, str(ran)
    assert f"The tool said: {SUM}" in ran.out, str(ran)
    bodies = tap.bodies()
    first, second = about(bodies, "bash")
    (title,) = [body for body in bodies if not body.get("tools")]
    assert "title" in json.dumps(title["input"])
    for body in bodies:
        assert (body["model"], body["store"], body["stream"]) == ("qwen3-coder", False, True)
    assert first["prompt_cache_key"] == second["prompt_cache_key"]
    (output,) = [item for item in second["input"] if item.get("type") == "function_call_output"]
    assert SUM in json.dumps(output["output"])


def test_a_session_is_continued(client: Client, tap: Tap) -> None:
    client.write("project/opencode.json", shown(PAGE, "json", port=tap.port))
    assert client.run(shown(PAGE, "sh"), ALONE, seconds=120).code == 0
    ran = client.run('opencode run --continue "What is the capital of Norway?"', ALONE, seconds=120)
    assert ran.code == 0, str(ran)
    assert "Oslo." in ran.out, str(ran)
    last = max(about(tap.bodies(), "bash"), key=lambda body: len(body["input"]))
    assert SUM in json.dumps(last["input"])

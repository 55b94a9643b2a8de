"""Codex as its page shows it: commands that are really run, patches, sessions, over HTTP and over a WebSocket."""

import json

import pytest

from tests.clients.coding.client_runner import Client
from tests.clients.coding.codex import EXEC, PAGE, SOCKETS, SUM, asked, configure, kinds, requests
from tests.clients.coding.recording_proxy import Tap
from tests.clients.sdk_pages.client_pages import shown
from tests.support.media_files import png
from tests.support.server_process import Live

pytestmark = [pytest.mark.real_client, pytest.mark.needs("node"), pytest.mark.timeout(700)]


@pytest.mark.shows("I.13")
def test_a_command_is_run_and_told_over_http(client: Client, tap: Tap) -> None:
    configure(client, tap.port)
    ran = asked(client)
    assert ran.code == 0, str(ran)
    assert SUM in ran.out, str(ran)
    first, second = tap.bodies()
    assert (first["store"], first["stream"], first["tool_choice"]) == (False, True, "auto")
    assert "exec_command" in {tool.get("name") for tool in first["tools"]}
    assert kinds(second["input"][len(first["input"]) :]) == ["reasoning", "function_call", "function_call_output"]
    thought, call, output = second["input"][-3:]
    assert thought["encrypted_content"]
    assert call["call_id"] == output["call_id"]
    assert SUM in json.dumps(output["output"])


def test_a_list_of_models_tells_it_what_it_does_not_know(client: Client, tap: Tap) -> None:
    configure(client, tap.port)
    assert "Model metadata for `qwen3-coder` not found" in asked(client).err
    configure(client, tap.port, before=shown(PAGE, "toml", "model_catalog_json"))
    client.write(".codex/models.json", shown(PAGE, "json"))
    ran = asked(client)
    assert ran.code == 0, str(ran)
    assert SUM in ran.out, str(ran)
    assert "Model metadata" not in ran.err
    said = tap.bodies()[-1]["input"][0]["content"][0]["text"]
    assert said.startswith("You are a coding agent. Use your tools, then answer briefly.")


@pytest.fixture(params=["http", "websocket"])
def transport(request: pytest.FixtureRequest) -> str:
    """What stands behind the page's table."""
    return SOCKETS if request.param == "websocket" else ""


def test_a_key_is_taken_from_the_environment(client: Client, locked: Live, transport: str) -> None:
    configure(client, locked.port, after=shown(PAGE, "toml", "env_key") + transport)
    ran = asked(client, ANTIPHON_API_KEY="sesame")
    assert ran.code == 0, str(ran)
    assert SUM in ran.out, str(ran)


def test_a_patch_is_applied_as_a_custom_tool(client: Client, tap: Tap, transport: str) -> None:
    configure(client, tap.port, before=shown(PAGE, "toml", "model_catalog_json"), after=transport)
    client.write(".codex/models.json", shown(PAGE, "json"))
    ran = client.run(f'{EXEC} "Say hello in a file, by a patch."')
    assert ran.code == 0, str(ran)
    assert (client.project / "hello.txt").read_text() == "Hello!\n"
    first, second = requests(tap, transport)
    assert ("custom", "apply_patch") in {(tool["type"], tool.get("name")) for tool in first["tools"]}
    assert second["input"][-1]["type"] == "custom_tool_call_output"


def test_tools_that_come_as_an_item_are_called_in_their_namespace(client: Client, tap: Tap, transport: str) -> None:
    configure(client, tap.port, after=transport)
    ran = client.run(f'{EXEC} -m gpt-6.1-sol "Add 40 and 2 with the shell."')
    assert ran.code == 0, str(ran)
    assert SUM in ran.out, str(ran)
    first, second = requests(tap, transport)
    assert "tools" not in first
    assert second["input"][-1]["type"] == "custom_tool_call_output"
    if not transport:
        assert first["input"][0]["type"] == "additional_tools"
        call = next(item for item in second["input"] if item["type"] == "custom_tool_call")
        assert (call["namespace"], call["name"]) == ("functions", "exec")


def test_a_session_is_resumed(client: Client, tap: Tap, transport: str) -> None:
    configure(client, tap.port, after=transport)
    assert asked(client).code == 0
    ran = client.run(f'{EXEC} resume --last "What is the capital of Norway?"')
    assert ran.code == 0, str(ran)
    assert ran.out.strip() == "Oslo."
    said = requests(tap, transport)[-1]["input"]
    assert [kind for kind in kinds(said) if kind.startswith("function")] == ["function_call", "function_call_output"]


def test_a_long_session_is_compacted_by_an_ordinary_request(client: Client, tap: Tap, transport: str) -> None:
    configure(client, tap.port, after=transport)
    ran = client.run(f'{EXEC} -c model_auto_compact_token_limit=2000 "Add 40 and 2 with the shell."')
    assert ran.code == 0, str(ran)
    assert ran.out.strip() == "I remember: it was printed."
    (compacting,) = [each for each in requests(tap, transport) if "CONTEXT CHECKPOINT COMPACTION" in json.dumps(each)]
    assert (compacting["tools"], kinds(compacting["input"])[-2:]) == ([], ["function_call_output", "message"])
    (after,) = [each for each in requests(tap, transport) if "A sum was asked for" in json.dumps(each)]
    assert "function_call" not in kinds(after["input"])


def test_a_silent_model_is_waited_for(client: Client, tap: Tap, transport: str) -> None:
    configure(client, tap.port, after=f"stream_idle_timeout_ms = 1500\nstream_max_retries = 0\n{transport}")
    ran = client.run(f'{EXEC} "Think slowly."')
    assert ran.code == 0, str(ran)
    assert ran.out.strip() == "At last."
    assert len(requests(tap, transport)) == 1


def test_a_picture_is_seen(client: Client, tap: Tap, transport: str) -> None:
    configure(client, tap.port, after=transport)
    (client.project / "picture.png").write_bytes(png())
    ran = client.run(f'{EXEC} "How large is the picture?" -i picture.png')
    assert ran.code == 0, str(ran)
    assert ran.out.strip() == "It is small."


def test_an_answer_keeps_to_a_schema(client: Client, tap: Tap, transport: str) -> None:
    configure(client, tap.port, after=transport)
    whole = {"type": "object", "properties": {"sum": {"type": "integer"}}}
    schema = {**whole, "required": ["sum"], "additionalProperties": False}
    client.write("project/schema.json", json.dumps(schema))
    ran = client.run(f'{EXEC} --output-schema schema.json "How much is that?"')
    assert ran.code == 0, str(ran)
    assert json.loads(ran.out) == {"sum": 0}

"""Codex, run as its page shows, over HTTP and over a WebSocket: real commands, patches, sessions, images and
schemas.
"""

import json

import pytest

from tests.clients.coding.client_runner import Client
from tests.clients.coding.codex import (
    EXEC,
    PAGE,
    SUM,
    WEBSOCKET_SETTINGS,
    configure,
    get_item_types,
    get_requests,
    run_page_command,
)
from tests.clients.coding.recording_proxy import RecordingProxy
from tests.clients.sdk_pages.client_pages import extract_block
from tests.support.media_files import png
from tests.support.server_process import ServerProcess

pytestmark = [pytest.mark.real_client, pytest.mark.needs("node"), pytest.mark.timeout(700)]


@pytest.mark.shows("I.13")
@pytest.mark.uses("codex", "answers", "streaming", "tools", "reasoning")
def test_codex_runs_a_command_and_sends_its_output_over_http(client: Client, proxy: RecordingProxy) -> None:
    configure(client, proxy.port)
    ran = run_page_command(client)
    assert ran.code == 0, str(ran)
    assert SUM in ran.out, str(ran)
    first, second = proxy.get_bodies()
    assert (first["store"], first["stream"], first["tool_choice"]) == (False, True, "auto")
    assert "exec_command" in {tool.get("name") for tool in first["tools"]}
    assert get_item_types(second["input"][len(first["input"]) :]) == [
        "reasoning",
        "function_call",
        "function_call_output",
    ]
    reasoning, call, output = second["input"][-3:]
    assert reasoning["encrypted_content"]
    assert call["call_id"] == output["call_id"]
    assert SUM in json.dumps(output["output"])


def test_a_model_catalog_provides_the_missing_model_metadata(client: Client, proxy: RecordingProxy) -> None:
    configure(client, proxy.port)
    assert "Model metadata for `qwen3-coder` not found" in run_page_command(client).err
    configure(client, proxy.port, before=extract_block(PAGE, "toml", "model_catalog_json"))
    client.write_file(".codex/models.json", extract_block(PAGE, "json"))
    ran = run_page_command(client)
    assert ran.code == 0, str(ran)
    assert SUM in ran.out, str(ran)
    assert "Model metadata" not in ran.err
    instructions = proxy.get_bodies()[-1]["input"][0]["content"][0]["text"]
    assert instructions.startswith("You are a coding agent. Use your tools, then answer briefly.")


@pytest.fixture(params=["http", "websocket"])
def transport(request: pytest.FixtureRequest) -> str:
    """Settings to append to the provider table of the page; empty for HTTP."""
    return WEBSOCKET_SETTINGS if request.param == "websocket" else ""


def test_the_api_key_is_read_from_the_environment(
    client: Client, protected_server: ServerProcess, transport: str
) -> None:
    configure(client, protected_server.port, after=extract_block(PAGE, "toml", "env_key") + transport)
    ran = run_page_command(client, ANTIPHON_API_KEY="sesame")
    assert ran.code == 0, str(ran)
    assert SUM in ran.out, str(ran)


@pytest.mark.uses("codex", "tools")
def test_a_patch_is_applied_through_a_custom_tool(client: Client, proxy: RecordingProxy, transport: str) -> None:
    configure(client, proxy.port, before=extract_block(PAGE, "toml", "model_catalog_json"), after=transport)
    client.write_file(".codex/models.json", extract_block(PAGE, "json"))
    ran = client.run(f'{EXEC} "Say hello in a file, by a patch."')
    assert ran.code == 0, str(ran)
    assert (client.project / "hello.txt").read_text() == "Hello!\n"
    first, second = get_requests(proxy, transport)
    assert ("custom", "apply_patch") in {(tool["type"], tool.get("name")) for tool in first["tools"]}
    assert second["input"][-1]["type"] == "custom_tool_call_output"


def test_tools_from_an_input_item_are_called_in_their_namespace(
    client: Client, proxy: RecordingProxy, transport: str
) -> None:
    configure(client, proxy.port, after=transport)
    ran = client.run(f'{EXEC} -m gpt-6.1-sol "Add 40 and 2 with the shell."')
    assert ran.code == 0, str(ran)
    assert SUM in ran.out, str(ran)
    first, second = get_requests(proxy, transport)
    assert "tools" not in first
    assert second["input"][-1]["type"] == "custom_tool_call_output"
    if not transport:
        assert first["input"][0]["type"] == "additional_tools"
        call = next(item for item in second["input"] if item["type"] == "custom_tool_call")
        assert (call["namespace"], call["name"]) == ("functions", "exec")


def test_a_session_is_resumed(client: Client, proxy: RecordingProxy, transport: str) -> None:
    configure(client, proxy.port, after=transport)
    assert run_page_command(client).code == 0
    ran = client.run(f'{EXEC} resume --last "What is the capital of Norway?"')
    assert ran.code == 0, str(ran)
    assert ran.out.strip() == "Oslo."
    items = get_requests(proxy, transport)[-1]["input"]
    assert [kind for kind in get_item_types(items) if kind.startswith("function")] == [
        "function_call",
        "function_call_output",
    ]


def test_a_long_session_is_compacted_by_an_ordinary_request(
    client: Client, proxy: RecordingProxy, transport: str
) -> None:
    configure(client, proxy.port, after=transport)
    ran = client.run(f'{EXEC} -c model_auto_compact_token_limit=2000 "Add 40 and 2 with the shell."')
    assert ran.code == 0, str(ran)
    assert ran.out.strip() == "I remember: it was printed."
    (compacting,) = [
        each for each in get_requests(proxy, transport) if "CONTEXT CHECKPOINT COMPACTION" in json.dumps(each)
    ]
    assert (compacting["tools"], get_item_types(compacting["input"])[-2:]) == ([], ["function_call_output", "message"])
    (after,) = [each for each in get_requests(proxy, transport) if "A sum was asked for" in json.dumps(each)]
    assert "function_call" not in get_item_types(after["input"])


def test_keepalives_prevent_the_idle_timeout_of_codex(client: Client, proxy: RecordingProxy, transport: str) -> None:
    configure(client, proxy.port, after=f"stream_idle_timeout_ms = 1500\nstream_max_retries = 0\n{transport}")
    ran = client.run(f'{EXEC} "Think slowly."')
    assert ran.code == 0, str(ran)
    assert ran.out.strip() == "At last."
    assert len(get_requests(proxy, transport)) == 1


@pytest.mark.uses("codex", "images")
def test_an_image_reaches_the_model(client: Client, proxy: RecordingProxy, transport: str) -> None:
    configure(client, proxy.port, after=transport)
    (client.project / "picture.png").write_bytes(png())
    ran = client.run(f'{EXEC} "How large is the picture?" -i picture.png')
    assert ran.code == 0, str(ran)
    assert ran.out.strip() == "It is small."


@pytest.mark.uses("codex", "structured output")
def test_an_answer_follows_the_output_schema(client: Client, proxy: RecordingProxy, transport: str) -> None:
    configure(client, proxy.port, after=transport)
    base = {"type": "object", "properties": {"sum": {"type": "integer"}}}
    schema = {**base, "required": ["sum"], "additionalProperties": False}
    client.write_file("project/schema.json", json.dumps(schema))
    ran = client.run(f'{EXEC} --output-schema schema.json "How much is that?"')
    assert ran.code == 0, str(ran)
    assert json.loads(ran.out) == {"sum": 0}

"""Tool servers through the whole server: an MCP server of the mcp package runs what the model calls."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Delta, Text
from antiphon.core.prompt import Chunk, TokenPrompt
from antiphon.engines.fake import FakeEngine, FakeSettings
from tests.api.app import ApiServer, parse_events, run_api
from tests.golden.harmony.cases import decode_tokens, encode_tokens
from tests.oracles.responses import accumulate, check_event, check_response
from tests.tools.tool_server.local_tool_server import PAGE_URL, LocalToolServer, run_tool_server

pytestmark = pytest.mark.anyio

CODE = {"type": "code_interpreter", "container": {"type": "auto"}}
SHELL = {"type": "shell", "environment": {"type": "container_auto"}}
SEARCH = {"type": "web_search"}
OUTPUTS = "code_interpreter_call.outputs"


@pytest.fixture
def tools() -> Iterator[LocalToolServer]:
    with run_tool_server() as found:
        yield found


def configure(tools: LocalToolServer) -> tuple[str, ...]:
    return (f"python={tools.url},browser={tools.url},container={tools.url}",)


@pytest.fixture
async def server(tools: LocalToolServer) -> AsyncIterator[ApiServer]:
    async with asyncio.timeout(60), run_api(tool_server=configure(tools)) as server:
        yield server


@pytest.fixture
async def gpt_oss(tools: LocalToolServer) -> AsyncIterator[ApiServer]:
    engine = FakeEngine(FakeSettings(level="harmony"))
    async with asyncio.timeout(60), run_api(engine=engine, tool_server=configure(tools)) as server:
        yield server


def make_call(name: str, **arguments: Any) -> list[Delta]:
    return [CallStarted(0, name), CallDelta(0, json.dumps(arguments)), CallDone(0)]


async def create(server: ApiServer, *code: str, answer: str = "Done.", **fields: Any) -> Any:
    for each in code:
        server.engine.says(*make_call("code_interpreter", code=each))
    server.engine.says(Text(answer))
    response = await server.create(**{"tools": [CODE], "include": [OUTPUTS], **fields})
    check_response(response)
    return response


def last_prompt(server: ApiServer) -> str:
    prompt = server.engine.seen[-1].prompt
    return decode_tokens(prompt.tokens) if isinstance(prompt, TokenPrompt) else repr(prompt)


def queue_tokens(server: ApiServer, *outputs: str) -> None:
    for output in outputs:
        server.engine.says(*[Chunk(tokens=(token,)) for token in encode_tokens(output)])


async def stream(server: ApiServer, **fields: Any) -> list[dict[str, Any]]:
    events = parse_events(await server.post("responses", {"model": "fake", "input": "?", "stream": True, **fields}))
    for event in events:
        check_event(event)
    return events


@pytest.mark.shows("E4.1")
async def test_gpt_oss_runs_python_on_the_tool_server(gpt_oss: ApiServer, tools: LocalToolServer) -> None:
    call = "<|channel|>analysis to=python code<|message|>{}<|call|>"
    queue_tokens(gpt_oss, call.format("x = 41"), call.format("print(x + 1)"))
    queue_tokens(gpt_oss, "<|channel|>final<|message|>42.<|return|>")
    events = await stream(gpt_oss, tools=[CODE], include=[OUTPUTS])
    names = [event["type"].removeprefix("response.") for event in events]
    assert [name for name in names[2:] if "delta" not in name][:6] == [
        "output_item.added",
        "code_interpreter_call.in_progress",
        "code_interpreter_call_code.done",
        "code_interpreter_call.interpreting",
        "code_interpreter_call.completed",
        "output_item.done",
    ]
    first, second, message = events[-1]["response"]["output"]
    assert (second["code"], second["outputs"]) == ("print(x + 1)", [{"type": "logs", "logs": "42\n"}])
    assert first["container_id"] == second["container_id"] == events[2]["item"]["container_id"]
    assert accumulate(events).output_text == message["content"][0]["text"] == "42."
    assert [name for name, _, _ in tools.calls] == ["python", "python"]
    assert "<|start|>python<|channel|>analysis to=assistant<|message|>42" in last_prompt(gpt_oss)


@pytest.mark.shows("E4.1")
async def test_gpt_oss_browses_on_the_tool_server_and_cites_its_pages(gpt_oss: ApiServer) -> None:
    queue_tokens(
        gpt_oss,
        '<|channel|>analysis to=browser.search code<|message|>{"query": "otters"}<|call|>',
        '<|channel|>analysis to=browser.open code<|message|>{"id": 0, "cursor": 0}<|call|>',
        '<|channel|>analysis to=browser.find code<|message|>{"pattern": "fish"}<|call|>',
        "<|channel|>final<|message|>They eat fish【1†L0】.<|return|>",
    )
    events = await stream(gpt_oss, tools=[SEARCH])
    *calls, message = events[-1]["response"]["output"]
    assert [call["action"] for call in calls] == [
        {"type": "search", "query": "otters", "queries": ["otters"]},
        {"type": "open_page", "url": PAGE_URL},
        {"type": "find_in_page", "url": PAGE_URL, "pattern": "fish"},
    ]
    (citation,) = message["content"][0]["annotations"]
    assert (citation["type"], citation["url"], citation["title"]) == ("url_citation", PAGE_URL, "Otters")
    assert "<|start|>browser.open<|channel|>analysis to=assistant<|message|>[1] Otters" in last_prompt(gpt_oss)


@pytest.mark.shows("E4.1")
async def test_gpt_oss_runs_commands_on_the_tool_server(gpt_oss: ApiServer, tools: LocalToolServer) -> None:
    arguments = json.dumps({"cmd": ["bash", "-lc", "echo $((6 * 7)); exit 3"]})
    queue_tokens(gpt_oss, f"<|channel|>analysis to=container.exec code<|message|>{arguments}<|call|>")
    queue_tokens(gpt_oss, "<|channel|>final<|message|>42.<|return|>")
    events = await stream(gpt_oss, tools=[SHELL])
    call, output, _ = events[-1]["response"]["output"]
    assert (call["type"], call["environment"]["type"]) == ("shell_call", "container_reference")
    assert output["output"] == [{"stdout": "42\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 3}}]
    assert tools.calls[0][:2] == ("exec", {"cmd": ["bash", "-lc", "echo $((6 * 7)); exit 3"], "timeout": None})


@pytest.mark.parametrize("chain", ["previous_response_id", "conversation"])
async def test_a_continuation_uses_the_session_of_the_calls_before(server: ApiServer, chain: str) -> None:
    conversation = await server.post_ok("conversations", {}) if chain == "conversation" else None
    fields = {"conversation": conversation["id"]} if conversation else {}
    first = await create(server, "x = 41", **fields)
    second = await create(server, "print(x + 1)", **(fields or {"previous_response_id": first["id"]}))
    assert second["output"][0]["outputs"] == [{"type": "logs", "logs": "42\n"}]
    assert second["output"][0]["container_id"] == first["output"][0]["container_id"]


async def test_code_runs_in_the_background_and_without_a_store_or_a_sandbox(tools: LocalToolServer) -> None:
    async with run_api(tool_server=configure(tools), disable_store=True, sandbox="none") as server:
        assert (await create(server, "print(42)"))["output"][0]["outputs"] == [{"type": "logs", "logs": "42\n"}]
    async with run_api(tool_server=configure(tools)) as server:
        created = await create(server, "print(42)", background=True)
        events = parse_events(await server.get(f"responses/{created['id']}?stream=true"))
        assert events[-1]["response"]["output"][0]["status"] == "completed"


@pytest.mark.parametrize("failure", ["late", "gone"])
async def test_the_model_is_told_within_a_deadline_that_the_tool_server_failed(
    tools: LocalToolServer, failure: str
) -> None:
    async with asyncio.timeout(60), run_api(tool_server=configure(tools), tool_timeout=0.3) as server:
        await create(server, "1")
        if failure == "late":
            tools.released.clear()
        else:
            tools.stop()
        response = await create(server, "2", answer="It failed.")
        assert [item["status"] for item in response["output"]] == ["failed", "completed"]
        assert response["status"] == "completed"
        assert "Error: " in last_prompt(server)


async def test_a_tool_server_that_crashes_during_a_call_fails_the_call(
    server: ApiServer, tools: LocalToolServer
) -> None:
    tools.released.clear()
    running = asyncio.ensure_future(create(server, "1", answer="It failed."))
    await asyncio.to_thread(tools.called.wait)
    tools.crash()
    response = await running
    assert [item["status"] for item in response["output"]] == ["failed", "completed"]
    assert "Error: " in last_prompt(server)
    assert len(tools.calls) == 1


@pytest.mark.shows("E4.2")
@pytest.mark.parametrize("label", ["python", "code_interpreter"])
async def test_headers_of_an_mcp_tool_with_the_label_are_sent_to_the_tool_server(
    server: ApiServer, tools: LocalToolServer, label: str
) -> None:
    mcp = {"type": "mcp", "server_label": label, "headers": {"X-Team": "blue-team-42"}, "authorization": "hush-hush"}
    response = await create(server, "print('blue-team-42')", tools=[CODE, mcp])
    _, _, headers = tools.calls[0]
    assert (headers["x-team"], headers["authorization"]) == ("blue-team-42", "Bearer hush-hush")
    assert [item["type"] for item in response["output"]] == ["code_interpreter_call", "message"]
    assert response["output"][0]["outputs"] == [{"type": "logs", "logs": "…\n"}]
    assert "hush" not in json.dumps(response)
    assert response["tools"][1]["server_label"] == label


@pytest.mark.parametrize(
    ("declared", "param"),
    [
        ([{"type": "code_interpreter", "container": "cntr_1"}], "tools[0].container"),
        ([{**CODE, "container": {"type": "auto", "file_ids": ["file-1"]}}], "tools[0].container.file_ids"),
        ([{**CODE, "container": {"type": "auto", "memory_limit": "4g"}}], "tools[0].container.memory_limit"),
        (
            [{"type": "shell", "environment": {"type": "container_reference", "container_id": "cntr_1"}}],
            "tools[0].environment.container_id",
        ),
        (
            [{"type": "shell", "environment": {"type": "container_auto", "network_policy": {"type": "disabled"}}}],
            "tools[0].environment.network_policy",
        ),
        ([{**SEARCH, "filters": {"allowed_domains": ["a.example"]}}], "tools[0].filters.allowed_domains"),
        ([CODE, {"type": "mcp", "server_label": "python", "require_approval": "always"}], "tools[1].require_approval"),
        ([SEARCH, {"type": "mcp", "server_label": "python"}], "tools[1].server_label"),
        (
            [CODE, *[{"type": "mcp", "server_label": label} for label in ("python", "code_interpreter")]],
            "tools[2].server_label",
        ),
        ([{"type": "mcp", "server_label": "files"}], "tools[0].server_url"),
    ],
)
async def test_what_a_tool_server_cannot_honour_is_rejected_by_name(
    server: ApiServer, tools: LocalToolServer, declared: list[Any], param: str
) -> None:
    answer = await server.post("responses", {"model": "fake", "input": "hi", "tools": declared})
    assert (answer.status, answer.error["param"]) == (400, param)
    assert not server.engine.seen
    assert tools.requests == 0


@pytest.mark.shows("E4.3")
async def test_no_connection_is_opened_without_a_call(server: ApiServer, tools: LocalToolServer) -> None:
    await create(server, tools=[])
    await create(server, tools=[CODE, SEARCH, SHELL])
    assert tools.requests == 0
    await create(server, "1")
    assert tools.requests > 0


async def test_options_of_a_search_without_effect_are_listed(server: ApiServer) -> None:
    server.engine.says(*make_call("web_search", query="otters"))
    response = await create(server, tools=[{**SEARCH, "search_context_size": "low"}], include=[])
    assert response["ignored_fields"] == ["tools.search_context_size"]


async def test_a_tool_server_replaces_the_tool_of_the_server_and_is_shown(tools: LocalToolServer) -> None:
    settings: dict[str, Any] = {
        "tool_server": (f"browser={tools.url}",),
        "web_search_url": "searxng+http://127.0.0.1:9",
    }
    async with run_api(**settings) as server:
        server.engine.says(*make_call("web_search", query="otters"))
        await create(server, tools=[SEARCH], include=[])
        assert tools.calls[0][0] == "search"
        shown = (await server.get("capabilities")).json()["tools"]
        assert {tool["type"]: tool.get("tool_server") for tool in shown}["web_search"] == "browser"
        assert [tool["type"] for tool in shown if "tool_server" in tool] == ["web_search"]

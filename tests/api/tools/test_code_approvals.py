"""Calls of code that need the client's approval, through the whole server."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Delta, Text
from antiphon.core.prompt import Chunk, TokenPrompt
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.stores.registry import make_store
from tests.api.app import ApiServer, parse_events, run_api
from tests.golden.harmony.cases import decode_tokens, encode_tokens
from tests.oracles.responses import accumulate, check_event, check_response
from tests.tools.tool_server.local_tool_server import LocalToolServer, run_tool_server

pytestmark = pytest.mark.anyio

CODE = {"type": "code_interpreter", "container": {"type": "auto"}}
SHELL = {"type": "shell", "environment": {"type": "container_auto"}}
OUTPUTS = "code_interpreter_call.outputs"


@pytest.fixture
def tools() -> Iterator[LocalToolServer]:
    with run_tool_server() as found:
        yield found


def make_settings(tools: LocalToolServer) -> dict[str, Any]:
    return {"code_require_approval": "always", "tool_server": (f"python={tools.url},container={tools.url}",)}


@pytest.fixture
async def server(tools: LocalToolServer) -> AsyncIterator[ApiServer]:
    async with asyncio.timeout(60), run_api(**make_settings(tools)) as server:
        yield server


def queue_call(server: ApiServer, name: str = "code_interpreter", **arguments: Any) -> None:
    calls: list[Delta] = [CallStarted(0, name), CallDelta(0, json.dumps(arguments)), CallDone(0)]
    server.engine.says(*calls)


def answer(request: dict[str, Any], approve: bool = True, **fields: Any) -> dict[str, Any]:
    return {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": approve, **fields}


async def request_code(server: ApiServer, code: str, **fields: Any) -> tuple[Any, dict[str, Any]]:
    """Create a response that ends with an approval request, and return both."""
    queue_call(server, code=code)
    response = await server.create(tools=[CODE], **fields)
    check_response(response)
    (request,) = response["output"]
    assert (request["type"], json.loads(request["arguments"])) == ("mcp_approval_request", {"code": code})
    assert (request["server_label"], request["name"]) == ("code_interpreter", "code_interpreter")
    return response, request


async def send(server: ApiServer, *items: Any, text: str = "Done.", **fields: Any) -> Any:
    server.engine.says(Text(text))
    response = await server.create(**{"input": items, "tools": [CODE], "include": [OUTPUTS], **fields})
    check_response(response)
    return response


def last_prompt(server: ApiServer) -> str:
    return repr(server.engine.seen[-1].prompt)


@pytest.mark.shows("E.31")
@pytest.mark.parametrize("chain", ["previous_response_id", "conversation", "input"])
async def test_code_runs_once_after_its_approval(server: ApiServer, tools: LocalToolServer, chain: str) -> None:
    conversation = await server.post_ok("conversations", {}) if chain == "conversation" else None
    fields = {"conversation": conversation["id"]} if conversation else {}
    first, request = await request_code(server, "print(6 * 7)", **fields)
    assert tools.calls == []
    if chain == "previous_response_id":
        fields = {"previous_response_id": first["id"]}
    items = [request, answer(request)] if chain == "input" else [answer(request)]
    second = await send(server, *items, **fields)
    call, message = second["output"]
    assert (call["type"], call["status"], call["code"]) == ("code_interpreter_call", "completed", "print(6 * 7)")
    assert call["outputs"] == [{"type": "logs", "logs": "42\n"}]
    assert message["content"][0]["text"] == "Done."
    assert last_prompt(server).count("print(6 * 7)") == 1
    assert "'content': '42'" in last_prompt(server)
    if chain == "input":
        items += [*second["output"], {"role": "user", "content": "and?"}]
    else:
        items = [{"role": "user", "content": "and?"}]
        fields = fields if conversation else {"previous_response_id": second["id"]}
    await send(server, *items, **fields)
    assert last_prompt(server).count("print(6 * 7)") == 1
    assert len(tools.calls) == 1


@pytest.mark.shows("E.31")
async def test_a_denied_call_is_not_run_and_the_model_is_told(server: ApiServer, tools: LocalToolServer) -> None:
    first, request = await request_code(server, "print(1)")
    await send(server, answer(request, approve=False, reason="too risky"), previous_response_id=first["id"])
    assert "[The user did not allow this call: too risky]" in last_prompt(server)
    assert "'name': 'code_interpreter', 'arguments': '{\"code\":\"print(1)\"}'" in last_prompt(server)
    assert tools.calls == []


async def test_an_approval_is_used_once_and_for_the_same_code(server: ApiServer, tools: LocalToolServer) -> None:
    first, request = await request_code(server, "print(1)")
    forged = {**request, "arguments": json.dumps({"code": "print(2)"})}
    body = {"model": "fake", "tools": [CODE], "store": False, "input": [forged, answer(request)]}
    refused = await server.post("responses", body)
    assert (refused.status, refused.error["code"]) == (400, "approval_mismatch")
    undeclared = await server.post("responses", {**body, "tools": [], "input": [request, answer(request)]})
    assert (undeclared.status, undeclared.error["param"]) == (400, "tools")
    await send(server, answer(request), previous_response_id=first["id"])
    again = await server.post("responses", {**body, "input": [request, answer(request)]})
    assert (again.status, again.error["code"]) == (400, "approval_already_used")
    assert len(tools.calls) == 1


@pytest.mark.shows("E.31")
async def test_commands_of_a_shell_need_an_approval_and_the_stream_is_valid(
    server: ApiServer, tools: LocalToolServer
) -> None:
    queue_call(server, "shell", commands=["echo 42"], timeout_ms=5000)
    first = await server.create(tools=[SHELL])
    (request,) = first["output"]
    assert (request["server_label"], request["name"]) == ("shell", "shell")
    assert json.loads(request["arguments"]) == {"commands": ["echo 42"], "timeout_ms": 5000}
    server.engine.says(Text("Done."))
    body = {"model": "fake", "stream": True, "tools": [SHELL], "previous_response_id": first["id"]}
    events = parse_events(await server.post("responses", {**body, "input": [answer(request)]}))
    for event in events:
        check_event(event)
    call, output, _ = events[-1]["response"]["output"]
    assert (call["type"], call["action"]["commands"]) == ("shell_call", ["echo 42"])
    assert output["output"][0]["stdout"] == "42\n"
    assert accumulate(events).output_text == "Done."
    assert parse_events(await server.get(f"responses/{events[0]['response']['id']}?stream=true")) == events
    assert last_prompt(server).count("echo 42") == 1
    assert len(tools.calls) == 1


async def test_code_in_a_container_is_streamed_with_its_id(sandbox_options: dict[str, Any]) -> None:
    settings = {**sandbox_options, "code_require_approval": "always"}
    async with asyncio.timeout(120), run_api(**settings) as server:
        first, request = await request_code(server, "x = 41")
        second = await send(server, answer(request), previous_response_id=first["id"])
        queue_call(server, code="x + 1")
        third = await server.create(tools=[CODE], previous_response_id=second["id"])
        server.engine.says(Text("Done."))
        body = {"model": "fake", "stream": True, "tools": [CODE], "previous_response_id": third["id"]}
        body |= {"input": [answer(third["output"][0])], "include": [OUTPUTS]}
        events = parse_events(await server.post("responses", body))
        call = events[-1]["response"]["output"][0]
        assert call["outputs"] == [{"type": "logs", "logs": "42\n"}]
        assert events[2]["item"]["container_id"] == call["container_id"] == second["output"][0]["container_id"]


async def test_gpt_oss_asks_for_an_approval_of_python(tools: LocalToolServer) -> None:
    engine = FakeEngine(FakeSettings(level="harmony"))
    async with asyncio.timeout(60), run_api(engine=engine, **make_settings(tools)) as server:
        for output in (
            "<|channel|>analysis to=python code<|message|>print(6 * 7)<|call|>",
            "<|channel|>final<|message|>42.<|return|>",
        ):
            engine.says(*[Chunk(tokens=(token,)) for token in encode_tokens(output)])
        first = await server.create(tools=[CODE])
        (request,) = first["output"]
        assert request["arguments"] == '{"code":"print(6 * 7)"}'
        response = await server.create(
            tools=[CODE], input=[answer(request)], previous_response_id=first["id"], include=[OUTPUTS]
        )
        assert response["output"][0]["outputs"] == [{"type": "logs", "logs": "42\n"}]
        prompt = engine.seen[-1].prompt
        assert isinstance(prompt, TokenPrompt)
        assert decode_tokens(prompt.tokens).count("print(6 * 7)") == 1


async def test_an_approval_outlives_its_server_and_background_runs_carry_it_out(tools: LocalToolServer) -> None:
    store = make_store("memory", 3600.0)
    async with run_api(store=store, **make_settings(tools)) as server:
        queue_call(server, code="print(42)")
        created = await server.create(tools=[CODE], background=True)
        events = parse_events(await server.get(f"responses/{created['id']}?stream=true"))
        (request,) = events[-1]["response"]["output"]
        server.engine.says(Text("Done."))
        running = await server.create(
            tools=[CODE], input=[answer(request)], previous_response_id=created["id"], background=True
        )
        events = parse_events(await server.get(f"responses/{running['id']}?stream=true"))
        assert [item["status"] for item in events[-1]["response"]["output"]] == ["completed", "completed"]
    assert len(tools.calls) == 1


async def test_the_labels_of_approvals_are_reserved(server: ApiServer) -> None:
    for label in ("code_interpreter", "shell"):
        tool = {"type": "mcp", "server_label": label, "server_url": "https://mcp.example/"}
        refused = await server.post("responses", {"model": "fake", "input": "hi", "tools": [tool]})
        assert (refused.status, refused.error["param"]) == (400, "tools[0].server_label")


async def test_headers_for_a_tool_server_do_not_hide_its_approvals(server: ApiServer, tools: LocalToolServer) -> None:
    mcp = {"type": "mcp", "server_label": "code_interpreter", "headers": {"X-Team": "blue"}}
    first, request = await request_code(server, "print(1)")
    await send(server, answer(request), previous_response_id=first["id"], tools=[CODE, mcp])
    assert tools.calls[0][2]["x-team"] == "blue"

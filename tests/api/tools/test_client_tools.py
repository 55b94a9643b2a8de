"""Built-in tools that the client runs and that models do not know, through the whole server.

The model calls them as functions. The client receives the item type it expects, streamed, stored and replayed, and its
output reaches the model.
"""

import asyncio
import json
from typing import Any

import pytest

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Delta, ReasoningDelta, Text
from antiphon.core.prompt import ChatPrompt, Chunk
from antiphon.engines.fake import FakeEngine, FakeSettings
from tests.api.app import ApiServer, parse_events, run_api
from tests.api.tools.test_web_search import run_with_web_search
from tests.golden.harmony.cases import encode_tokens
from tests.oracles.responses import accumulate, check_event, check_input_items, check_response
from tests.support.asgi_client import call

pytestmark = pytest.mark.anyio

Json = dict[str, Any]
SHELL: Json = {"type": "shell"}
WEATHER: Json = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
SEARCH: Json = {"type": "tool_search", "execution": "client"}
COMMAND_RESULT = {"stdout": "a.py\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
MAP: Json = {"type": "function", "name": "map_of", "description": "Draws a map.", "defer_loading": True}

# The declared tool; the model's arguments; the fields of the item; the client's output; the text that the model
# receives.
CASES: dict[str, tuple[Json, Json, Json, Json, str]] = {
    "shell": (
        {"type": "shell", "environment": {"type": "local"}},
        {"commands": ["ls", "pwd"], "timeout_ms": 5000},
        {
            "type": "shell_call",
            "action": {"commands": ["ls", "pwd"], "timeout_ms": 5000, "max_output_length": None},
            "environment": {"type": "local"},
        },
        {"type": "shell_call_output", "output": [COMMAND_RESULT, COMMAND_RESULT], "max_output_length": 1000},
        "a.py\n\n[exit code 0]\na.py\n\n[exit code 0]",
    ),
    "local_shell": (
        {"type": "local_shell"},
        {"command": ["ls"], "working_directory": "/"},
        {"type": "local_shell_call"},
        {"type": "local_shell_call_output", "output": "a.py"},
        "a.py",
    ),
    "apply_patch": (
        {"type": "apply_patch"},
        {"type": "update_file", "path": "a.py", "diff": "@@\n-x\n+y"},
        {"type": "apply_patch_call", "operation": {"type": "update_file", "path": "a.py", "diff": "@@\n-x\n+y"}},
        {"type": "apply_patch_call_output", "status": "failed", "output": "There is no such line."},
        "failed\nThere is no such line.",
    ),
    "tool_search": (
        SEARCH,
        {"query": "maps"},
        {"type": "tool_search_call", "execution": "client", "arguments": {"query": "maps"}},
        {"type": "tool_search_output", "execution": "client", "tools": [MAP]},
        "These tools can be called now:\nmap_of",
    ),
}


def build_call(name: str, arguments: Json | str, key: int = 0) -> list[Delta]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return [CallStarted(key, name), CallDelta(key, text[:7]), CallDelta(key, text[7:]), CallDone(key)]


async def create_response(server: ApiServer, stream: bool = False, **fields: Any) -> Json:
    """Create a response, as JSON or as a stream, and validate it against the types of the openai package."""
    answer = await server.post("responses", {"model": "fake", "input": "hi", "stream": stream, **fields})
    assert answer.status == 200, answer.body
    if not stream:
        response: Json = answer.json()
        check_response(response)
        return response
    events = parse_events(answer)
    for event in events:
        check_event(event)
    response = events[-1]["response"]
    assert [item["id"] for item in json.loads(accumulate(events).model_dump_json())["output"]] == [
        item["id"] for item in response["output"]
    ]
    return response


def get_chat_prompt(server: ApiServer, turn: int = -1) -> ChatPrompt:
    prompt = server.engine.seen[turn].prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.parametrize("kind", CASES)
@pytest.mark.shows("E.23", "E.24", "E.25")
async def test_a_call_reaches_the_client_as_its_item_and_its_output_reaches_the_model(kind: str, stream: bool) -> None:
    declared, arguments, expected, output, tool_text = CASES[kind]
    async with run_api() as server:
        server.engine.says(Text("Let me see."), *build_call(kind, arguments))
        first = await create_response(server, stream, tools=[declared, MAP])
        message, item = first["output"]
        assert message["content"][0]["text"] == "Let me see."
        assert item["status"] == "completed"
        assert item["call_id"].startswith("call_")
        assert {key: item[key] for key in expected} == expected
        server.engine.says(Text("Done."))
        output_item = {**output, "call_id": item["call_id"]}
        body = {"tools": [declared, MAP], "previous_response_id": first["id"], "input": [output_item]}
        second = await create_response(server, stream, **body)
        assert second["output"][0]["content"][0]["text"] == "Done."
        *_, call_message, tool_message = get_chat_prompt(server).messages
        assert [
            (one["function"]["name"], json.loads(one["function"]["arguments"])) for one in call_message["tool_calls"]
        ] == [(kind, arguments)]
        assert tool_message["content"] == tool_text
        page = (await server.get(f"responses/{second['id']}/input_items")).json()
        check_input_items(page)


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.shows("E.23", "E.24", "E.25")
async def test_a_stateless_client_may_resend_the_history(kind: str) -> None:
    declared, arguments, _, output, tool_text = CASES[kind]
    async with run_api() as server:
        server.engine.says(*build_call(kind, arguments))
        first = await create_response(server, tools=[declared], store=False)
        server.engine.says(Text("Done."))
        output_item = {**output, "call_id": first["output"][0]["call_id"]}
        await create_response(
            server,
            tools=[declared],
            store=False,
            input=[{"role": "user", "content": "hi"}, *first["output"], output_item],
        )
        assert get_chat_prompt(server).messages[-1]["content"] == tool_text


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.shows("E.24", "E.25")
async def test_a_stored_stream_is_replayed_byte_for_byte(background: bool) -> None:
    async with run_api() as server:
        server.engine.says(
            ReasoningDelta("Hm."), *build_call("shell", {"commands": ["ls"]}), *build_call("weather", "{}", 1),
            *build_call("apply_patch", {"type": "delete_file", "path": "a", "diff": ""}, 2),
        )  # fmt: skip
        tools = [SHELL, WEATHER, {"type": "apply_patch"}]
        body = {"model": "fake", "input": "hi", "stream": True, "tools": tools, "background": background}
        answer = await server.post("responses", body)
        events = parse_events(answer)
        response = events[-1]["response"]
        assert [item["type"] for item in response["output"]] == [
            "reasoning", "shell_call", "function_call", "apply_patch_call",
        ]  # fmt: skip
        again = await call(server.app, "GET", f"/v1/responses/{response['id']}?stream=true")
        assert again.body == answer.body
        assert (await server.get(f"responses/{response['id']}")).json() == response
        tail = await call(server.app, "GET", f"/v1/responses/{response['id']}?stream=true&starting_after=7")
        assert answer.body.endswith(tail.body)


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.shows("D.13", "E.24")
async def test_an_invalid_call_is_retried_and_is_not_in_the_response(stream: bool) -> None:
    async with run_api() as server:
        server.engine.says(Text("Let me see."), *build_call("shell", {"run": "ls"}))
        server.engine.says(*build_call("shell", {"commands": ["ls"], "timeout_ms": "5"}))
        response = await create_response(server, stream, tools=[SHELL])
        assert [item["type"] for item in response["output"]] == ["message", "shell_call"]
        assert response["output"][1]["action"] == {"commands": ["ls"], "timeout_ms": 5, "max_output_length": None}
        assert "commands" in get_chat_prompt(server).messages[-1]["content"]


@pytest.mark.shows("D.13")
async def test_a_valid_call_before_an_invalid_one_is_emitted_once() -> None:
    async with run_api() as server:
        server.engine.says(*build_call("weather", "{}"), *build_call("shell", {"run": "ls"}, 1))
        server.engine.says(*build_call("shell", {"commands": ["ls"]}), *build_call("weather", "{}", 1))
        response = await create_response(server, stream=True, tools=[SHELL, WEATHER])
        assert [item["type"] for item in response["output"]] == ["function_call", "shell_call"]


@pytest.mark.parametrize("kind", ["shell", "local_shell", "apply_patch"])
@pytest.mark.shows("D.13", "E.24", "E.25")
async def test_repeated_invalid_calls_fail_the_response_without_an_item(kind: str) -> None:
    async with run_api() as server:
        for _ in range(3):
            server.engine.says(*build_call(kind, {"what": 1}))
        response = await create_response(server, stream=True, tools=[{"type": kind}])
        assert response["status"] == "failed"
        assert response["error"]["code"] == "invalid_tool_call"
        assert response["output"] == []


ODD_ARGUMENTS = [
    "", " ", "null", "[]", "5", '"ls"', "{", "}", '{"commands"', '{"commands": ["\\ud800"]}', '{"commands": [1]}',
    '{"commands": [""]}', '{"commands": ["a"], "timeout_ms": 1e400}', '{"commands": ["a"], "timeout_ms": 1e15}',
    '{"commands": ["a"], "timeout_ms": 99999999999999999999}', '{"commands": ["a"], "timeout_ms": true}',
    '{"command": ["bash", "-lc"]}', '{"operation": 5}', '{"operation": {"type": "delete_file", "path": "a\\u0000"}}',
    '{"type": "create_file", "path": "a", "diff": "\\n\\n"}', '{"query": 12345678901234567890123}', "[" * 2000,
    '{"command": ["ls"], "env": {"A": 1}}', '{"command": ["ls"], "env": [], "user": {}}', '{"a": {"a": {"a": []}}}',
]  # fmt: skip


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.shows("E.23", "E.24", "E.25")
async def test_odd_arguments_give_a_call_item_or_an_invalid_tool_call_error(kind: str) -> None:
    async with run_api(insist=0) as server:
        for odd in ODD_ARGUMENTS:
            server.engine.says(*build_call(kind, odd))
            response = await create_response(server, stream=True, tools=[CASES[kind][0]])
            types = [item["type"] for item in response["output"]]
            assert types == ([f"{kind}_call"] if response["status"] == "completed" else []), odd
            assert response["status"] == "completed" or response["error"]["code"] == "invalid_tool_call", odd


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.parametrize(("kind", "item_types"), [("shell", ["shell_call"]), ("apply_patch", [])])
@pytest.mark.shows("D2.4", "E.24")
async def test_a_truncated_call_is_incomplete_and_never_ready_to_run(
    kind: str, item_types: list[str], stream: bool
) -> None:
    async with run_api() as server:
        server.engine.says(CallStarted(0, kind), CallDelta(0, '{"commands": ["ls", "rm'), finish="length")
        response = await create_response(server, stream, tools=[{"type": kind}])
        assert response["status"] == "incomplete"
        assert [item["type"] for item in response["output"]] == item_types
        assert [item["status"] for item in response["output"]] == ["incomplete"] * len(item_types)


@pytest.mark.parametrize("kind", ["shell", "apply_patch"])
@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.shows("D.12", "E.24", "E.25")
async def test_a_required_tool_is_called(kind: str, stream: bool) -> None:
    """The fake engine makes the smallest call that fits the offered schema."""
    choices: list[Any] = [
        {"type": kind},
        "required",
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": kind}]},
    ]
    async with run_api() as server:
        for choice in choices:
            response = await create_response(server, stream, tools=[{"type": kind}], tool_choice=choice)
            assert [item["type"] for item in response["output"]] == [f"{kind}_call"]


@pytest.mark.shows("E.26")
async def test_a_container_shell_can_be_ignored_and_is_rejected_where_it_is_required() -> None:
    tool = {"type": "shell", "environment": {"type": "container_auto"}}
    async with run_api(unserved_tools="ignore", sandbox="none") as server:
        answer = await server.post("responses", {"model": "fake", "input": "hi", "tools": [tool]})
        assert answer.header(b"x-antiphon-ignored") == b"shell"
        answer = await server.post("responses", {"model": "fake", "input": "hi", "tools": [tool], "tool_choice": SHELL})
        assert (answer.status, answer.error["param"]) == (400, "tool_choice")


@pytest.mark.shows("A.39", "E.24")
async def test_reasoning_before_a_call_is_encrypted_in_its_own_item() -> None:
    async with run_api() as server:
        server.engine.says(ReasoningDelta("I look."), *build_call("shell", {"commands": ["ls"]}))
        include = ["reasoning.encrypted_content"]
        response = await create_response(server, stream=True, tools=[SHELL], include=include, store=False)
        reasoning, shell = response["output"]
        assert reasoning["encrypted_content"]
        assert shell["type"] == "shell_call"


async def test_a_response_does_not_wait_for_structured_tool_outputs() -> None:
    async with run_api() as server, asyncio.timeout(30):
        server.engine.says(*build_call("shell", {"commands": ["ls"]}), *build_call("weather", "{}", 1))
        response = await create_response(server, stream=True, tools=[SHELL, WEATHER], wait_for_tool_outputs=True)
        assert [item["type"] for item in response["output"]] == ["shell_call", "function_call"]
        assert response["status"] == "completed"


@pytest.mark.shows("E.1", "E.24")
async def test_server_tools_run_before_the_response_ends_for_the_client_tools() -> None:
    async with run_with_web_search() as (server, web):
        deltas = [*build_call("web_search", {"query": "otters"}), *build_call("shell", {"commands": ["ls"]}, 1)]
        server.engine.says(*deltas)
        response = await create_response(server, stream=True, tools=[{"type": "web_search"}, SHELL])
        assert sorted(item["type"] for item in response["output"]) == ["shell_call", "web_search_call"]
        assert [item["status"] for item in response["output"]] == ["completed"] * 2
        assert len(server.engine.seen) == 1
        assert web.queries


@pytest.mark.shows("E.23")
async def test_deferred_tools_are_offered_once_the_client_has_found_them() -> None:
    async with run_api() as server:
        server.engine.says(*build_call("tool_search", {"query": "maps"}))
        first = await create_response(server, tools=[SEARCH, MAP])
        assert [tool["function"]["name"] for tool in get_chat_prompt(server).tools] == ["tool_search"]
        assert "- map_of: Draws a map." in get_chat_prompt(server).tools[0]["function"]["description"]
        server.engine.says(*build_call("map_of", "{}"))
        found = {"type": "tool_search_output", "execution": "client", "call_id": first["output"][0]["call_id"]}
        body = {"tools": [SEARCH, MAP], "previous_response_id": first["id"], "input": [{**found, "tools": [MAP]}]}
        second = await create_response(server, stream=True, **body)
        assert [tool["function"]["name"] for tool in get_chat_prompt(server).tools] == ["tool_search", "map_of"]
        assert (second["output"][0]["type"], second["output"][0]["name"]) == ("function_call", "map_of")


@pytest.mark.shows("E.23")
async def test_a_tool_search_call_may_have_no_arguments() -> None:
    parameters = {"type": "object", "properties": {"query": {"type": "string"}}}
    async with run_api() as server:
        server.engine.says(CallStarted(0, "tool_search"), CallDone(0))
        (item,) = (await create_response(server, tools=[{**SEARCH, "parameters": parameters}]))["output"]
        assert item["arguments"] == {}


@pytest.mark.parametrize("recipient", ["container.exec", "container.run", "functions.shell"])
@pytest.mark.shows("D2.2")
async def test_gpt_oss_calls_a_shell_by_the_name_it_was_trained_with(recipient: str) -> None:
    async with run_api(engine=FakeEngine(FakeSettings(level="harmony"))) as server:
        arguments = json.dumps({"cmd": ["bash", "-lc", "ls -l"], "timeout_ms": 100})
        output = f"<|channel|>commentary to={recipient} <|constrain|>json<|message|>{arguments}<|call|>"
        server.engine.says(*[Chunk(tokens=(token,)) for token in encode_tokens(output)], finish="stop")
        response = await create_response(server, stream=True, tools=[SHELL])
        assert [item["type"] for item in response["output"]] == ["shell_call"]
        assert response["output"][0]["action"]["commands"] == ["ls -l"]


@pytest.mark.shows("D.19")
async def test_a_container_call_is_no_shell_call_unless_a_shell_is_declared() -> None:
    async with run_api(engine=FakeEngine(FakeSettings(level="harmony"))) as server:
        output = "<|channel|>commentary to=container.exec<|message|>{}<|call|>"
        server.engine.says(*[Chunk(tokens=(token,)) for token in encode_tokens(output)])
        response = await create_response(server, stream=True, tools=[WEATHER])
        assert "shell_call" not in [item["type"] for item in response["output"]]

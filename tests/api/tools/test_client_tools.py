"""Tools that the client runs and that models do not know, through the whole server: what a model calls as a function
reaches the client as the item it expects, streamed, stored and told again, and what the client gives comes back."""

import asyncio
import json
from typing import Any

import pytest

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Delta, Text, Thought
from antiphon.core.prompt import ChatPrompt, Chunk
from antiphon.engines.fake import FakeEngine, FakeSettings
from tests.api.app import Api, api, events_in
from tests.api.tools.test_web_search import searching
from tests.golden.harmony.cases import tokens
from tests.oracles.responses import accumulate, check_event, check_input_items, check_response
from tests.support.asgi_client import call

pytestmark = pytest.mark.anyio

Json = dict[str, Any]
SHELL: Json = {"type": "shell"}
WEATHER: Json = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
SEARCH: Json = {"type": "tool_search", "execution": "client"}
RAN = {"stdout": "a.py\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
MAP: Json = {"type": "function", "name": "map_of", "description": "Draws a map.", "defer_loading": True}

# What is declared; what a model says; the fields of the item; what the client sends back; what the model is told.
CASES: dict[str, tuple[Json, Json, Json, Json, str]] = {
    "shell": (
        {"type": "shell", "environment": {"type": "local"}},
        {"commands": ["ls", "pwd"], "timeout_ms": 5000},
        {
            "type": "shell_call",
            "action": {"commands": ["ls", "pwd"], "timeout_ms": 5000, "max_output_length": None},
            "environment": {"type": "local"},
        },
        {"type": "shell_call_output", "output": [RAN, RAN], "max_output_length": 1000},
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


def calling(name: str, arguments: Json | str, key: int = 0) -> list[Delta]:
    said = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return [CallStarted(key, name), CallDelta(key, said[:7]), CallDelta(key, said[7:]), CallDone(key)]


async def responded(server: Api, stream: bool = False, **fields: Any) -> Json:
    """A response that is as the openai package wants it, in one piece or at the end of such a stream."""
    answer = await server.post("responses", {"model": "fake", "input": "hi", "stream": stream, **fields})
    assert answer.status == 200, answer.body
    if not stream:
        response: Json = answer.json()
        check_response(response)
        return response
    events = events_in(answer)
    for event in events:
        check_event(event)
    response = events[-1]["response"]
    assert [item["id"] for item in json.loads(accumulate(events).model_dump_json())["output"]] == [
        item["id"] for item in response["output"]
    ]
    return response


def chat(server: Api, turn: int = -1) -> ChatPrompt:
    prompt = server.engine.seen[turn].prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.parametrize("kind", CASES)
@pytest.mark.shows("E.23", "E.24", "E.25")
async def test_a_call_reaches_the_client_as_its_item_and_what_it_gives_comes_back(kind: str, stream: bool) -> None:
    declared, said, expected, output, told = CASES[kind]
    async with api() as server:
        server.engine.says(Text("Let me see."), *calling(kind, said))
        first = await responded(server, stream, tools=[declared, MAP])
        message, item = first["output"]
        assert message["content"][0]["text"] == "Let me see."
        assert item["status"] == "completed"
        assert item["call_id"].startswith("call_")
        assert {key: item[key] for key in expected} == expected
        server.engine.says(Text("Done."))
        given = {**output, "call_id": item["call_id"]}
        body = {"tools": [declared, MAP], "previous_response_id": first["id"], "input": [given]}
        second = await responded(server, stream, **body)
        assert second["output"][0]["content"][0]["text"] == "Done."
        *_, asked, answered = chat(server).messages
        assert [(one["function"]["name"], json.loads(one["function"]["arguments"])) for one in asked["tool_calls"]] == [
            (kind, said)
        ]
        assert answered["content"] == told
        page = (await server.get(f"responses/{second['id']}/input_items")).json()
        check_input_items(page)


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.shows("E.23", "E.24", "E.25")
async def test_a_client_that_keeps_the_history_itself_is_understood(kind: str) -> None:
    declared, said, _, output, told = CASES[kind]
    async with api() as server:
        server.engine.says(*calling(kind, said))
        first = await responded(server, tools=[declared], store=False)
        server.engine.says(Text("Done."))
        given = {**output, "call_id": first["output"][0]["call_id"]}
        await responded(
            server, tools=[declared], store=False, input=[{"role": "user", "content": "hi"}, *first["output"], given]
        )
        assert chat(server).messages[-1]["content"] == told


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.shows("E.24", "E.25")
async def test_a_stored_stream_tells_the_same_again_byte_for_byte(background: bool) -> None:
    async with api() as server:
        server.engine.says(
            Thought("Hm."), *calling("shell", {"commands": ["ls"]}), *calling("weather", "{}", 1),
            *calling("apply_patch", {"type": "delete_file", "path": "a", "diff": ""}, 2),
        )  # fmt: skip
        tools = [SHELL, WEATHER, {"type": "apply_patch"}]
        body = {"model": "fake", "input": "hi", "stream": True, "tools": tools, "background": background}
        answer = await server.post("responses", body)
        events = events_in(answer)
        response = events[-1]["response"]
        assert [item["type"] for item in response["output"]] == [
            "reasoning", "shell_call", "function_call", "apply_patch_call",
        ]  # fmt: skip
        again = await call(server.app, "GET", f"/v1/responses/{response['id']}?stream=true")
        assert again.body == answer.body
        assert (await server.get(f"responses/{response['id']}")).json() == response
        rest = await call(server.app, "GET", f"/v1/responses/{response['id']}?stream=true&starting_after=7")
        assert answer.body.endswith(rest.body)


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.shows("D.13", "E.24")
async def test_a_model_that_calls_wrongly_is_asked_again_and_nobody_hears_of_it(stream: bool) -> None:
    async with api() as server:
        server.engine.says(Text("Let me see."), *calling("shell", {"run": "ls"}))
        server.engine.says(*calling("shell", {"commands": ["ls"], "timeout_ms": "5"}))
        response = await responded(server, stream, tools=[SHELL])
        assert [item["type"] for item in response["output"]] == ["message", "shell_call"]
        assert response["output"][1]["action"] == {"commands": ["ls"], "timeout_ms": 5, "max_output_length": None}
        assert "commands" in chat(server).messages[-1]["content"]


@pytest.mark.shows("D.13")
async def test_what_was_told_before_a_wrong_call_is_told_once() -> None:
    async with api() as server:
        server.engine.says(*calling("weather", "{}"), *calling("shell", {"run": "ls"}, 1))
        server.engine.says(*calling("shell", {"commands": ["ls"]}), *calling("weather", "{}", 1))
        response = await responded(server, stream=True, tools=[SHELL, WEATHER])
        assert [item["type"] for item in response["output"]] == ["function_call", "shell_call"]


@pytest.mark.parametrize("kind", ["shell", "local_shell", "apply_patch"])
@pytest.mark.shows("D.13", "E.24", "E.25")
async def test_a_model_that_never_calls_rightly_ends_in_a_typed_failure_without_an_item(kind: str) -> None:
    async with api() as server:
        for _ in range(3):
            server.engine.says(*calling(kind, {"what": 1}))
        response = await responded(server, stream=True, tools=[{"type": kind}])
        assert response["status"] == "failed"
        assert response["error"]["code"] == "invalid_tool_call"
        assert response["output"] == []


ODD = [
    "", " ", "null", "[]", "5", '"ls"', "{", "}", '{"commands"', '{"commands": ["\\ud800"]}', '{"commands": [1]}',
    '{"commands": [""]}', '{"commands": ["a"], "timeout_ms": 1e400}', '{"commands": ["a"], "timeout_ms": 1e15}',
    '{"commands": ["a"], "timeout_ms": 99999999999999999999}', '{"commands": ["a"], "timeout_ms": true}',
    '{"command": ["bash", "-lc"]}', '{"operation": 5}', '{"operation": {"type": "delete_file", "path": "a\\u0000"}}',
    '{"type": "create_file", "path": "a", "diff": "\\n\\n"}', '{"query": 12345678901234567890123}', "[" * 2000,
    '{"command": ["ls"], "env": {"A": 1}}', '{"command": ["ls"], "env": [], "user": {}}', '{"a": {"a": {"a": []}}}',
]  # fmt: skip


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.shows("E.23", "E.24", "E.25")
async def test_whatever_a_model_says_ends_well(kind: str) -> None:
    async with api(insist=0) as server:
        for odd in ODD:
            server.engine.says(*calling(kind, odd))
            response = await responded(server, stream=True, tools=[CASES[kind][0]])
            types = [item["type"] for item in response["output"]]
            assert types == ([f"{kind}_call"] if response["status"] == "completed" else []), odd
            assert response["status"] == "completed" or response["error"]["code"] == "invalid_tool_call", odd


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.parametrize(("kind", "left"), [("shell", ["shell_call"]), ("apply_patch", [])])
@pytest.mark.shows("D2.4", "E.24")
async def test_a_call_that_is_cut_is_incomplete_and_is_never_one_to_run(
    kind: str, left: list[str], stream: bool
) -> None:
    async with api() as server:
        server.engine.says(CallStarted(0, kind), CallDelta(0, '{"commands": ["ls", "rm'), finish="length")
        response = await responded(server, stream, tools=[{"type": kind}])
        assert response["status"] == "incomplete"
        assert [item["type"] for item in response["output"]] == left
        assert [item["status"] for item in response["output"]] == ["incomplete"] * len(left)


@pytest.mark.parametrize("kind", ["shell", "apply_patch"])
@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.shows("D.12", "E.24", "E.25")
async def test_one_that_is_demanded_is_called(kind: str, stream: bool) -> None:
    """By the fake engine, which makes the smallest call that fits the offer."""
    choices: list[Any] = [
        {"type": kind},
        "required",
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": kind}]},
    ]
    async with api() as server:
        for choice in choices:
            response = await responded(server, stream, tools=[{"type": kind}], tool_choice=choice)
            assert [item["type"] for item in response["output"]] == [f"{kind}_call"]


@pytest.mark.shows("E.26")
async def test_a_shell_in_a_container_is_named_and_refused_where_it_is_demanded() -> None:
    tool = {"type": "shell", "environment": {"type": "container_auto"}}
    async with api() as server:
        answer = await server.post("responses", {"model": "fake", "input": "hi", "tools": [tool]})
        assert answer.header(b"x-antiphon-ignored") == b"shell"
        answer = await server.post("responses", {"model": "fake", "input": "hi", "tools": [tool], "tool_choice": SHELL})
        assert (answer.status, answer.error["param"]) == (400, "tool_choice")


@pytest.mark.shows("A.39", "E.24")
async def test_thoughts_before_a_call_are_sealed_with_their_own_item() -> None:
    async with api() as server:
        server.engine.says(Thought("I look."), *calling("shell", {"commands": ["ls"]}))
        include = ["reasoning.encrypted_content"]
        response = await responded(server, stream=True, tools=[SHELL], include=include, store=False)
        reasoning, shell = response["output"]
        assert reasoning["encrypted_content"]
        assert shell["type"] == "shell_call"


async def test_a_response_does_not_wait_for_what_is_more_than_a_text() -> None:
    async with api() as server, asyncio.timeout(30):
        server.engine.says(*calling("shell", {"commands": ["ls"]}), *calling("weather", "{}", 1))
        response = await responded(server, stream=True, tools=[SHELL, WEATHER], wait_for_tool_outputs=True)
        assert [item["type"] for item in response["output"]] == ["shell_call", "function_call"]
        assert response["status"] == "completed"


@pytest.mark.shows("E.1", "E.24")
async def test_what_the_server_can_run_is_run_and_then_it_is_the_clients_turn() -> None:
    async with searching() as (server, web):
        said = [*calling("web_search", {"query": "otters"}), *calling("shell", {"commands": ["ls"]}, 1)]
        server.engine.says(*said)
        response = await responded(server, stream=True, tools=[{"type": "web_search"}, SHELL])
        assert sorted(item["type"] for item in response["output"]) == ["shell_call", "web_search_call"]
        assert [item["status"] for item in response["output"]] == ["completed"] * 2
        assert len(server.engine.seen) == 1
        assert web.asked


@pytest.mark.shows("E.23")
async def test_deferred_tools_are_offered_once_the_client_has_found_them() -> None:
    async with api() as server:
        server.engine.says(*calling("tool_search", {"query": "maps"}))
        first = await responded(server, tools=[SEARCH, MAP])
        assert [tool["function"]["name"] for tool in chat(server).tools] == ["tool_search"]
        assert "- map_of: Draws a map." in chat(server).tools[0]["function"]["description"]
        server.engine.says(*calling("map_of", "{}"))
        found = {"type": "tool_search_output", "execution": "client", "call_id": first["output"][0]["call_id"]}
        body = {"tools": [SEARCH, MAP], "previous_response_id": first["id"], "input": [{**found, "tools": [MAP]}]}
        second = await responded(server, stream=True, **body)
        assert [tool["function"]["name"] for tool in chat(server).tools] == ["tool_search", "map_of"]
        assert (second["output"][0]["type"], second["output"][0]["name"]) == ("function_call", "map_of")


@pytest.mark.shows("E.23")
async def test_a_search_with_nothing_to_say_finds_whatever_there_is() -> None:
    parameters = {"type": "object", "properties": {"query": {"type": "string"}}}
    async with api() as server:
        server.engine.says(CallStarted(0, "tool_search"), CallDone(0))
        (item,) = (await responded(server, tools=[{**SEARCH, "parameters": parameters}]))["output"]
        assert item["arguments"] == {}


@pytest.mark.parametrize("recipient", ["container.exec", "container.run", "functions.shell"])
@pytest.mark.shows("D2.2")
async def test_gpt_oss_calls_a_shell_by_the_name_it_was_trained_with(recipient: str) -> None:
    async with api(engine=FakeEngine(FakeSettings(level="harmony"))) as server:
        arguments = json.dumps({"cmd": ["bash", "-lc", "ls -l"], "timeout_ms": 100})
        said = f"<|channel|>commentary to={recipient} <|constrain|>json<|message|>{arguments}<|call|>"
        server.engine.says(*[Chunk(tokens=(token,)) for token in tokens(said)], finish="stop")
        response = await responded(server, stream=True, tools=[SHELL])
        assert [item["type"] for item in response["output"]] == ["shell_call"]
        assert response["output"][0]["action"]["commands"] == ["ls -l"]


@pytest.mark.shows("D2.3")
async def test_a_container_is_nothing_where_no_shell_is_declared() -> None:
    async with api(engine=FakeEngine(FakeSettings(level="harmony"))) as server:
        said = "<|channel|>commentary to=container.exec<|message|>{}<|call|>"
        server.engine.says(*[Chunk(tokens=(token,)) for token in tokens(said)])
        response = await responded(server, stream=True, tools=[WEATHER])
        assert "shell_call" not in [item["type"] for item in response["output"]]

"""What coding agents live on, through the whole server: grammars, namespaces, tools that come with the input, parallel
calls, reasoning that they carry, pictures that tools give, ids and notes of their own, and an engine that stays warm.

Where it helps, the requests are those that Codex sent.
"""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from antiphon.config import Config
from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Delta, Text, Thought
from antiphon.core.prompt import ChatPrompt, TextPrompt
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.protocol.schemas.grammars import knows_lark
from antiphon.wiring import build_app, build_engine
from tests.api.app import Api, api, events_in
from tests.engines.pool.test_http_engines import Upstream, post, served
from tests.oracles.responses import accumulate, check_event, check_input_items, check_response
from tests.support.asgi_client import JSON, call
from tests.support.media_files import as_url, png
from tests.support.paths import RECORDINGS

pytestmark = pytest.mark.anyio

Json = dict[str, Any]
SEALED = "reasoning.encrypted_content"
PATCH = r"""
start: "*** Begin Patch" _NL file+ "*** End Patch" _NL?
file: "*** Add File: " NAME _NL added+
added: "+" /[^\n]*/ _NL
NAME: /[\w.\/]+/
_NL: "\n"
"""
ADDED = "*** Begin Patch\n*** Add File: a.py\n+print(1)\n*** End Patch\n"
EXEC: Json = {"type": "function", "name": "exec_command", "parameters": {"type": "object", "properties": {}}}
IMAGE = {"type": "input_image", "image_url": as_url(png()), "detail": "high"}


def recorded(name: str) -> list[Json]:
    """The bodies that Codex sent."""
    sent = json.loads((RECORDINGS / f"codex-{name}.json").read_bytes())
    return [one["body"] for one in sent]


def calling(name: str, arguments: Json | str, key: int = 0) -> list[Delta]:
    said = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return [CallStarted(key, name), CallDelta(key, said[:9]), CallDelta(key, said[9:]), CallDone(key)]


async def streamed(server: Api, body: Json) -> Json:
    """The response at the end of a stream of which everything is as the openai package wants it."""
    answer = await server.post("responses", {"model": "fake", "input": "hi", **body, "stream": True})
    assert answer.status == 200, answer.body
    events = events_in(answer)
    for event in events:
        check_event(event)
    accumulate(events)
    response: Json = events[-1]["response"]
    check_response(response)
    return response


def chat(server: Api) -> ChatPrompt:
    """What the engine got last."""
    prompt = server.engine.seen[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt


def offered(server: Api) -> list[str]:
    return [tool["function"]["name"] for tool in chat(server).tools]


def user(*parts: Json | str) -> Json:
    return {"role": "user", "content": [part if isinstance(part, dict) else text(part) for part in parts]}


def text(said: str) -> Json:
    return {"type": "input_text", "text": said}


# ---- custom tools with grammars


@pytest.mark.parametrize(
    ("form", "wrong", "right"),
    [
        pytest.param(
            {"type": "grammar", "syntax": "lark", "definition": PATCH}, "print(1)", ADDED,
            marks=pytest.mark.skipif(not knows_lark(), reason="needs the package lark"),
        ),
        ({"type": "grammar", "syntax": "regex", "definition": r"SELECT \w+;"}, "DROP x;", "SELECT x;"),
    ],
    ids=["lark", "regex"],
)  # fmt: skip
@pytest.mark.shows("D.14")
async def test_the_input_of_a_custom_tool_is_what_its_grammar_says(form: Json, wrong: str, right: str) -> None:
    tool = {"type": "custom", "name": "apply_patch", "description": "Edits files.", "format": form}
    async with api() as server:
        server.engine.says(*calling("apply_patch", {"input": wrong}))
        server.engine.says(*calling("apply_patch", {"input": right}))
        (item,) = (await streamed(server, {"tools": [tool]}))["output"]
        assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "apply_patch", right)
        assert item["status"] == "completed"
        assert len(server.engine.seen) == 2
        assert (
            form["definition"] in chat(server).tools[0]["function"]["parameters"]["properties"]["input"]["description"]
        )


# ---- namespaces, and tools that come with the input


@pytest.mark.shows("E.22", "I.12")
async def test_codex_gets_calls_with_their_namespace_and_its_outputs_come_back() -> None:
    first, second = recorded("gpt-6.1-sol.custom")
    async with api() as server:
        server.engine.says(*calling("functions__exec", {"input": "text(1);\n"}))
        (item,) = (await streamed(server, first))["output"]
        assert (item["type"], item["namespace"], item["name"]) == ("custom_tool_call", "functions", "exec")
        assert item["input"] == "text(1);\n"
        assert "collaboration__spawn_agent" in offered(server)
        server.engine.says(*calling("clock__sleep", {"seconds": 1}))
        (item,) = (await streamed(server, second))["output"]
        assert (item["type"], item["namespace"], item["name"]) == ("function_call", "clock", "sleep")
        *_, asked, answered = chat(server).messages
        assert asked["tool_calls"][0]["function"]["name"] == "functions__exec"
        assert answered["content"].endswith("Output:\nstub-ran-42\n")


@pytest.mark.shows("E.22")
async def test_a_namespaced_call_and_its_output_come_back_by_previous_response_id() -> None:
    space = {"type": "namespace", "name": "files", "description": "All files.", "tools": [EXEC]}
    async with api() as server:
        server.engine.says(*calling("files__exec_command", "{}"))
        first = await streamed(server, {"tools": [space]})
        (item,) = first["output"]
        assert (item["namespace"], item["name"]) == ("files", "exec_command")
        server.engine.says(Text("Done."))
        output = {"type": "function_call_output", "call_id": item["call_id"], "output": "ran"}
        await streamed(server, {"tools": [space], "previous_response_id": first["id"], "input": [output]})
        *_, asked, answered = chat(server).messages
        assert asked["tool_calls"][0]["function"]["name"] == "files__exec_command"
        assert answered["content"] == "ran"


@pytest.mark.shows("E.22")
async def test_tools_of_the_input_are_there_for_all_that_follows() -> None:
    late = {"type": "additional_tools", "role": "developer", "tools": [EXEC, {"type": "shell"}]}
    async with api() as server:
        server.engine.says(*calling("shell", {"commands": ["ls"]}))
        first = await streamed(server, {"input": [late, user("go")]})
        (item,) = first["output"]
        assert item["type"] == "shell_call"
        server.engine.says(Text("Done."))
        ran = {"stdout": "a", "stderr": "", "outcome": {"type": "timeout"}}
        output = {"type": "shell_call_output", "call_id": item["call_id"], "output": [ran]}
        await streamed(server, {"previous_response_id": first["id"], "input": [output]})
        assert offered(server) == ["exec_command", "shell"]
        assert chat(server).messages[-1]["content"] == "a\n[timed out]"


# ---- several calls at once


@pytest.mark.parametrize(("parallel", "count"), [(True, 3), (False, 1)])
@pytest.mark.shows("D.15")
async def test_calls_in_parallel_are_items_of_their_own_whatever_their_kinds(parallel: bool, count: int) -> None:
    tools = [EXEC, {"type": "custom", "name": "note"}, {"type": "shell"}]
    one, two = calling("exec_command", "{}"), calling("note", {"input": "a\nb"}, 1)
    overlapping: list[Delta] = [one[0], two[0], one[1], two[1], *one[2:], *two[2:]]
    async with api() as server:
        server.engine.says(*overlapping, *calling("shell", {"commands": ["ls"]}, 2))
        response = await streamed(server, {"tools": tools, "parallel_tool_calls": parallel})
        items = response["output"]
        assert [item["type"] for item in items] == ["function_call", "custom_tool_call", "shell_call"][:count]
        assert len({item["call_id"] for item in items}) == count
        assert [item["status"] for item in items] == ["completed"] * count


# ---- reasoning that the client carries


@pytest.mark.shows("A.39")
async def test_reasoning_goes_out_sealed_and_is_heard_again() -> None:
    body = {"tools": [EXEC], "store": False, "include": [SEALED], "reasoning": {"summary": "auto"}}
    async with api() as server:
        server.engine.says(Thought("I had better look."), *calling("exec_command", "{}"))
        first = await streamed(server, body)
        reasoning, item = first["output"]
        assert reasoning["encrypted_content"]
        server.engine.says(Text("Done."))
        output = {"type": "function_call_output", "call_id": item["call_id"], "output": "ran"}
        bare = {"type": "reasoning", "summary": [], "encrypted_content": reasoning["encrypted_content"]}
        await streamed(server, {**body, "input": [user("go"), bare, item, output]})
        assert "I had better look." in json.dumps(chat(server).messages)


# ---- what tools give


@pytest.mark.parametrize("kind", ["function_call", "custom_tool_call"])
@pytest.mark.shows("C.26")
async def test_a_picture_that_a_tool_gave_is_seen_where_it_can_be_and_told_of_where_not(kind: str) -> None:
    fields = {"arguments": "{}"} if kind == "function_call" else {"input": ""}
    made = {"type": kind, "call_id": "call_1", "name": "view_image", **fields}
    items = [user("look"), made, {"type": f"{kind}_output", "call_id": "call_1", "output": [text("a.png:"), IMAGE]}]
    body = {"model": "fake", "input": items}
    async with api() as server:
        assert (await server.post("responses", body)).header(b"x-antiphon-ignored") is None
        shown, picture = chat(server).messages[-1]["content"]
        assert shown == {"type": "text", "text": "a.png:"}
        assert picture["image_url"] == {"url": IMAGE["image_url"], "detail": "high"}
    async with api(engine=FakeEngine(FakeSettings(level="text"))) as server:
        answer = await server.post("responses", body)
        assert (answer.status, answer.header(b"x-antiphon-ignored")) == (200, b"input_image")
        prompt = server.engine.seen[-1].prompt
        assert isinstance(prompt, TextPrompt)
        told = "".join([segment.text for segment in prompt.segments])
        assert "a.png:[A picture, which this model cannot see.]" in told


# ---- names and notes of the client's own


@pytest.mark.shows("I.12")
async def test_ids_that_a_client_made_are_names_and_never_ours() -> None:
    items = [
        {**user("go"), "type": "message", "id": "msg_01a1dc95-2c8e-78b0-b7e3-a808856bae94"},
        {"type": "function_call", "id": "fc_x", "call_id": "call_x", "name": "exec_command", "arguments": "{}"},
        {"type": "function_call_output", "id": "fco_01a1dc95", "call_id": "call_x", "output": [text("ran")]},
        {**user("and now?"), "type": "message", "id": "msg_01a1dc95-2c8e-78b0-b7e3-a808856bae94"},
    ]
    async with api() as server:
        response = await streamed(server, {"input": items, "tools": [EXEC]})
        page = (await server.get(f"responses/{response['id']}/input_items?order=asc")).json()
        check_input_items(page)
        assert [item["type"] for item in page["data"]] == [item["type"] for item in items]
        assert {item["id"] for item in items}.isdisjoint([item["id"] for item in page["data"]])
        assert len({item["id"] for item in page["data"]}) == len(items)
        assert [item.get("call_id") for item in page["data"]] == [None, "call_x", "call_x", None]


@pytest.mark.parametrize("name", ["gpt-5.5.tool", "gpt-6.1-sol.custom"])
@pytest.mark.shows("I.12")
async def test_a_clients_notes_are_taken_and_go_nowhere(name: str) -> None:
    async with api() as server:
        for body in recorded(name):
            server.engine.says(Text("Done."))
            secret = body["client_metadata"]["session_id"]
            answer = await server.post("responses", {**body, "store": True, "prompt_cache_key": "k"})
            assert answer.status == 200, answer.body
            assert b"client_metadata" not in (answer.header(b"x-antiphon-ignored") or b"")
            assert secret.encode() not in answer.body
            assert secret not in repr(server.engine.seen[-1])
            response = events_in(answer)[-1]["response"]
            assert "client_metadata" not in (await server.get(f"responses/{response['id']}")).json()


# ---- a warm engine


@pytest.mark.shows("A.42", "C.24")
async def test_a_session_stays_with_the_engine_that_knows_it_and_others_spread() -> None:
    engines = [Upstream() for _ in range(3)]
    async with served(*engines) as app:
        counts: list[Sequence[int]] = []
        for number in range(12):
            before = [engine.chats for engine in engines]
            for turn in range(3):
                told = await post(app, prompt_cache_key=f"session {number}", input=f"{turn} is new each time")
                assert told.status == 200, told.body
            counts.append([engine.chats - count for engine, count in zip(engines, before, strict=True)])
        assert all(sorted(count) == [0, 0, 3] for count in counts)
        assert len({count.index(3) for count in counts}) > 1


@pytest.mark.shows("A.42", "C.24")
async def test_the_turns_of_a_session_find_their_beginning_in_the_cache() -> None:
    config = Config(engine=("fake",) * 3, store="memory")
    app = build_app(config, build_engine(config))
    await app.lifecycle.open()
    try:
        items: list[Json] = [user("A long beginning. " * 200)]
        cached = []
        for turn in range(3):
            body = {"model": "fake", "input": items, "prompt_cache_key": "session", "store": False}
            answer = await call(app, "POST", "/v1/responses", JSON, body=[json.dumps(body).encode()])
            response = answer.json()
            cached.append(response["usage"]["input_tokens_details"]["cached_tokens"])
            items += [*response["output"], user(f"and {turn}?")]
        assert cached[0] == 0
        assert 800 < cached[1] < cached[2]
    finally:
        await app.lifecycle.close()

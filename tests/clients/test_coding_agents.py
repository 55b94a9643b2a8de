"""Features that coding agents rely on, tested through the application with the fake engine: grammars, namespaces,
additional tools in the input, parallel calls, encrypted reasoning, images from tools, client ids and metadata, and
cache affinity.

Several tests use recorded requests of Codex.
"""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from antiphon.config import Config
from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Delta, ReasoningDelta, Text
from antiphon.core.prompt import ChatPrompt, TextPrompt
from antiphon.engines.factory import build_engine
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.protocol.schemas.grammars import has_lark
from antiphon.wiring import build_app
from tests.api.app import ApiServer, parse_events, run_api
from tests.engines.pool.test_http_engines import Upstream, open_app, post_response
from tests.oracles.responses import accumulate, check_event, check_input_items, check_response
from tests.support.asgi_client import JSON, call
from tests.support.media_files import encode_data_url, png
from tests.support.paths import RECORDINGS

pytestmark = pytest.mark.anyio

Json = dict[str, Any]
ENCRYPTED_REASONING = "reasoning.encrypted_content"
PATCH = r"""
start: "*** Begin Patch" _NL file+ "*** End Patch" _NL?
file: "*** Add File: " NAME _NL added+
added: "+" /[^\n]*/ _NL
NAME: /[\w.\/]+/
_NL: "\n"
"""
ADDED = "*** Begin Patch\n*** Add File: a.py\n+print(1)\n*** End Patch\n"
EXEC: Json = {"type": "function", "name": "exec_command", "parameters": {"type": "object", "properties": {}}}
IMAGE = {"type": "input_image", "image_url": encode_data_url(png()), "detail": "high"}


def load_recording(name: str) -> list[Json]:
    """Return the request bodies of a Codex recording."""
    sent = json.loads((RECORDINGS / f"codex-{name}.json").read_bytes())
    return [one["body"] for one in sent]


def make_call_deltas(name: str, arguments: Json | str, key: int = 0) -> list[Delta]:
    """Return the deltas of one tool call, with the arguments in two pieces."""
    encoded = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return [CallStarted(key, name), CallDelta(key, encoded[:9]), CallDelta(key, encoded[9:]), CallDone(key)]


async def stream_response(server: ApiServer, body: Json) -> Json:
    """Stream a response, validate every event against the types of the `openai` package, and return the final
    response.
    """
    answer = await server.post("responses", {"model": "fake", "input": "hi", **body, "stream": True})
    assert answer.status == 200, answer.body
    events = parse_events(answer)
    for event in events:
        check_event(event)
    accumulate(events)
    response: Json = events[-1]["response"]
    check_response(response)
    return response


def get_last_prompt(server: ApiServer) -> ChatPrompt:
    """Return the prompt of the last engine request."""
    prompt = server.engine.seen[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt


def get_offered_tools(server: ApiServer) -> list[str]:
    """Return the names of the tools in the last prompt."""
    return [tool["function"]["name"] for tool in get_last_prompt(server).tools]


def user_message(*parts: Json | str) -> Json:
    return {"role": "user", "content": [part if isinstance(part, dict) else input_text(part) for part in parts]}


def input_text(content: str) -> Json:
    return {"type": "input_text", "text": content}


# ---- custom tools with grammars


@pytest.mark.parametrize(
    ("grammar", "wrong", "right"),
    [
        pytest.param(
            {"type": "grammar", "syntax": "lark", "definition": PATCH}, "print(1)", ADDED,
            marks=pytest.mark.skipif(not has_lark(), reason="needs the package lark"),
        ),
        ({"type": "grammar", "syntax": "regex", "definition": r"SELECT \w+;"}, "DROP x;", "SELECT x;"),
    ],
    ids=["lark", "regex"],
)  # fmt: skip
@pytest.mark.shows("D.14")
async def test_the_input_of_a_custom_tool_matches_its_grammar(grammar: Json, wrong: str, right: str) -> None:
    tool = {"type": "custom", "name": "apply_patch", "description": "Edits files.", "format": grammar}
    async with run_api() as server:
        server.engine.says(*make_call_deltas("apply_patch", {"input": wrong}))
        server.engine.says(*make_call_deltas("apply_patch", {"input": right}))
        (item,) = (await stream_response(server, {"tools": [tool]}))["output"]
        assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "apply_patch", right)
        assert item["status"] == "completed"
        assert len(server.engine.seen) == 2
        assert (
            grammar["definition"]
            in get_last_prompt(server).tools[0]["function"]["parameters"]["properties"]["input"]["description"]
        )


# ---- namespaces and additional tools in the input


@pytest.mark.shows("E.22", "I.12")
async def test_codex_receives_namespaced_calls_and_its_outputs_reach_the_model() -> None:
    first, second = load_recording("gpt-6.1-sol.custom")
    async with run_api() as server:
        server.engine.says(*make_call_deltas("functions__exec", {"input": "text(1);\n"}))
        (item,) = (await stream_response(server, first))["output"]
        assert (item["type"], item["namespace"], item["name"]) == ("custom_tool_call", "functions", "exec")
        assert item["input"] == "text(1);\n"
        assert "collaboration__spawn_agent" in get_offered_tools(server)
        server.engine.says(*make_call_deltas("clock__sleep", {"seconds": 1}))
        (item,) = (await stream_response(server, second))["output"]
        assert (item["type"], item["namespace"], item["name"]) == ("function_call", "clock", "sleep")
        *_, call_message, output_message = get_last_prompt(server).messages
        assert call_message["tool_calls"][0]["function"]["name"] == "functions__exec"
        assert output_message["content"].endswith("Output:\nstub-ran-42\n")


@pytest.mark.shows("E.22")
async def test_previous_response_id_restores_a_namespaced_call_and_its_output() -> None:
    namespace = {"type": "namespace", "name": "files", "description": "All files.", "tools": [EXEC]}
    async with run_api() as server:
        server.engine.says(*make_call_deltas("files__exec_command", "{}"))
        first = await stream_response(server, {"tools": [namespace]})
        (item,) = first["output"]
        assert (item["namespace"], item["name"]) == ("files", "exec_command")
        server.engine.says(Text("Done."))
        output = {"type": "function_call_output", "call_id": item["call_id"], "output": "ran"}
        await stream_response(server, {"tools": [namespace], "previous_response_id": first["id"], "input": [output]})
        *_, call_message, output_message = get_last_prompt(server).messages
        assert call_message["tool_calls"][0]["function"]["name"] == "files__exec_command"
        assert output_message["content"] == "ran"


@pytest.mark.shows("E.22")
async def test_additional_tools_of_the_input_stay_available_in_later_turns() -> None:
    additional_tools = {"type": "additional_tools", "role": "developer", "tools": [EXEC, {"type": "shell"}]}
    async with run_api() as server:
        server.engine.says(*make_call_deltas("shell", {"commands": ["ls"]}))
        first = await stream_response(server, {"input": [additional_tools, user_message("go")]})
        (item,) = first["output"]
        assert item["type"] == "shell_call"
        server.engine.says(Text("Done."))
        ran = {"stdout": "a", "stderr": "", "outcome": {"type": "timeout"}}
        output = {"type": "shell_call_output", "call_id": item["call_id"], "output": [ran]}
        await stream_response(server, {"previous_response_id": first["id"], "input": [output]})
        assert get_offered_tools(server) == ["exec_command", "shell"]
        assert get_last_prompt(server).messages[-1]["content"] == "a\n[timed out]"


# ---- parallel calls


@pytest.mark.parametrize(("parallel", "count"), [(True, 3), (False, 1)])
@pytest.mark.shows("D.15")
async def test_parallel_calls_of_different_kinds_become_separate_items(parallel: bool, count: int) -> None:
    tools = [EXEC, {"type": "custom", "name": "note"}, {"type": "shell"}]
    one, two = make_call_deltas("exec_command", "{}"), make_call_deltas("note", {"input": "a\nb"}, 1)
    overlapping: list[Delta] = [one[0], two[0], one[1], two[1], *one[2:], *two[2:]]
    async with run_api() as server:
        server.engine.says(*overlapping, *make_call_deltas("shell", {"commands": ["ls"]}, 2))
        response = await stream_response(server, {"tools": tools, "parallel_tool_calls": parallel})
        items = response["output"]
        assert [item["type"] for item in items] == ["function_call", "custom_tool_call", "shell_call"][:count]
        assert len({item["call_id"] for item in items}) == count
        assert [item["status"] for item in items] == ["completed"] * count


# ---- encrypted reasoning


@pytest.mark.shows("A.39")
async def test_encrypted_reasoning_is_returned_and_decrypted_in_the_next_request() -> None:
    body = {"tools": [EXEC], "store": False, "include": [ENCRYPTED_REASONING], "reasoning": {"summary": "auto"}}
    async with run_api() as server:
        server.engine.says(ReasoningDelta("I had better look."), *make_call_deltas("exec_command", "{}"))
        first = await stream_response(server, body)
        reasoning, item = first["output"]
        assert reasoning["encrypted_content"]
        server.engine.says(Text("Done."))
        output = {"type": "function_call_output", "call_id": item["call_id"], "output": "ran"}
        encrypted_item = {"type": "reasoning", "summary": [], "encrypted_content": reasoning["encrypted_content"]}
        await stream_response(server, {**body, "input": [user_message("go"), encrypted_item, item, output]})
        assert "I had better look." in json.dumps(get_last_prompt(server).messages)


# ---- images in tool outputs


@pytest.mark.parametrize("kind", ["function_call", "custom_tool_call"])
@pytest.mark.shows("C.26")
async def test_an_image_from_a_tool_reaches_the_engine_or_is_replaced_by_a_note(kind: str) -> None:
    fields = {"arguments": "{}"} if kind == "function_call" else {"input": ""}
    made = {"type": kind, "call_id": "call_1", "name": "view_image", **fields}
    items = [
        user_message("look"),
        made,
        {"type": f"{kind}_output", "call_id": "call_1", "output": [input_text("a.png:"), IMAGE]},
    ]
    body = {"model": "fake", "input": items}
    async with run_api() as server:
        assert (await server.post("responses", body)).header(b"x-antiphon-ignored") is None
        caption, image = get_last_prompt(server).messages[-1]["content"]
        assert caption == {"type": "text", "text": "a.png:"}
        assert image["image_url"] == {"url": IMAGE["image_url"], "detail": "high"}
    async with run_api(engine=FakeEngine(FakeSettings(level="text"))) as server:
        answer = await server.post("responses", body)
        assert (answer.status, answer.header(b"x-antiphon-ignored")) == (200, b"input_image")
        prompt = server.engine.seen[-1].prompt
        assert isinstance(prompt, TextPrompt)
        rendered = "".join([segment.text for segment in prompt.segments])
        assert "a.png:[A picture, which this model cannot see.]" in rendered


# ---- ids and metadata of the client


@pytest.mark.shows("I.12")
async def test_item_ids_of_a_client_are_replaced_by_server_ids() -> None:
    items = [
        {**user_message("go"), "type": "message", "id": "msg_01a1dc95-2c8e-78b0-b7e3-a808856bae94"},
        {"type": "function_call", "id": "fc_x", "call_id": "call_x", "name": "exec_command", "arguments": "{}"},
        {"type": "function_call_output", "id": "fco_01a1dc95", "call_id": "call_x", "output": [input_text("ran")]},
        {**user_message("and now?"), "type": "message", "id": "msg_01a1dc95-2c8e-78b0-b7e3-a808856bae94"},
    ]
    async with run_api() as server:
        response = await stream_response(server, {"input": items, "tools": [EXEC]})
        page = (await server.get(f"responses/{response['id']}/input_items?order=asc")).json()
        check_input_items(page)
        assert [item["type"] for item in page["data"]] == [item["type"] for item in items]
        assert {item["id"] for item in items}.isdisjoint([item["id"] for item in page["data"]])
        assert len({item["id"] for item in page["data"]}) == len(items)
        assert [item.get("call_id") for item in page["data"]] == [None, "call_x", "call_x", None]


@pytest.mark.parametrize("name", ["gpt-5.5.tool", "gpt-6.1-sol.custom"])
@pytest.mark.shows("I.12")
async def test_client_metadata_is_accepted_and_never_stored_or_forwarded(name: str) -> None:
    async with run_api() as server:
        for body in load_recording(name):
            server.engine.says(Text("Done."))
            secret = body["client_metadata"]["session_id"]
            answer = await server.post("responses", {**body, "store": True, "prompt_cache_key": "k"})
            assert answer.status == 200, answer.body
            assert b"client_metadata" not in (answer.header(b"x-antiphon-ignored") or b"")
            assert secret.encode() not in answer.body
            assert secret not in repr(server.engine.seen[-1])
            response = parse_events(answer)[-1]["response"]
            assert "client_metadata" not in (await server.get(f"responses/{response['id']}")).json()


# ---- cache affinity


@pytest.mark.shows("A.42", "C.24")
async def test_a_session_stays_on_one_engine_and_sessions_spread_over_engines() -> None:
    engines = [Upstream() for _ in range(3)]
    async with open_app(*engines) as app:
        counts: list[Sequence[int]] = []
        for number in range(12):
            before = [engine.chats for engine in engines]
            for turn in range(3):
                response = await post_response(
                    app, prompt_cache_key=f"session {number}", input=f"{turn} is new each time"
                )
                assert response.status == 200, response.body
            counts.append([engine.chats - count for engine, count in zip(engines, before, strict=True)])
        assert all(sorted(count) == [0, 0, 3] for count in counts)
        assert len({count.index(3) for count in counts}) > 1


@pytest.mark.shows("A.42", "C.24")
async def test_later_turns_of_a_session_hit_the_prompt_cache() -> None:
    config = Config.from_settings(engine=("fake",) * 3, store="memory")
    app = build_app(config, build_engine(config))
    await app.lifecycle.open()
    try:
        items: list[Json] = [user_message("A long beginning. " * 200)]
        cached = []
        for turn in range(3):
            body = {"model": "fake", "input": items, "prompt_cache_key": "session", "store": False}
            answer = await call(app, "POST", "/v1/responses", JSON, body=[json.dumps(body).encode()])
            response = answer.json()
            cached.append(response["usage"]["input_tokens_details"]["cached_tokens"])
            items += [*response["output"], user_message(f"and {turn}?")]
        assert cached[0] == 0
        assert 800 < cached[1] < cached[2]
    finally:
        await app.lifecycle.close()

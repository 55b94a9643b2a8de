"""Computer use through the whole server: the client runs the actions, and its screenshots reach models that see."""

import json
from typing import Any

import pytest

from antiphon.core.deltas import CallDelta, CallStarted, Text
from antiphon.engines.fake import FakeEngine, FakeSettings
from tests.api.app import ApiServer, run_api
from tests.api.input.test_field_fates import TRANSPORTS, Transport, send_request
from tests.api.tools.test_client_tools import build_call, create_response, get_chat_prompt
from tests.api.vector_stores.vector_api import VectorApi
from tests.oracles.responses import check_compacted, check_conversation_items, check_event, check_input_items
from tests.support.media_files import encode_data_url, png

pytestmark = pytest.mark.anyio

Json = dict[str, Any]
COMPUTER: Json = {"type": "computer"}
PREVIEW: Json = {"type": "computer_use_preview", "display_width": 640, "display_height": 480, "environment": "browser"}
CLICK: Json = {"type": "click", "button": "left", "x": 30, "y": 20}
SHOT = encode_data_url(png(40, 30))
ACTIONS: list[Json] = [
    CLICK,
    {**CLICK, "button": "wheel", "keys": ["SHIFT"]},
    {"type": "double_click", "x": 0, "y": 0},
    {"type": "drag", "path": [{"x": 1, "y": 2}, {"x": 3, "y": 4}], "keys": ["ALT"]},
    {"type": "keypress", "keys": ["CTRL", "A"]},
    {"type": "move", "x": 39, "y": 29},
    {"type": "scroll", "x": 1, "y": 1, "scroll_x": 0, "scroll_y": -300},
    {"type": "type", "text": "Grüße"},
    {"type": "wait"},
    {"type": "screenshot"},
]


def run_with_computer(**settings: Any) -> Any:
    return run_api(enable_computer_call=True, **settings)


def make_output(call: Json, **fields: Any) -> Json:
    output = {"type": "computer_screenshot", "image_url": SHOT}
    return {"type": "computer_call_output", "call_id": call["call_id"], "output": output, **fields}


async def start_session(server: ApiServer, tool: Json = COMPUTER, **fields: Any) -> Json:
    """Let the model ask for a screenshot, and return the response."""
    server.engine.says(*build_call("computer", {"actions": [{"type": "screenshot"}]}))
    return await create_response(server, tools=[tool], **fields)


async def answer_call(server: ApiServer, first: Json, *actions: Json, tool: Json = COMPUTER, **fields: Any) -> Json:
    """Send a screenshot, on which the model acts, and return the response."""
    if actions:
        server.engine.says(*build_call("computer", {"actions": [*actions]}))
    body = {"tools": [tool], "previous_response_id": first["id"], "input": [make_output(first["output"][-1])]}
    return await create_response(server, **{**body, **fields})


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.shows("E1.1", "E1.2")
async def test_actions_reach_the_client_and_its_screenshot_reaches_the_model(stream: bool) -> None:
    async with run_with_computer() as server:
        server.engine.says(Text("Let me see."), *build_call("computer", {"actions": ACTIONS}))
        first = await create_response(server, stream, tools=[COMPUTER])
        _, item = first["output"]
        assert item["id"].startswith("cu_")
        assert {key: item[key] for key in item.keys() - {"id", "call_id"}} == {
            "type": "computer_call", "status": "completed", "actions": ACTIONS, "pending_safety_checks": [],
        }  # fmt: skip
        second = await answer_call(server, first, stream=stream)
        assert second["status"] == "completed"
        *_, call, output = get_chat_prompt(server).messages
        assert call["tool_calls"][0]["function"]["name"] == "computer"
        assert json.loads(call["tool_calls"][0]["function"]["arguments"]) == {"actions": ACTIONS}
        assert output["content"] == [{"type": "image_url", "image_url": {"url": SHOT, "detail": "auto"}}]
        stored = await server.get(f"responses/{first['id']}")
        assert stored.json()["output"] == first["output"]


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.shows("E1.1")
async def test_a_preview_has_one_action_and_its_display_is_described(stream: bool) -> None:
    async with run_with_computer() as server:
        server.engine.says(*build_call("computer", {"action": CLICK}))
        (item,) = (await create_response(server, stream, tools=[PREVIEW]))["output"]
        assert item["action"] == CLICK
        assert "actions" not in item
        function = get_chat_prompt(server).tools[0]["function"]
        assert function["strict"] is True
        assert "web browser" in function["description"]
        assert "640 × 480" in function["description"]
        points = [each["properties"] for each in function["parameters"]["properties"]["action"]["anyOf"]]
        assert {(each["x"]["maximum"], each["y"]["maximum"]) for each in points if "x" in each} == {(639, 479)}


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.shows("E1.1", "E1.2")
async def test_a_session_runs_on_every_transport_in_a_conversation(transport: Transport) -> None:
    async with run_with_computer() as server:
        conversation = (await server.post_ok("conversations", {}))["id"]
        body = {"model": "fake", "tools": [COMPUTER], "conversation": conversation}
        server.engine.says(*build_call("computer", {"actions": [CLICK]}))
        first, events = await send_request(server, transport, {**body, "input": "hi"})
        assert first["output"][0]["actions"] == [CLICK]
        server.engine.says(Text("Done."))
        second, more_events = await send_request(
            server, transport, {**body, "input": [make_output(first["output"][0])]}
        )
        assert second["status"] == "completed"
        for event in [*events, *more_events]:
            check_event(event)
        page = (await server.get(f"conversations/{conversation}/items")).json()
        check_conversation_items(page)
        assert sorted(item["type"] for item in page["data"]) == [
            "computer_call", "computer_call_output", "message", "message",
        ]  # fmt: skip


@pytest.mark.shows("E1.1")
async def test_a_background_response_ends_with_its_call_and_is_replayed() -> None:
    async with run_with_computer() as server:
        server.engine.says(*build_call("computer", {"actions": [CLICK]}))
        response = await create_response(server, stream=True, tools=[COMPUTER], background=True)
        assert response["status"] == "completed"
        replayed = await server.get(f"responses/{response['id']}?stream=true")
        assert replayed.body.count(b"event: response.output_item.done") == 1


@pytest.mark.shows("E1.2")
async def test_a_stateless_client_sends_the_whole_history_with_nulls() -> None:
    async with run_with_computer() as server:
        first = await start_session(server, store=False)
        call = {**first["output"][0], "action": None, "actions": [{**CLICK, "keys": None}]}
        server.engine.says(Text("Done."))
        items = [{"role": "user", "content": "hi"}, call, make_output(call, acknowledged_safety_checks=None)]
        second = await create_response(server, tools=[COMPUTER], store=False, input=items)
        assert second["output"][0]["content"][0]["text"] == "Done."


@pytest.mark.shows("A4.9", "E1.2")
async def test_a_screenshot_is_listed_with_its_image_only_if_it_is_included() -> None:
    async with run_with_computer() as server:
        first = await start_session(server)
        second = await answer_call(server, first)
        path = f"responses/{second['id']}/input_items?order=asc"
        for query, expected in (("", {}), ("&include=computer_call_output.output.image_url", {"image_url": SHOT})):
            page = (await server.get(path + query)).json()
            check_input_items(page)
            assert page["data"][-1]["output"] == {"type": "computer_screenshot", **expected}
            assert page["data"][-1]["status"] == "completed"


@pytest.mark.shows("E1.2")
async def test_a_screenshot_may_be_a_stored_file() -> None:
    async with run_with_computer() as server:
        file_id = await VectorApi(server).upload(png(40, 30), "a.png")
        first = await start_session(server)
        output = {**make_output(first["output"][0]), "output": {"type": "computer_screenshot", "file_id": file_id}}
        await answer_call(server, first, input=[output])
        assert get_chat_prompt(server).messages[-1]["content"][0]["image_url"]["url"] == SHOT
        assert "40 × 30" in get_chat_prompt(server).tools[0]["function"]["description"]


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.shows("D.13", "E1.3")
async def test_a_point_outside_the_latest_screenshot_is_retried_and_not_sent(stream: bool) -> None:
    async with run_with_computer() as server:
        first = await start_session(server)
        server.engine.says(*build_call("computer", {"actions": [{**CLICK, "x": 40}]}))
        second = await answer_call(server, first, {**CLICK, "x": 39}, stream=stream)
        assert [item["actions"] for item in second["output"]] == [[{**CLICK, "x": 39}]]
        assert "maximum of 39" in get_chat_prompt(server).messages[-1]["content"]


INVALID: list[Any] = [
    {"action": {**CLICK, "x": 640}},
    {"action": {**CLICK, "y": -1}},
    {"action": {"type": "fly"}},
    {"action": {**CLICK, "button": "middle"}},
    {"action": {**CLICK, "speed": 9}},
    {"action": {"type": "keypress", "keys": [""]}},
    {"action": {"type": "drag", "path": [{"x": 1, "y": 1}]}},
    {"action": {"type": "type", "text": 5}},
    {"action": {"type": "scroll", "x": 1, "y": 1, "scroll_y": 10**12, "scroll_x": 0}},
    {"actions": [CLICK, CLICK]},
    {"do": "it"},
    "[]",
]


@pytest.mark.shows("D.13", "E1.3")
async def test_invalid_actions_fail_the_response_without_an_item() -> None:
    async with run_with_computer(insist=0) as server:
        for arguments in INVALID:
            server.engine.says(*build_call("computer", arguments))
            response = await create_response(server, stream=True, tools=[PREVIEW])
            assert response["output"] == [], arguments
            assert response["error"]["code"] == "invalid_tool_call", arguments


@pytest.mark.parametrize(
    "arguments", [{"action": {"type": "click", "x": 1.0, "y": "2"}}, {"type": "click", "x": 1, "y": 2, "keys": None}]
)
@pytest.mark.shows("D.13", "E1.3")
async def test_other_forms_of_an_action_are_accepted_if_they_have_one_meaning(arguments: Json) -> None:
    async with run_with_computer(insist=0) as server:
        server.engine.says(*build_call("computer", arguments))
        response = await create_response(server, tools=[COMPUTER])
        assert response["output"][0]["actions"] == [{"type": "click", "button": "left", "x": 1, "y": 2}]


@pytest.mark.parametrize("tool", [COMPUTER, PREVIEW], ids=["computer", "preview"])
@pytest.mark.shows("D2.4", "E1.1")
async def test_a_truncated_call_is_incomplete(tool: Json) -> None:
    async with run_with_computer() as server:
        server.engine.says(CallStarted(0, "computer"), CallDelta(0, '{"action": {"type": "cli'), finish="length")
        response = await create_response(server, stream=True, tools=[tool])
        assert response["status"] == "incomplete"
        assert [(item["status"], item.get("actions", [])) for item in response["output"]] == [("incomplete", [])]


@pytest.mark.parametrize("tool", [COMPUTER, PREVIEW], ids=["computer", "preview"])
@pytest.mark.shows("D.12", "E1.1")
async def test_every_form_of_tool_choice_names_the_computer(tool: Json) -> None:
    kinds = ("computer", "computer_use", "computer_use_preview")
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": tool["type"]}]}
    async with run_with_computer() as server:
        for choice in ["required", allowed, *[{"type": kind} for kind in kinds]]:
            response = await create_response(server, tools=[tool], tool_choice=choice)
            (item,) = response["output"]
            assert item.get("action", {}) or item["actions"] == [{"type": "screenshot"}]


@pytest.mark.parametrize("tool", [COMPUTER, PREVIEW], ids=["computer", "preview"])
@pytest.mark.shows("E.26", "E1.1", "H1.3")
async def test_a_computer_is_refused_unless_the_operator_enables_it(tool: Json) -> None:
    async with run_api() as server:
        answer = await server.post("responses", {"model": "fake", "input": "hi", "tools": [tool]})
        assert (answer.status, answer.error["param"]) == (400, "tools[0]")
        assert "--enable-computer-call" in answer.error["message"]
        (described,) = [one for one in (await server.get("capabilities")).json()["tools"] if one["type"] == "computer"]
        assert described["ready"] is False
        assert "--enable-computer-call" in described["missing"]
    async with run_api(unserved_tools="ignore") as server:
        assert (await server.create(tools=[tool]))["ignored_fields"] == [tool["type"]]
    async with run_with_computer() as server:
        assert {"type": "computer", "ready": True} in (await server.get("capabilities")).json()["tools"]


@pytest.mark.shows("E1.2")
async def test_a_model_without_eyes_gets_no_computer() -> None:
    async with run_with_computer(engine=FakeEngine(FakeSettings(level="text"))) as server:
        weather = {"type": "function", "name": "weather"}
        answer = await server.post("responses", {"model": "fake", "input": "hi", "tools": [weather, PREVIEW]})
        assert (answer.status, answer.error["param"]) == (400, "tools[1]")
        assert "screenshots" in answer.error["message"]


CALL: Json = {"type": "computer_call", "call_id": "c", "actions": [CLICK]}
CHECK: Json = {"id": "sc_1", "code": "malicious_instructions", "message": "Is this you?"}
REFUSED: dict[str, tuple[Json, str]] = {
    "two computers": ({"tools": [COMPUTER, PREVIEW]}, "tools[1].name"),
    "no width": ({"tools": [{**PREVIEW, "display_width": 0}]}, "tools[0].display_width"),
    "no call": ({"input": [make_output(CALL)]}, "input[0].call_id"),
    "no image": ({"input": [CALL, {**make_output(CALL), "output": {"type": "computer_screenshot"}}]},
                 "input[1].output.image_url"),
    "two images": ({"input": [CALL, {**make_output(CALL), "output": {**make_output(CALL)["output"], "file_id": "f"}}]},
                   "input[1].output.file_id"),
    "a check that is not acknowledged": (
        {"input": [{**CALL, "pending_safety_checks": [CHECK]}, make_output(CALL)]},
        "input[1].acknowledged_safety_checks",
    ),
    "a check that does not exist": (
        {"input": [CALL, make_output(CALL, acknowledged_safety_checks=[CHECK])]},
        "input[1].acknowledged_safety_checks",
    ),
    "a check without an id": (
        {"input": [CALL, make_output(CALL, acknowledged_safety_checks=[{"code": "a"}])]},
        "input[1].acknowledged_safety_checks[0].id",
    ),
    "an unknown action": ({"input": [{**CALL, "actions": [{"type": "fly"}]}]}, "input[0].actions[0].type"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.shows("E1.1", "E1.2")
async def test_an_invalid_computer_in_a_request_is_refused_by_its_field(name: str) -> None:
    fields, param = REFUSED[name]
    async with run_with_computer() as server:
        answer = await server.post("responses", {"model": "fake", "input": "hi", **fields})
        assert (answer.status, answer.error["param"]) == (400, param), answer.body


@pytest.mark.shows("E1.2")
async def test_acknowledged_safety_checks_are_accepted_and_listed() -> None:
    async with run_with_computer() as server:
        call = {**CALL, "pending_safety_checks": [CHECK]}
        output = make_output(CALL, acknowledged_safety_checks=[CHECK])
        server.engine.says(Text("Done."))
        response = await create_response(server, tools=[COMPUTER], input=[call, output])
        page = (await server.get(f"responses/{response['id']}/input_items?order=asc")).json()
        check_input_items(page)
        assert page["data"][1]["acknowledged_safety_checks"] == [CHECK]


@pytest.mark.shows("E1.2")
async def test_of_a_long_session_the_latest_screenshots_are_shown() -> None:
    """Older ones are left out eight at a time: until then, the beginning of the prompt does not change."""
    history: list[Json] = [{"role": "user", "content": "hi"}]
    shown = []
    async with run_with_computer() as server:
        for number in range(42):
            call = {**CALL, "call_id": f"c{number}"}
            history += [call, make_output(call)]
            server.engine.says(Text("Done."))
            await create_response(server, tools=[COMPUTER], input=history, store=False)
            outputs = [message["content"] for message in get_chat_prompt(server).messages if message["role"] == "tool"]
            assert outputs[-1][0]["image_url"]["url"] == SHOT
            shown.append(sum(not isinstance(output, str) for output in outputs))
    assert shown == [*range(1, 33), *range(25, 33), 25, 26]


@pytest.mark.shows("E1.2")
async def test_old_screenshots_are_dropped_by_truncation_and_compaction() -> None:
    turns: list[Json] = []
    for number in range(4):
        call = {**CALL, "call_id": f"c{number}", "actions": [{"type": "type", "text": "so it is " * 150}]}
        turns += [call, make_output(call)]
    history = [{"role": "user", "content": "hi"}, *turns]
    async with run_with_computer(engine=FakeEngine(FakeSettings(context=2200))) as server:
        server.engine.says(Text("Done."))
        await create_response(server, tools=[COMPUTER], input=history, truncation="auto")
        shown = [message for message in get_chat_prompt(server).messages if message["role"] == "tool"]
        assert 0 < len(shown) < 4
    async with run_with_computer() as server:
        compacted = await server.post_ok("responses/compact", {"model": "fake", "input": history})
        check_compacted(compacted)
        assert SHOT not in json.dumps(compacted)

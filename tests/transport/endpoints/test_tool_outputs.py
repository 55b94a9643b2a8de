"""Tests POST /v1/responses/{id}/tool_outputs through the complete application.

A response pauses at a call of a client's tool and continues when the client has submitted the output.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from antiphon.core.deltas import CallDelta, CallDone, CallStarted
from antiphon.ids import ItemIds, new_id
from tests.api.app import ApiServer, Client, parse_events, run_api
from tests.oracles.responses import accumulate, check_event, check_response
from tests.support.asgi_client import JSON, AsgiResponse, call
from tests.support.media_files import encode_data_url, png
from tests.tools.mcp.sum_server import run_sum_server

pytestmark = pytest.mark.anyio

TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}, "strict": False}
CUSTOM = {"type": "custom", "name": "shout"}
TERMINAL_EVENTS = ("response.completed", "response.incomplete", "response.failed")


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with run_api() as server:
        yield server


class StreamReader:
    """A client that reads a stream step by step and checks every event."""

    def __init__(self, server: ApiServer, *target: str, **body: Any) -> None:
        fields = body if target else {"tools": [TOOL], "wait_for_tool_outputs": True, **body}
        self.client = Client(server.app, *target, **fields)
        self._events = self.client.events()
        self.events: list[dict[str, Any]] = []

    @property
    def id(self) -> str:
        return str(self.events[0]["response"]["id"])

    async def read_until(self, *types: str) -> dict[str, Any]:
        while True:
            event = await anext(self._events)
            check_event(event)
            self.events.append(event)
            if event["type"] in types:
                return event

    async def read_call_id(self) -> str:
        """Read up to the next tool call and return its id."""
        while True:
            item = (await self.read_until("response.output_item.done"))["item"]
            if item["type"] in ("function_call", "custom_tool_call"):
                return str(item["call_id"])

    async def read_to_end(self) -> dict[str, Any]:
        """Read the remaining events and return the final Response; the SDK must be able to accumulate the stream."""
        response: dict[str, Any] = (await self.read_until(*TERMINAL_EVENTS))["response"]
        await self.client.request
        accumulate(self.events)
        return response


async def submit(server: ApiServer, response_id: str, call_id: str, output: Any = "sunny") -> AsgiResponse:
    return await server.post(f"responses/{response_id}/tool_outputs", {"tool_call_id": call_id, "output": output})


def script_two_calls(server: ApiServer) -> None:
    """Script an engine reply that calls both tools."""
    weather = CallStarted(0, "weather"), CallDelta(0, "{}"), CallDone(0)
    shout = CallStarted(1, "shout"), CallDelta(1, '{"input":"hi"}'), CallDone(1)
    server.engine.says(*weather, *shout)


def list_outputs(response: dict[str, Any]) -> list[tuple[str, str, Any]]:
    kinds = ("function_call_output", "custom_tool_call_output")
    return [(item["type"], item["call_id"], item["output"]) for item in response["output"] if item["type"] in kinds]


@pytest.mark.shows("A.12", "A2.1", "A2.2")
@pytest.mark.parametrize(
    ("field", "output", "stored"),
    [
        ("tool_call_id", "sunny", "sunny"),
        ("call_id", [{"type": "output_text", "text": "sunny"}], [{"type": "input_text", "text": "sunny"}]),
        ("call_id", [{"type": "input_text", "text": "sunny"}], [{"type": "input_text", "text": "sunny"}]),
    ],
)
async def test_a_stream_pauses_at_a_tool_call_and_continues_with_its_output(
    server: ApiServer, field: str, output: Any, stored: Any
) -> None:
    stream = StreamReader(server)
    call_id = await stream.read_call_id()
    answer = await server.post(f"responses/{stream.id}/tool_outputs", {field: call_id, "output": output})
    assert (answer.status, answer.json()) == (200, {"id": stream.id, "status": "in_progress"})
    response = await stream.read_to_end()
    assert [item["type"] for item in response["output"]] == ["function_call", "function_call_output", "message"]
    assert list_outputs(response) == [("function_call_output", call_id, stored)]
    assert response["output"][-1]["content"][0]["text"] == "The tool said: sunny"
    assert response["usage"]["output_tokens_details"]["tool_output_tokens_per_turn"][1] > 0
    check_response(response)
    assert (await server.get(f"responses/{stream.id}")).json() == response
    again = await server.get(f"responses/{stream.id}?stream=true")
    assert parse_events(again) == stream.events


@pytest.mark.shows("A2.3")
async def test_a_response_continues_once_every_call_has_its_output(server: ApiServer) -> None:
    script_two_calls(server)
    stream = StreamReader(server, tools=[TOOL, CUSTOM])
    weather, shout = await stream.read_call_id(), await stream.read_call_id()
    assert (await submit(server, stream.id, shout, "HI")).status == 200
    assert (await submit(server, stream.id, weather)).status == 200
    response = await stream.read_to_end()
    assert list_outputs(response) == [
        ("function_call_output", weather, "sunny"),
        ("custom_tool_call_output", shout, "HI"),
    ]
    assert response["status"] == "completed"


async def test_an_output_is_accepted_while_the_model_still_generates(server: ApiServer) -> None:
    script_two_calls(server)
    gate = server.engine.holds(after=3)
    stream = StreamReader(server, tools=[TOOL, CUSTOM])
    weather = await stream.read_call_id()
    early = asyncio.ensure_future(submit(server, stream.id, weather))
    await gate.reached.wait()
    gate.open()
    shout = await stream.read_call_id()
    assert (await submit(server, stream.id, shout, "HI")).status == 200
    assert (await early).status == 200
    assert len(list_outputs(await stream.read_to_end())) == 2


async def test_a_response_can_pause_repeatedly(server: ApiServer) -> None:
    for _ in range(3):
        server.engine.says(CallStarted(0, "weather"), CallDelta(0, "{}"), CallDone(0))
    stream = StreamReader(server)
    for number in range(3):
        call_id = await stream.read_call_id()
        assert (await submit(server, stream.id, call_id, str(number))).status == 200
    assert [output for _, _, output in list_outputs(await stream.read_to_end())] == ["0", "1", "2"]


async def test_server_tools_run_before_the_response_waits_for_the_client(server: ApiServer) -> None:
    with run_sum_server() as sums:
        tools = [{"type": "mcp", "server_label": "sums", "server_url": sums.url, "require_approval": "never"}, TOOL]
        add = CallStarted(0, "sums__add"), CallDelta(0, '{"a":2,"b":3}'), CallDone(0)
        server.engine.says(*add, CallStarted(1, "weather"), CallDelta(1, "{}"), CallDone(1))
        stream = StreamReader(server, tools=tools)
        call_id = await stream.read_call_id()
        assert (await submit(server, stream.id, call_id)).status == 200
        response = await stream.read_to_end()
        assert sums.calls == [(2, 3)]
    kinds = [item["type"] for item in response["output"]]
    assert kinds == ["mcp_list_tools", "mcp_call", "function_call", "function_call_output", "message"]
    assert [item.get("output") for item in response["output"]][1:4:2] == ["2 + 3 = 5", "sunny"]


@pytest.mark.shows("A.12", "A2.3")
@pytest.mark.parametrize("streams", [False, True])
async def test_a_background_response_shows_its_pending_call_and_continues(server: ApiServer, streams: bool) -> None:
    if streams:
        creator = StreamReader(server, background=True)
        await creator.read_call_id()
        response_id = creator.id
    else:
        response_id = (await server.create(background=True, tools=[TOOL], wait_for_tool_outputs=True))["id"]
    stream = StreamReader(server, "GET", f"responses/{response_id}?stream=true")
    call_id = await stream.read_call_id()
    while not (shown := (await server.get(f"responses/{response_id}")).json())["output"]:
        check_response(shown)
    assert (shown["status"], shown["output"][0]["call_id"]) == ("in_progress", call_id)
    assert (await submit(server, response_id, call_id)).status == 200
    response = await stream.read_to_end()
    assert list_outputs(response) == [("function_call_output", call_id, "sunny")]
    assert (await server.get(f"responses/{response_id}")).json() == response
    assert not streams or await creator.read_to_end() == response


@pytest.mark.shows("A2.4")
async def test_an_output_for_a_call_that_is_not_pending_is_rejected(server: ApiServer) -> None:
    script_two_calls(server)
    stream = StreamReader(server, tools=[TOOL, CUSTOM])
    weather, shout = await stream.read_call_id(), await stream.read_call_id()
    assert (await submit(server, stream.id, weather)).status == 200
    for call_id, reason in ((weather, "already"), ("call_x", "does not wait for it"), ("", "does not wait for it")):
        refused = await submit(server, stream.id, call_id)
        assert (refused.status, refused.error["code"]) == (400, "tool_call_not_pending")
        assert refused.error["param"] == "tool_call_id"
        assert reason in refused.error["message"]
    await submit(server, stream.id, shout)
    assert list_outputs(await stream.read_to_end())[0][2] == "sunny"


@pytest.mark.shows("A2.4", "A2.5")
async def test_a_response_that_is_not_waiting_yields_400_and_an_unknown_one_404(server: ApiServer) -> None:
    ended = (await server.create())["id"]
    refused = await submit(server, ended, ItemIds(ended)("call"))
    assert (refused.status, refused.error["code"], refused.error["param"]) == (400, "response_not_waiting", None)
    for name in (new_id("resp"), "resp_x", "%00", new_id("conv")):
        missing = await submit(server, name, "call_x")
        assert (missing.status, missing.error["type"]) == (404, "not_found_error")
    unstored = await server.create(store=False)
    assert (await submit(server, unstored["id"], "call_x")).status == 404


@pytest.mark.shows("A2.1")
@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b"", "invalid_json", None),
        (b"[]", "invalid_type", None),
        ({}, "missing_required_parameter", "output"),
        ({"output": "x"}, "missing_required_parameter", "tool_call_id"),
        ({"call_id": None, "output": "x"}, "missing_required_parameter", "tool_call_id"),
        ({"call_id": "a", "tool_call_id": "b", "output": "x"}, "invalid_value", "call_id"),
        ({"call_id": 1, "output": "x"}, "invalid_type", "call_id"),
        ({"call_id": "x" * 1000, "output": "x"}, "invalid_value", "call_id"),
        ({"call_id": "a", "output": 1}, "invalid_type", "output"),
        ({"call_id": "a", "output": [{"type": "refusal"}]}, "invalid_value", "output[0].type"),
        ({"call_id": "a", "output": [{"type": "output_text"}]}, "missing_required_parameter", "output[0].text"),
        ({"call_id": "a", "output": [{"type": "input_image"}]}, "missing_required_parameter", "output[0].image_url"),
        ({"call_id": "a", "output": ["x"]}, "invalid_type", "output[0]"),
    ],
)
async def test_an_invalid_output_is_rejected_with_its_field(
    server: ApiServer, body: Any, code: str, param: str | None
) -> None:
    refused = await server.post(f"responses/{new_id('resp')}/tool_outputs", body)
    assert (refused.status, refused.error["code"], refused.error["param"]) == (400, code, param)


@pytest.mark.shows("A2.1")
@pytest.mark.parametrize(
    ("part", "code", "param"),
    [
        ({"type": "input_image", "image_url": "http://127.0.0.1/a.png"}, "invalid_image_url", "output[1].image_url"),
        ({"type": "input_image", "image_url": "data:image/png;base64,AAAA"}, "invalid_image", "output[1].image_url"),
        ({"type": "input_image", "file_id": "file_1"}, "invalid_value", "output[1].file_id"),
        ({"type": "input_file", "file_data": "%"}, "invalid_file", "output[1].file_data"),
    ],
)
async def test_an_unusable_content_part_is_rejected_and_the_call_stays_pending(
    server: ApiServer, part: dict[str, str], code: str, param: str
) -> None:
    stream = StreamReader(server)
    call_id = await stream.read_call_id()
    refused = await submit(server, stream.id, call_id, [{"type": "output_text", "text": "look:"}, part])
    assert (refused.status, refused.error["code"], refused.error["param"]) == (400, code, param)
    assert (await submit(server, stream.id, call_id)).status == 200
    assert (await stream.read_to_end())["status"] == "completed"


@pytest.mark.shows("A2.1")
async def test_an_image_output_is_passed_to_the_model(server: ApiServer) -> None:
    stream = StreamReader(server)
    image = {"type": "input_image", "image_url": encode_data_url(png(8, 8))}
    call_id = await stream.read_call_id()
    assert (await submit(server, stream.id, call_id, [{"type": "output_text", "text": "look:"}, image])).status == 200
    text = (await stream.read_to_end())["output"][-1]["content"][0]["text"]
    assert text == "The tool said: look: [image png 8x8]"


async def test_an_unknown_field_is_listed_in_a_header(server: ApiServer) -> None:
    stream = StreamReader(server)
    body = {"call_id": await stream.read_call_id(), "output": "x", "tool": {"a": 1}}
    answer = await server.post(f"responses/{stream.id}/tool_outputs", body)
    assert (answer.status, answer.header(b"x-antiphon-ignored")) == (200, b"tool")
    await stream.read_to_end()


async def test_another_content_type_than_json_is_rejected(server: ApiServer) -> None:
    kind = (b"content-type", b"text/plain")
    answer = await call(server.app, "POST", f"/v1/responses/{new_id('resp')}/tool_outputs", kind, body=[b"{}"])
    assert answer.status == 415


@pytest.mark.shows("A2.6")
async def test_an_oversized_output_is_rejected_and_the_call_stays_pending() -> None:
    async with run_api(max_tool_output_bytes=1000) as server:
        stream = StreamReader(server)
        call_id = await stream.read_call_id()
        refused = await submit(server, stream.id, call_id, "x" * 1000)
        assert (refused.status, refused.error["type"]) == (413, "invalid_request_error")
        pieces = [json.dumps({"call_id": call_id, "output": "x" * 900}).encode(), b" " * 200]
        path = f"/v1/responses/{stream.id}/tool_outputs"
        assert (await call(server.app, "POST", path, JSON, body=pieces)).status == 413
        assert (await submit(server, stream.id, call_id)).status == 200
        assert (await stream.read_to_end())["status"] == "completed"


@pytest.mark.shows("A2.7")
@pytest.mark.parametrize("background", [False, True])
async def test_a_tool_output_timeout_fails_the_response(background: bool) -> None:
    async with run_api(tool_output_timeout=0.05) as server:
        stream = StreamReader(server, background=background)
        call_id = await stream.read_call_id()
        response = await stream.read_to_end()
        assert [event["type"] for event in stream.events[-2:]] == ["error", "response.failed"]
        assert stream.events[-2]["code"] == response["error"]["code"] == "tool_output_timeout"
        assert call_id in response["error"]["message"]
        assert (await submit(server, stream.id, call_id)).error["code"] == "response_not_waiting"
        assert (await server.get(f"responses/{stream.id}")).json() == response


@pytest.mark.shows("A2.8")
async def test_the_server_flag_makes_eligible_requests_wait_by_default() -> None:
    async with run_api(wait_for_tool_outputs=True) as server:
        stream = StreamReader(server, wait_for_tool_outputs=None)
        call_id = await stream.read_call_id()
        assert (await submit(server, stream.id, call_id)).status == 200
        assert len(list_outputs(await stream.read_to_end())) == 1
        for body in ({"wait_for_tool_outputs": False}, {"store": False, "wait_for_tool_outputs": None}):
            assert list_outputs(await StreamReader(server, **body).read_to_end()) == []
        assert list_outputs(await server.create(tools=[TOOL])) == []


@pytest.mark.shows("A2.8")
async def test_a_response_does_not_wait_without_wait_for_tool_outputs(server: ApiServer) -> None:
    response = await StreamReader(server, wait_for_tool_outputs=None).read_to_end()
    assert [item["type"] for item in response["output"]] == ["function_call"]


async def test_wait_for_tool_outputs_is_rejected_without_a_stored_stream(server: ApiServer) -> None:
    for body in ({}, {"stream": True, "store": False}):
        refused = await server.post(
            "responses", {"model": "fake", "input": "hi", "wait_for_tool_outputs": True, **body}
        )
        assert (refused.status, refused.error["code"]) == (400, "unsupported_parameter")
        assert refused.error["param"] == "wait_for_tool_outputs"


async def test_a_disconnected_client_cancels_a_waiting_response() -> None:
    async with run_api(keep_streams=0) as server:
        stream = StreamReader(server)
        call_id = await stream.read_call_id()
        stream.client.disconnect()
        async with asyncio.timeout(30):
            await stream.client.request
        refused = await submit(server, stream.id, call_id)
        assert (refused.status, refused.error["code"]) == (400, "response_not_waiting")
        assert (await server.get(f"responses/{stream.id}")).json()["status"] == "cancelled"


async def test_a_waiting_background_response_can_be_cancelled_and_deleted(server: ApiServer) -> None:
    stream = StreamReader(server, background=True)
    call_id = await stream.read_call_id()
    cancelled = await server.post(f"responses/{stream.id}/cancel")
    assert cancelled.json()["status"] == "cancelled"
    assert (await stream.read_to_end())["status"] == "cancelled"
    assert (await submit(server, stream.id, call_id)).error["code"] == "response_not_waiting"
    deleted = StreamReader(server, background=True)
    call_id = await deleted.read_call_id()
    assert (await server.delete(f"responses/{deleted.id}")).status == 200
    assert (await submit(server, deleted.id, call_id)).status == 404

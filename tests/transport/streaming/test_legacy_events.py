"""Legacy events, which flags enable: their exact shapes in streams, replays and WebSockets."""

import json
from base64 import b64encode
from typing import Any

import pytest
from websockets.sync.client import connect

from antiphon.config.rate_limits import QuotaSettings
from antiphon.core.deltas import CallDelta, CallDone, CallStarted, ReasoningDelta, Text
from antiphon.errors import EngineFailed
from tests.api.app import ApiServer, Client, parse_events, run_api
from tests.oracles.responses import accumulate, check_event
from tests.support.asgi_client import DEADLINE, AsgiResponse
from tests.support.media_files import png
from tests.support.server_process import ServerProcess, run_server
from tests.transport.websocket.ws_client import open_websocket

pytestmark = pytest.mark.anyio

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
CALL = (CallStarted(0, "f"), CallDelta(0, '{"a"'), CallDelta(0, ":1}"), CallDone(0))
IMAGE_URL = "data:image/png;base64," + b64encode(png(8, 8)).decode()
IMAGE_INPUT = [{"role": "user", "content": [{"type": "input_image", "image_url": IMAGE_URL}]}]
QUOTA = QuotaSettings(requests_per_minute=100, tokens_per_minute=1000)
Events = list[dict[str, Any]]


async def create_stream(server: ApiServer, **fields: Any) -> Events:
    body = {"model": "fake", "input": "hi", "stream": True, **fields}
    return parse_events(await server.post("responses", body))


async def replay(server: ApiServer, response_id: str, query: str = "") -> Events:
    return parse_events(await server.get(f"responses/{response_id}?stream=true{query}"))


def drop_legacy_events(events: Events) -> Events:
    """Remove the events that only the flag adds."""
    return [event for event in events if event["type"] not in LEGACY_TYPES]


def select(events: Events, kind: str) -> Events:
    return [event for event in events if event["type"] == kind]


LEGACY_TYPES = {
    "response.tool_call.delta",
    "response.additional_context",
    "response.rate_limits.updated",
    "response.ping",
}


async def test_legacy_events_are_off_by_default() -> None:
    async with run_api(quota=QUOTA) as server:
        server.engine.says(ReasoningDelta("hm"), *CALL)
        events = await create_stream(server, tools=[TOOL], include=["message.input_image.image_url"], input=IMAGE_INPUT)
    for event in events:
        check_event(event)
    accumulate(events)


@pytest.mark.shows("H3.2", "H1.7")
@pytest.mark.parametrize("flag", ["on", "strings"])
async def test_tool_call_deltas_contain_objects_or_strings(flag: str) -> None:
    async with run_api(legacy_events=flag) as server:
        server.engine.says(*CALL)
        events = await create_stream(server, tools=[TOOL])
        item = events[-1]["response"]["output"][0]
        deltas = select(events, "response.tool_call.delta")
        assert [event.keys() for event in deltas] == [{"type", "sequence_number", "response", "delta"}] * 2
        assert [event["response"] for event in deltas] == [{"id": events[0]["response"]["id"]}] * 2
        contents = [event["delta"]["content"] for event in deltas]
        calls = [json.loads(one) if flag == "strings" else one for (one,) in contents]
        named = {"type": "tool_call", "id": item["id"], "call_id": item["call_id"], "name": "f"}
        assert calls == [{**named, "arguments": '{"a"'}, {**named, "arguments": ":1}"}]
        numbers = [event["sequence_number"] for event in select(events, "response.function_call_arguments.delta")]
        assert [event["sequence_number"] for event in deltas] == numbers


@pytest.mark.shows("H3.2")
async def test_standard_events_are_unchanged() -> None:
    async with run_api(legacy_events="on") as server:
        server.engine.says(ReasoningDelta("hm"), Text("so"), *CALL)
        events = drop_legacy_events(await create_stream(server, tools=[TOOL]))
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    for event in events:
        check_event(event)
    assert accumulate(events).output_text == "so"


@pytest.mark.shows("H3.2", "A.5")
async def test_a_replay_and_every_suffix_of_it_equal_the_stream() -> None:
    async with run_api(legacy_events="strings", reasoning_events="legacy") as server:
        server.engine.says(ReasoningDelta("hm"), Text("so"), *CALL)
        events = await create_stream(server, tools=[TOOL])
        response_id = events[0]["response"]["id"]
        assert await replay(server, response_id) == events
        for after in range(events[-1]["sequence_number"] + 1):
            suffix = await replay(server, response_id, f"&starting_after={after}")
            assert suffix == [event for event in events if event["sequence_number"] > after]


@pytest.mark.shows("H3.1")
async def test_keepalives_are_sent_as_response_ping() -> None:
    async with run_api(ping_interval=0.02, legacy_events="on") as server:
        gate = server.engine.holds()
        events = await Client(server.app).read_to_completion(gate, "response.ping")
    pings = select(events, "response.ping")
    assert pings
    assert not select(events, "keepalive")
    for ping in pings:
        assert ping.keys() == {"type", "sequence_number", "timestamp", "response"}
        assert isinstance(ping["timestamp"], float)
        assert (ping["response"], ping["sequence_number"]) == ({}, 1)


@pytest.mark.shows("H3.3")
async def test_image_urls_and_encrypted_reasoning_are_sent_if_included() -> None:
    include = ["message.input_image.image_url", "reasoning.encrypted_content"]
    async with run_api(legacy_events="on") as server:
        server.engine.says(ReasoningDelta("hm"), Text("so"))
        events = await create_stream(server, input=IMAGE_INPUT, include=include)
        response_id = events[0]["response"]["id"]
        images, encrypted = select(events, "response.additional_context")
        assert images == {"type": "response.additional_context", "sequence_number": 0, "image_urls": [IMAGE_URL]}
        (item,) = [item for item in events[-1]["response"]["output"] if item["type"] == "reasoning"]
        assert encrypted.keys() == {"type", "sequence_number", "encrypted_content"}
        assert encrypted["encrypted_content"] == item["encrypted_content"]
        again = await replay(server, response_id, "&include=message.input_image.image_url")
        assert again == events
        assert await replay(server, response_id) == [event for event in events if event is not images]
        server.engine.says(Text("so"))
        assert not select(await create_stream(server, input=IMAGE_INPUT), "response.additional_context")


@pytest.mark.shows("H3.5")
async def test_an_error_has_its_legacy_name() -> None:
    async with run_api(legacy_events="on") as server:
        server.engine.says(Text("so"))
        server.engine.fails(EngineFailed("It broke."), after=1)
        *_, error, failed = await create_stream(server)
    assert (error["type"], error["message"], failed["type"]) == ("response.error", "It broke.", "response.failed")
    assert error["error"]["message"] == "It broke."
    check_event({**error, "type": "error"})


@pytest.mark.shows("H3.4")
async def test_rate_limits_are_sent_if_any_are_configured() -> None:
    async with run_api(legacy_events="on", quota=QUOTA) as server:
        events = await create_stream(server)
        (update,) = select(events, "response.rate_limits.updated")
        assert update["sequence_number"] == 0
        requests, tokens = update["rate_limits"]
        assert requests.keys() == tokens.keys() == {"name", "limit", "remaining", "reset_seconds"}
        assert (requests["name"], requests["limit"], requests["remaining"]) == ("requests", 100, 99)
        assert (tokens["name"], tokens["limit"]) == ("tokens", 1000)
    async with run_api(legacy_events="on") as server:
        assert not select(await create_stream(server), "response.rate_limits.updated")


async def test_a_websocket_sends_the_same_events() -> None:
    async with run_api(legacy_events="on", reasoning_events="legacy") as server:
        server.engine.says(ReasoningDelta("hm"), *CALL)
        server.engine.repeats()
        events = await create_stream(server, tools=[TOOL])
        async with open_websocket(server.app) as client:
            client.send_create(tools=[TOOL])
            socket_events: Events = [{"type": ""}]
            while socket_events[-1]["type"] != "response.completed":
                socket_events.append(json.loads((await client.receive_message())["text"]))
    del socket_events[0]
    assert [event["type"] for event in socket_events] == [event["type"] for event in events]
    assert [event["sequence_number"] for event in socket_events] == [event["sequence_number"] for event in events]


NAMES = {
    "openai": [
        "response.content_part.added", "response.reasoning_text.delta", "response.reasoning_text.done",
        "response.content_part.done",
    ],
    "open-responses": [
        "response.content_part.added", "response.reasoning.delta", "response.reasoning.done",
        "response.content_part.done",
    ],
    "legacy": [
        "response.reasoning_part.added", "response.reasoning.delta", "response.reasoning.done",
        "response.reasoning_part.done",
    ],
}  # fmt: skip
SUMMARY_NAMES = {
    "openai": ["response.reasoning_summary_part.added", "response.reasoning_summary_text.delta"],
    "legacy": ["response.reasoning.summary.added", "response.reasoning.summary.delta"],
}


@pytest.mark.shows("A.52", "H1.6")
@pytest.mark.parametrize("names", NAMES)
async def test_reasoning_events_have_the_configured_names_and_the_same_fields(names: str) -> None:
    async with run_api(reasoning_events=names) as server:
        server.engine.says(ReasoningDelta("hm"), Text("so"))
        events = await create_stream(server)
        assert await replay(server, events[0]["response"]["id"]) == events
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    reasoning_events = events[3:7]
    assert [event["type"] for event in reasoning_events] == NAMES[names]
    assert reasoning_events[1]["delta"] == reasoning_events[2]["text"] == "hm"
    for event, standard_type in zip(reasoning_events, NAMES["openai"], strict=True):
        check_event({**event, "type": standard_type})
    for event in [*events[:3], *events[7:]]:
        check_event(event)


@pytest.mark.shows("A.52")
async def test_summary_events_have_legacy_names() -> None:
    async with run_api(reasoning_events="legacy") as server:
        server.engine.says(ReasoningDelta("hm"), Text("so"))
        events = await create_stream(server, reasoning={"summary": "auto"})
    kinds = [event["type"] for event in events]
    assert kinds[3:5] == SUMMARY_NAMES["legacy"]
    for event, standard_type in zip(events[3:5], SUMMARY_NAMES["openai"], strict=True):
        check_event({**event, "type": standard_type})


def fetch_events(live: ServerProcess, method: str, path: str, body: Any = None) -> Events:
    status, answer = live.send(method, path, body)
    assert status == 200, answer
    return parse_events(AsgiResponse(status, [], answer, True))


async def test_a_server_process_sends_legacy_events_in_streams_replays_and_websockets() -> None:
    with run_server("--engine", "fake", "--legacy-events=strings", "--reasoning-events=legacy") as live:
        body = {"model": "fake", "input": "hi", "stream": True, "tools": [TOOL], "tool_choice": "required"}
        events = fetch_events(live, "POST", "/v1/responses", body)
        assert select(events, "response.tool_call.delta")
        response_id, last = events[0]["response"]["id"], events[-1]["sequence_number"]
        for after in range(last + 1):
            path = f"/v1/responses/{response_id}?stream=true&starting_after={after}"
            assert fetch_events(live, "GET", path) == [event for event in events if event["sequence_number"] > after]
        with connect(f"ws://127.0.0.1:{live.port}/v1/responses") as socket:
            socket.send(json.dumps({**body, "type": "response.create"}))
            socket_events = [json.loads(socket.recv(timeout=DEADLINE))]
            while socket_events[-1]["type"] != "response.completed":
                socket_events.append(json.loads(socket.recv(timeout=DEADLINE)))
        assert [event["type"] for event in socket_events] == [event["type"] for event in events]

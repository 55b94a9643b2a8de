"""Events that only those get who ask for them by a flag: their exact shapes, in streams, replays and WebSockets."""

import json
from base64 import b64encode
from typing import Any

import pytest
from websockets.sync.client import connect

from antiphon.config.rate_limits import Quota
from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Text, Thought
from antiphon.errors import EngineFailed
from tests.api.app import Api, Client, api, events_in
from tests.oracles.responses import accumulate, check_event
from tests.support.asgi_client import DEADLINE, Answer
from tests.support.media_files import png
from tests.support.server_process import Live, serving
from tests.transport.websocket.ws_client import talking

pytestmark = pytest.mark.anyio

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
CALL = (CallStarted(0, "f"), CallDelta(0, '{"a"'), CallDelta(0, ":1}"), CallDone(0))
PICTURE = "data:image/png;base64," + b64encode(png(8, 8)).decode()
SEES = [{"role": "user", "content": [{"type": "input_image", "image_url": PICTURE}]}]
QUOTA = Quota(requests_per_minute=100, tokens_per_minute=1000)
Events = list[dict[str, Any]]


async def streamed(server: Api, **fields: Any) -> Events:
    body = {"model": "fake", "input": "hi", "stream": True, **fields}
    return events_in(await server.post("responses", body))


async def replayed(server: Api, response_id: str, query: str = "") -> Events:
    return events_in(await server.get(f"responses/{response_id}?stream=true{query}"))


def usual(events: Events) -> Events:
    """What is told to everybody."""
    return [event for event in events if event["type"] not in BESIDE]


def only(events: Events, kind: str) -> Events:
    return [event for event in events if event["type"] == kind]


BESIDE = {"response.tool_call.delta", "response.additional_context", "response.rate_limits.updated", "response.ping"}


async def test_by_default_nobody_gets_them() -> None:
    async with api(quota=QUOTA) as server:
        server.engine.says(Thought("hm"), *CALL)
        events = await streamed(server, tools=[TOOL], include=["message.input_image.image_url"], input=SEES)
    for event in events:
        check_event(event)
    accumulate(events)


@pytest.mark.shows("H3.2", "H1.7")
@pytest.mark.parametrize("flag", ["on", "strings"])
async def test_arguments_of_calls_are_told_as_objects_or_as_strings(flag: str) -> None:
    async with api(legacy_events=flag) as server:
        server.engine.says(*CALL)
        events = await streamed(server, tools=[TOOL])
        item = events[-1]["response"]["output"][0]
        told = only(events, "response.tool_call.delta")
        assert [event.keys() for event in told] == [{"type", "sequence_number", "response", "delta"}] * 2
        assert [event["response"] for event in told] == [{"id": events[0]["response"]["id"]}] * 2
        contents = [event["delta"]["content"] for event in told]
        calls = [json.loads(one) if flag == "strings" else one for (one,) in contents]
        named = {"type": "tool_call", "id": item["id"], "call_id": item["call_id"], "name": "f"}
        assert calls == [{**named, "arguments": '{"a"'}, {**named, "arguments": ":1}"}]
        numbers = [event["sequence_number"] for event in only(events, "response.function_call_arguments.delta")]
        assert [event["sequence_number"] for event in told] == numbers


@pytest.mark.shows("H3.2")
async def test_what_everybody_gets_stays_as_it_is() -> None:
    async with api(legacy_events="on") as server:
        server.engine.says(Thought("hm"), Text("so"), *CALL)
        events = usual(await streamed(server, tools=[TOOL]))
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    for event in events:
        check_event(event)
    assert accumulate(events).output_text == "so"


@pytest.mark.shows("H3.2", "A.5")
async def test_a_replay_is_the_same_and_any_suffix_of_it_too() -> None:
    async with api(legacy_events="strings", reasoning_events="legacy") as server:
        server.engine.says(Thought("hm"), Text("so"), *CALL)
        events = await streamed(server, tools=[TOOL])
        response_id = events[0]["response"]["id"]
        assert await replayed(server, response_id) == events
        for after in range(events[-1]["sequence_number"] + 1):
            suffix = await replayed(server, response_id, f"&starting_after={after}")
            assert suffix == [event for event in events if event["sequence_number"] > after]


@pytest.mark.shows("H3.1")
async def test_silence_is_broken_by_a_ping() -> None:
    async with api(ping_interval=0.02, legacy_events="on") as server:
        gate = server.engine.holds()
        events = await Client(server.app).whole(gate, "response.ping")
    pings = only(events, "response.ping")
    assert pings
    assert not only(events, "keepalive")
    for ping in pings:
        assert ping.keys() == {"type", "sequence_number", "timestamp", "response"}
        assert isinstance(ping["timestamp"], float)
        assert (ping["response"], ping["sequence_number"]) == ({}, 1)


@pytest.mark.shows("H3.3")
async def test_the_addresses_of_pictures_and_sealed_reasoning_are_told_to_who_includes_them() -> None:
    include = ["message.input_image.image_url", "reasoning.encrypted_content"]
    async with api(legacy_events="on") as server:
        server.engine.says(Thought("hm"), Text("so"))
        events = await streamed(server, input=SEES, include=include)
        response_id = events[0]["response"]["id"]
        pictures, sealed = only(events, "response.additional_context")
        assert pictures == {"type": "response.additional_context", "sequence_number": 0, "image_urls": [PICTURE]}
        (item,) = [item for item in events[-1]["response"]["output"] if item["type"] == "reasoning"]
        assert sealed.keys() == {"type", "sequence_number", "encrypted_content"}
        assert sealed["encrypted_content"] == item["encrypted_content"]
        again = await replayed(server, response_id, "&include=message.input_image.image_url")
        assert again == events
        assert await replayed(server, response_id) == [event for event in events if event is not pictures]
        server.engine.says(Text("so"))
        assert not only(await streamed(server, input=SEES), "response.additional_context")


@pytest.mark.shows("H3.5")
async def test_an_error_has_its_older_name() -> None:
    async with api(legacy_events="on") as server:
        server.engine.says(Text("so"))
        server.engine.fails(EngineFailed("It broke."), after=1)
        *_, error, failed = await streamed(server)
    assert (error["type"], error["message"], failed["type"]) == ("response.error", "It broke.", "response.failed")
    assert error["error"]["message"] == "It broke."
    check_event({**error, "type": "error"})


@pytest.mark.shows("H3.4")
async def test_limits_are_told_where_there_are_any() -> None:
    async with api(legacy_events="on", quota=QUOTA) as server:
        events = await streamed(server)
        (told,) = only(events, "response.rate_limits.updated")
        assert told["sequence_number"] == 0
        requests, tokens = told["rate_limits"]
        assert requests.keys() == tokens.keys() == {"name", "limit", "remaining", "reset_seconds"}
        assert (requests["name"], requests["limit"], requests["remaining"]) == ("requests", 100, 99)
        assert (tokens["name"], tokens["limit"]) == ("tokens", 1000)
    async with api(legacy_events="on") as server:
        assert not only(await streamed(server), "response.rate_limits.updated")


async def test_a_websocket_tells_the_same() -> None:
    async with api(legacy_events="on", reasoning_events="legacy") as server:
        server.engine.says(Thought("hm"), *CALL)
        server.engine.repeats()
        events = await streamed(server, tools=[TOOL])
        async with talking(server.app) as talk:
            talk.asks(tools=[TOOL])
            told: Events = [{"type": ""}]
            while told[-1]["type"] != "response.completed":
                told.append(json.loads((await talk.message())["text"]))
    del told[0]
    assert [event["type"] for event in told] == [event["type"] for event in events]
    assert [event["sequence_number"] for event in told] == [event["sequence_number"] for event in events]


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
SUMMARIES = {
    "openai": ["response.reasoning_summary_part.added", "response.reasoning_summary_text.delta"],
    "legacy": ["response.reasoning.summary.added", "response.reasoning.summary.delta"],
}


@pytest.mark.shows("A.52", "H1.6")
@pytest.mark.parametrize("names", NAMES)
async def test_reasoning_has_the_names_that_were_chosen_and_the_same_fields(names: str) -> None:
    async with api(reasoning_events=names) as server:
        server.engine.says(Thought("hm"), Text("so"))
        events = await streamed(server)
        assert await replayed(server, events[0]["response"]["id"]) == events
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    reasoned = events[3:7]
    assert [event["type"] for event in reasoned] == NAMES[names]
    assert reasoned[1]["delta"] == reasoned[2]["text"] == "hm"
    for event, usually in zip(reasoned, NAMES["openai"], strict=True):
        check_event({**event, "type": usually})
    for event in [*events[:3], *events[7:]]:
        check_event(event)


@pytest.mark.shows("A.52")
async def test_summaries_have_older_names_too() -> None:
    async with api(reasoning_events="legacy") as server:
        server.engine.says(Thought("hm"), Text("so"))
        events = await streamed(server, reasoning={"summary": "auto"})
    kinds = [event["type"] for event in events]
    assert kinds[3:5] == SUMMARIES["legacy"]
    for event, usually in zip(events[3:5], SUMMARIES["openai"], strict=True):
        check_event({**event, "type": usually})


def on_the_wire(live: Live, method: str, path: str, body: Any = None) -> Events:
    status, answer = live.send(method, path, body)
    assert status == 200, answer
    return events_in(Answer(status, [], answer, True))


async def test_a_real_server_sends_them_to_the_last_one_wherever_a_replay_begins() -> None:
    with serving("--engine", "fake", "--legacy-events=strings", "--reasoning-events=legacy") as live:
        body = {"model": "fake", "input": "hi", "stream": True, "tools": [TOOL], "tool_choice": "required"}
        events = on_the_wire(live, "POST", "/v1/responses", body)
        assert only(events, "response.tool_call.delta")
        response_id, last = events[0]["response"]["id"], events[-1]["sequence_number"]
        for after in range(last + 1):
            path = f"/v1/responses/{response_id}?stream=true&starting_after={after}"
            assert on_the_wire(live, "GET", path) == [event for event in events if event["sequence_number"] > after]
        with connect(f"ws://127.0.0.1:{live.port}/v1/responses") as socket:
            socket.send(json.dumps({**body, "type": "response.create"}))
            told = [json.loads(socket.recv(timeout=DEADLINE))]
            while told[-1]["type"] != "response.completed":
                told.append(json.loads(socket.recv(timeout=DEADLINE)))
        assert [event["type"] for event in told] == [event["type"] for event in events]

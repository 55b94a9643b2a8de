"""WebSocket events of a real server, compared byte for byte with its server-sent events and with the replay."""

import asyncio
import json
import re
from itertools import pairwise
from typing import Any

import pytest

from tests.clients.tool_definitions import WEATHER
from tests.clients.websocket.raw_socket import CREATE, TEXT, RawSocket, encode_text_frame, open_raw_socket
from tests.oracles.responses import accumulate, check_socket_event
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.anyio

_END = re.compile(rb'"type":"response\.(completed|incomplete|failed)"')
_ID = re.compile(rb'"[a-z]+_[0-9a-f]{32,}"')
_VARYING_FIELDS = re.compile(rb'"(created_at|completed_at)":\d+|"obfuscation":"[^"]*"|"encrypted_content":"[^"]*"')

BODIES: list[dict[str, Any]] = [
    {"input": "Grüße <&> 😀"},
    {"input": "hi", "tools": [WEATHER]},
    {"input": "hi", "reasoning": {"effort": "high", "summary": "auto"}, "include": ["reasoning.encrypted_content"]},
    {"input": "hi", "max_output_tokens": 2, "top_logprobs": 1},
    {"input": "hi", "generate": False},
    {"input": "hi", "unknown": 1},
    {"input": "word " * 20_000, "max_output_tokens": 1},
]


async def receive_events(client: RawSocket, **body: Any) -> list[bytes]:
    """Run one response and return the JSON of each of its events."""
    await client.send_create(**body)
    events: list[bytes] = []
    while not events or not _END.search(events[-1][:200]):
        frame = await client.receive_frame()
        assert frame is not None
        assert frame.opcode is TEXT
        events.append(bytes(frame.data))
        check_socket_event(json.loads(events[-1]))
    return events


def parse_sse(stream: bytes) -> list[bytes]:
    return [line.removeprefix(b"data: ") for line in stream.split(b"\n") if line.startswith(b"data: {")]


def normalise(events: list[bytes]) -> list[bytes]:
    """Replace each id by the number of its first occurrence, and drop times and random fields."""
    ids: dict[bytes, bytes] = {}
    return [
        _ID.sub(lambda found: ids.setdefault(found[0], b'"id-%d"' % len(ids)), _VARYING_FIELDS.sub(rb'"\1":0', event))
        for event in events
    ]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: str(body)[:60])
@pytest.mark.shows("F.1", "F.2")
async def test_events_equal_the_server_sent_events_byte_for_byte(
    fake_server: ServerProcess, body: dict[str, Any]
) -> None:
    for _ in range(2):  # the first request warms the engine's prompt cache
        status, stream = await asyncio.to_thread(fake_server.post, {"model": "fake", "stream": True, **body})
        assert status == 200
    async with open_raw_socket(fake_server) as client:
        events = await receive_events(client, **body)
        lane_events = await receive_events(client, **body, stream_id="a")
    assert normalise(events) == normalise(parse_sse(stream))
    assert [event.replace(b',"stream_id":"a"}', b"}") for event in normalise(lane_events)] == normalise(events)
    assert accumulate(map(json.loads, events)).id == json.loads(events[-1])["response"]["id"]


@pytest.mark.parametrize("body", BODIES[:2] + BODIES[4:5], ids=lambda body: str(body)[:60])
@pytest.mark.parametrize("lane", [None, "a"])
@pytest.mark.shows("F.1", "F.3")
async def test_events_are_replayed_byte_for_byte(
    fake_server: ServerProcess, body: dict[str, Any], lane: str | None
) -> None:
    async with open_raw_socket(fake_server) as client:
        events = await receive_events(client, **body, stream_id=lane)
    id_ = json.loads(events[-1])["response"]["id"]
    status, replayed = await asyncio.to_thread(fake_server.get, f"/v1/responses/{id_}?stream=true")
    assert status == 200
    assert [event.replace(b',"stream_id":"a"}', b"}") for event in events] == parse_sse(replayed)


@pytest.mark.shows("A.18", "A.19", "F.2")
async def test_the_first_event_and_the_stored_response_name_the_fields_without_effect(
    fake_server: ServerProcess,
) -> None:
    unserved: dict[str, Any] = {"tempratur": 1, "tools": [{"type": "web_search"}], "reasoning": {"mode": "pro"}}
    async with open_raw_socket(fake_server) as client:
        created, *_, completed = map(json.loads, await receive_events(client, input="hi", **unserved))
    assert sorted(created["response"]["ignored_fields"]) == ["reasoning.mode", "tempratur", "web_search"]
    assert completed["response"]["ignored_fields"] == created["response"]["ignored_fields"]
    _, stored = await asyncio.to_thread(fake_server.get, f"/v1/responses/{created['response']['id']}")
    assert json.loads(stored) == completed["response"]


@pytest.mark.parametrize("lane", [None, "a"])
@pytest.mark.shows("A.46", "A.47")
async def test_keepalives_repeat_the_last_sequence_number_on_each_lane(
    slow_server: ServerProcess, lane: str | None
) -> None:
    text = "one two three four five six seven eight nine ten"  # many tokens, so that one stall does not skip all waits
    async with open_raw_socket(slow_server) as client:
        events = [json.loads(event) for event in await receive_events(client, input=text, stream_id=lane)]
    keepalives = [event for event in events if event["type"] == "keepalive"]
    assert len(keepalives) >= 2
    assert {event.get("stream_id") for event in events} == {lane}
    for before, event in pairwise(events):
        assert event["sequence_number"] == before["sequence_number"] + (event["type"] != "keepalive")
    assert accumulate(events).output_text == f"You said: {text}"


@pytest.mark.shows("F.6")
async def test_interleaved_lanes_are_separated_by_stream_id(slow_server: ServerProcess) -> None:
    async with open_raw_socket(slow_server) as client:
        creates = [{**CREATE, "input": f"I am {lane}", "stream_id": lane} for lane in ("a", "b", None)]
        await client.send(
            b"".join(map(encode_text_frame, creates))
        )  # in one write, so that the responses run concurrently
        by_lane: dict[str | None, list[dict[str, Any]]] = {"a": [], "b": [], None: []}
        order: list[str | None] = []
        while len(order) < 3 or not all(_is_completed(events) for events in by_lane.values()):
            event = await client.receive_event()
            order.append(event.get("stream_id"))
            by_lane[order[-1]].append(event)
    assert len([1 for one, other in pairwise(order) if one != other]) > 5
    for lane, events in by_lane.items():
        assert accumulate(events).output_text == f"You said: I am {lane}"


def _is_completed(events: list[dict[str, Any]]) -> bool:
    return bool(events) and events[-1]["type"] == "response.completed"

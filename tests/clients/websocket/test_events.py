"""Events on a WebSocket of a real server, byte for byte: those of server-sent events, and those of the replay."""

import asyncio
import json
import re
from itertools import pairwise
from typing import Any

import pytest

from tests.clients.tool_definitions import WEATHER
from tests.clients.websocket.raw_socket import CREATE, TEXT, RawSocket, raw_socket, text
from tests.oracles.responses import accumulate, check_socket_event
from tests.support.server_process import Live

pytestmark = pytest.mark.anyio

_END = re.compile(rb'"type":"response\.(completed|incomplete|failed)"')
_ID = re.compile(rb'"[a-z]+_[0-9a-f]{32,}"')
_CHANCE = re.compile(rb'"(created_at|completed_at)":\d+|"obfuscation":"[^"]*"|"encrypted_content":"[^"]*"')

BODIES: list[dict[str, Any]] = [
    {"input": "Grüße <&> 😀"},
    {"input": "hi", "tools": [WEATHER]},
    {"input": "hi", "reasoning": {"effort": "high", "summary": "auto"}, "include": ["reasoning.encrypted_content"]},
    {"input": "hi", "max_output_tokens": 2, "top_logprobs": 1},
    {"input": "hi", "generate": False},
    {"input": "word " * 20_000, "max_output_tokens": 1},
]


async def frames_of(client: RawSocket, **body: Any) -> list[bytes]:
    """The JSON of each event of a response."""
    await client.ask(**body)
    got: list[bytes] = []
    while not got or not _END.search(got[-1][:200]):
        frame = await client.next()
        assert frame is not None
        assert frame.opcode is TEXT
        got.append(bytes(frame.data))
        check_socket_event(json.loads(got[-1]))
    return got


def in_stream(stream: bytes) -> list[bytes]:
    return [line.removeprefix(b"data: ") for line in stream.split(b"\n") if line.startswith(b"data: {")]


def neutral(events: list[bytes]) -> list[bytes]:
    """With each id replaced by the number of its first occurrence, and without times and chance."""
    known: dict[bytes, bytes] = {}
    return [
        _ID.sub(lambda found: known.setdefault(found[0], b'"id-%d"' % len(known)), _CHANCE.sub(rb'"\1":0', event))
        for event in events
    ]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: str(body)[:60])
@pytest.mark.shows("F.1", "F.2")
async def test_events_are_byte_for_byte_those_of_server_sent_events(fake: Live, body: dict[str, Any]) -> None:
    for _ in range(2):  # the first one makes the engine's cache warm for all
        status, stream = await asyncio.to_thread(fake.post, {"model": "fake", "stream": True, **body})
        assert status == 200
    async with raw_socket(fake) as client:
        told = await frames_of(client, **body)
        named = await frames_of(client, **body, stream_id="a")
    assert neutral(told) == neutral(in_stream(stream))
    assert [event.replace(b',"stream_id":"a"}', b"}") for event in neutral(named)] == neutral(told)
    assert accumulate(map(json.loads, told)).id == json.loads(told[-1])["response"]["id"]


@pytest.mark.parametrize("body", BODIES[:2] + BODIES[4:5], ids=lambda body: str(body)[:60])
@pytest.mark.parametrize("lane", [None, "a"])
@pytest.mark.shows("F.1", "F.3")
async def test_what_was_told_is_replayed_byte_for_byte(fake: Live, body: dict[str, Any], lane: str | None) -> None:
    async with raw_socket(fake) as client:
        told = await frames_of(client, **body, stream_id=lane)
    id_ = json.loads(told[-1])["response"]["id"]
    status, replayed = await asyncio.to_thread(fake.get, f"/v1/responses/{id_}?stream=true")
    assert status == 200
    assert [event.replace(b',"stream_id":"a"}', b"}") for event in told] == in_stream(replayed)


@pytest.mark.parametrize("lane", [None, "a"])
@pytest.mark.shows("A.46", "A.47")
async def test_silence_is_broken_on_each_lane_with_the_last_number(pausing: Live, lane: str | None) -> None:
    async with raw_socket(pausing) as client:
        told = [json.loads(event) for event in await frames_of(client, input="hi", stream_id=lane)]
    kept = [event for event in told if event["type"] == "keepalive"]
    assert len(kept) >= 2
    assert {event.get("stream_id") for event in told} == {lane}
    for before, event in pairwise(told):
        assert event["sequence_number"] == before["sequence_number"] + (event["type"] != "keepalive")
    assert accumulate(told).output_text == "You said: hi"


@pytest.mark.shows("F.6")
async def test_lanes_are_told_apart_however_they_mix(pausing: Live) -> None:
    async with raw_socket(pausing) as client:
        asked = [{**CREATE, "input": f"I am {lane}", "stream_id": lane} for lane in ("a", "b", None)]
        await client.send(b"".join(map(text, asked)))  # at once, so that they are answered at once
        told: dict[str | None, list[dict[str, Any]]] = {"a": [], "b": [], None: []}
        order: list[str | None] = []
        while len(order) < 3 or not all(_is_over(events) for events in told.values()):
            event = await client.event()
            order.append(event.get("stream_id"))
            told[order[-1]].append(event)
    assert len([1 for one, other in pairwise(order) if one != other]) > 5
    for lane, events in told.items():
        assert accumulate(events).output_text == f"You said: I am {lane}"


def _is_over(events: list[dict[str, Any]]) -> bool:
    return bool(events) and events[-1]["type"] == "response.completed"

"""One socket: a client's mistakes, its lanes, and the end of it. A mistake is answered, and the next message too."""

import asyncio
import json
import weakref
from typing import Any

import pytest

from antiphon.core.deltas import Text
from antiphon.engines.fake.reply import Gate
from antiphon.transport.middleware.app import App
from tests.api.app import Api, api
from tests.support.asgi_client import DEADLINE
from tests.transport.websocket.ws_client import Talk, Told, talking

pytestmark = pytest.mark.anyio

CREATE = {"type": "response.create", "model": "fake", "input": "hi"}


def error(told: Told, status: int, code: str | None) -> dict[str, Any]:
    """The error that was told, in the one shape that there is."""
    assert (told["type"], told["status"], told["error"]["code"]) == ("error", status, code), told
    assert told["error"].keys() == {"type", "code", "message", "param"}
    assert told["error"]["type"] == "invalid_request_error" or status != 400
    body: dict[str, Any] = told["error"]
    return body


async def answered(talk: Talk) -> None:
    """It goes on as if nothing had happened."""
    assert (await talk.made(input="and now?"))["output"][0]["content"][0]["text"] == "You said: and now?"


async def reached(gate: Gate) -> None:
    async with asyncio.timeout(DEADLINE):
        await gate.reached.wait()


BROKEN = [
    "", "{", "[]", "null", "1", '"response.create"', "{} {}", "{'type': 1}", '{"type": "response.create"', "\ufeff{}",
    "[" * 100_000, '{"type":"response.create","input":' + "[" * 100_000, '{"input": "\\ud800"}',
    '{"input": "\\udc00x"}', '{"a": \t\x00}',
]  # fmt: skip


class Said(str):
    """Plain strings cannot be asked whether they are still there."""


async def test_a_socket_that_waits_keeps_nothing_of_what_was_said() -> None:
    """Messages may be large, and clients silent for an hour."""
    async with api() as server, talking(server.app) as talk:
        said = Said("{")
        there = weakref.ref(said)
        talk.sends(said)
        del said
        error(await talk.next(), 400, "invalid_json")
        assert there() is None


@pytest.mark.parametrize("text", BROKEN, ids=lambda text: repr(text[:30]))
@pytest.mark.shows("F1.1", "F.11")
async def test_what_is_no_json_object_is_answered_and_forgotten(text: str) -> None:
    async with api() as server, talking(server.app) as talk:
        talk.sends(text)
        told = await talk.next()
        assert (told["type"], told["status"]) == ("error", 400)
        assert "stream_id" not in told
        if text not in ("[]", "null", "1", '"response.create"') and "[[" not in text:
            error(told, 400, "invalid_json")
        await answered(talk)


@pytest.mark.shows("F1.1")
async def test_a_binary_frame_is_no_json_whatever_is_in_it() -> None:
    async with api() as server, talking(server.app) as talk:
        for data in (b"\x00\xff", json.dumps(CREATE).encode()):
            talk.sends_bytes(data)
            error(await talk.next(), 400, "invalid_json")
        await answered(talk)


@pytest.mark.parametrize(
    "kind",
    ["response.cancel", "response.inject", "ping", "", "x" * 10_000, None, 7, ["response.create"], "response.Create"],
    ids=lambda kind: repr(kind)[:30],
)
@pytest.mark.shows("F1.2")
async def test_a_type_that_nobody_knows_is_named(kind: object) -> None:
    async with api() as server, talking(server.app) as talk:
        talk.sends(json.dumps({**CREATE, "type": kind}))
        body = error(await talk.next(), 400, "unknown_event_type")
        assert body["param"] == "type"
        assert len(body["message"]) < 300
        talk.sends(json.dumps({"input": "hi"}))
        error(await talk.next(), 400, "unknown_event_type")
        await answered(talk)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True}, "background"),
        ({"temperature": 9}, "temperature"),
        ({"input": [{"role": "riddle", "content": "x"}]}, "input[0].role"),
        ({"tools": 7}, "tools"),
        ({"generate": "no"}, "generate"),
        ({"store": False, "conversation": "conv_1"}, "conversation"),
    ],
    ids=lambda value: repr(value)[:40],
)
@pytest.mark.shows("F.2", "F.11", "F3.1")
async def test_a_field_that_is_wrong_is_named_as_over_http(fields: dict[str, Any], param: str) -> None:
    async with api() as server, talking(server.app) as talk:
        told = await talk.refused(stream_id="a", **fields)
        assert told["stream_id"] == "a"
        assert told["error"]["param"] == param
        if "background" not in fields:
            posted = await server.post("responses", {"model": "fake", "input": "hi", **fields})
            assert (posted.status, posted.error) == (told["status"], told["error"])
        await answered(talk)


@pytest.mark.parametrize("stream", [True, False, None])
@pytest.mark.shows("F3.1")
async def test_stream_says_nothing_here(stream: bool | None) -> None:
    async with api() as server, talking(server.app) as talk:
        talk.asks(**({} if stream is None else {"stream": stream}))
        assert (await talk.next())["type"] == "response.created"
        assert (await talk.end())["type"] == "response.completed"


@pytest.mark.parametrize(
    "lane", ["", " ", "a b", "ä", "a/b", "x" * 257, "a\n", 7, True, [], {"a": 1}], ids=lambda lane: repr(lane)[:20]
)
@pytest.mark.shows("F1.5")
async def test_the_name_of_a_lane_is_checked(lane: object) -> None:
    async with api() as server, talking(server.app) as talk:
        told = await talk.refused(stream_id=lane)
        assert error(told, 400, "invalid_stream_id")["param"] == "stream_id"
        assert "stream_id" not in told
        await answered(talk)


@pytest.mark.parametrize("lane", ["a", "A-Z_a.z-0", "x" * 256, None])
@pytest.mark.shows("F.6")
async def test_events_say_their_lane(lane: str | None) -> None:
    async with api() as server, talking(server.app) as talk:
        talk.asks(stream_id=lane)
        told = [await talk.next()]
        while told[-1]["type"] != "response.completed":
            told.append(await talk.next())
        assert [event["sequence_number"] for event in told] == list(range(len(told)))
        assert {event.get("stream_id", None) for event in told} == {lane}
        assert ("stream_id" in told[0]) is (lane is not None)


@pytest.mark.shows("F.6")
async def test_a_lane_makes_one_response_after_the_other_and_lanes_go_side_by_side() -> None:
    async with api() as server, talking(server.app) as talk:
        server.engine.says(Text("first"))
        gate = server.engine.holds(after=1)
        server.engine.says(Text("other"))
        server.engine.says(Text("second"))
        talk.asks(stream_id="a")
        await reached(gate)
        talk.asks(stream_id="a")
        talk.asks(stream_id="b")
        told = [await talk.next()]
        while told[-1]["type"] != "response.completed":
            told.append(await talk.next())
        assert [event["stream_id"] for event in told if event["type"] == "response.created"] == ["a", "b"]
        assert told[-1]["stream_id"] == "b"
        gate.open()
        ends = [await talk.end(), await talk.end()]
        assert [said(end) for end in ends] == ["first", "second"]


def said(end: Told) -> str:
    text: str = end["response"]["output"][0]["content"][0]["text"]
    return text


@pytest.mark.shows("F.6")
async def test_sixteen_run_and_the_seventeenth_waits() -> None:
    async with api() as server, talking(server.app) as talk:
        gates = [held(server) for _ in range(17)]
        for number in range(17):
            talk.asks(stream_id=f"lane-{number}")
        for gate in gates[:16]:
            await reached(gate)
        assert server.engine.running == 16
        assert not gates[16].reached.is_set()
        gates[3].open()
        await reached(gates[16])
        assert server.engine.running == 16


def held(server: Api) -> Gate:
    server.engine.says(Text("hm"))
    return server.engine.holds(after=1)


@pytest.mark.shows("F.6")
async def test_what_waits_is_bounded_and_the_rest_is_to_come_again() -> None:
    async with api() as server, talking(server.app) as talk:
        gate = held(server)
        talk.asks(stream_id="a")
        await reached(gate)
        for _ in range(64):
            talk.asks(stream_id="a", generate=False)
        talk.asks(stream_id="a")
        while (told := await talk.next())["type"] != "error":
            pass
        assert (told["status"], told["stream_id"]) == (429, "a")
        assert told["retry_after"] >= 1
        gate.open()
        for _ in range(65):
            assert (await talk.end())["type"] == "response.completed"


@pytest.mark.shows("F1.6")
async def test_the_thirty_third_name_is_one_too_many() -> None:
    async with api() as server, talking(server.app) as talk:
        for number in range(32):
            await talk.made(stream_id=f"lane-{number}")
        told = await talk.refused(stream_id="one-more")
        assert error(told, 400, "websocket_stream_limit_reached")["param"] == "stream_id"
        assert (await talk.made(stream_id="lane-0"))["status"] == "completed"
        await answered(talk)


async def test_a_request_that_was_wrong_uses_up_no_name() -> None:
    async with api() as server, talking(server.app) as talk:
        for number in range(40):
            await talk.refused(stream_id=f"lane-{number}", temperature=9)
        assert (await talk.made(stream_id="mine"))["status"] == "completed"


@pytest.mark.shows("F.7", "F1.3", "F1.5")
async def test_without_lanes_one_response_is_made_at_a_time() -> None:
    async with api(websocket_lanes="off") as server, talking(server.app) as talk:
        gate = held(server)
        talk.asks()
        await reached(gate)
        talk.asks()
        told = [await talk.next()]
        while told[-1]["type"] != "error":
            told.append(await talk.next())
        error(told[-1], 400, "concurrent_request")
        error(await talk.refused(stream_id="a"), 400, "invalid_stream_id")
        gate.open()
        assert said(await talk.end()) == "hm"
        await answered(talk)


@pytest.mark.shows("F.12")
async def test_whoever_leaves_leaves_nothing_behind() -> None:
    async with api() as server:
        async with talking(server.app) as talk:
            gates = [held(server) for _ in range(3)]
            for lane in ("a", "b", None):
                talk.asks(stream_id=lane)
                talk.asks(stream_id=lane)
            for gate in gates:
                await reached(gate)
            assert server.engine.running == 3
        assert (server.engine.running, server.engine.cancelled, server.engine.requests) == (0, 3, 3)
        await server.create()  # and what waited does not begin later
        assert (server.engine.running, server.engine.requests) == (0, 4)


@pytest.mark.shows("F2.2")
async def test_an_old_connection_is_told_so_and_closed() -> None:
    async with api(websocket_lifetime=0.05) as server, talking(server.app) as talk:
        body = error(await talk.next(), 400, "websocket_connection_limit_reached")
        assert "0.05 seconds" in body["message"]
        assert await closed(talk) == 1001


async def closed(talk: Talk) -> int:
    message = await talk.message()
    assert message["type"] == "websocket.close", message
    code: int = message["code"]
    return code


@pytest.mark.shows("F2.2", "F.12")
async def test_what_runs_on_an_old_connection_ends_with_it() -> None:
    async with api(websocket_lifetime=2.0) as server, talking(server.app) as talk:
        gate = held(server)
        talk.asks()
        await reached(gate)
        while (told := await talk.next())["type"] != "error":
            pass
        error(told, 400, "websocket_connection_limit_reached")
        assert await closed(talk) == 1001
        await talk.over()
        assert (server.engine.running, server.engine.cancelled) == (0, 1)


@pytest.mark.shows("F2.1")
async def test_the_end_is_told_of_beforehand_unless_the_operator_does_not_want_it() -> None:
    async with api(websocket_lifetime=0.1, websocket_warning=0.08) as server, talking(server.app) as talk:
        assert (await talk.next())["type"] == "connection_expiring"
        assert (await talk.next())["type"] == "error"
    async with api(websocket_lifetime=0.1, websocket_warning=0.0) as server, talking(server.app) as talk:
        assert (await talk.next())["type"] == "error"


def rest(app: App) -> None:
    """As the server does when it is told to stop."""
    app.guard.close()
    app.lifecycle.rest()


@pytest.mark.shows("H.10")
async def test_a_server_that_stops_closes_at_once_what_is_idle() -> None:
    async with api() as server, talking(server.app) as talk:
        await answered(talk)
        rest(server.app)
        assert await closed(talk) == 1012


@pytest.mark.shows("H.10", "H.19")
async def test_a_server_that_stops_lets_end_what_runs_and_begins_nothing_new() -> None:
    async with api() as server, talking(server.app) as talk:
        gate = held(server)
        talk.asks(stream_id="a")
        await reached(gate)
        talk.asks(stream_id="a", input="I wait")
        rest(server.app)
        talk.asks(stream_id="b", input="I am new")
        while (told := await talk.next())["type"] != "error":
            pass
        assert (told["status"], told["error"]["code"], told["stream_id"]) == (503, "service_unavailable", "b")
        assert told["retry_after"] >= 1
        gate.open()
        assert said(await talk.end()) == "hm"
        told = await talk.next()
        assert (told["status"], told["stream_id"]) == (503, "a")
        assert await closed(talk) == 1012
        assert server.engine.requests == 1


async def test_a_large_message_is_read_like_any_other() -> None:
    async with api() as server, talking(server.app) as talk:
        long = "x" * 300_000
        talk.sends("{" + long)
        error(await talk.next(), 400, "invalid_json")
        server.engine.says(Text("long"))
        assert (await talk.made(input=[{"role": "user", "content": "y"}], metadata={"a": "b"}))["metadata"] == {
            "a": "b"
        }
        talk.asks(input=long, truncation="auto")
        assert (await talk.end())["type"] in ("response.completed", "error")
        await answered(talk)

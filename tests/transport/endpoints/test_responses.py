"""Tests POST /v1/responses through the complete application on the fake engine, as JSON and as a stream.

Covers `transport/streaming/delivery.py`.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from antiphon.core.deltas import ReasoningDelta, Text
from antiphon.engines.fake import FakeEngine
from antiphon.errors import EngineFailed
from antiphon.transport.middleware.app import App
from tests.api.app import ApiServer, Client, parse_events, run_api
from tests.oracles.responses import accumulate, check_event, check_response
from tests.support.asgi_client import JSON, AsgiResponse, call

pytestmark = pytest.mark.anyio


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with run_api() as server:
        yield server


@pytest.fixture
def engine(server: ApiServer) -> FakeEngine:
    return server.engine


@pytest.fixture
def app(server: ApiServer) -> App:
    return server.app


async def post(app: App, **body: Any) -> AsgiResponse:
    content = json.dumps({"model": "fake", "input": "hi", **body}).encode()
    return await call(app, "POST", "/v1/responses", JSON, body=[content])


def remove_varying_fields(value: Any) -> Any:
    """Remove the fields in which two replies to the same request differ."""
    if isinstance(value, dict):
        varying = {"id", "created_at", "completed_at", "cached_tokens", "cached_tokens_per_turn"}
        return {key: remove_varying_fields(inner) for key, inner in value.items() if key not in varying}
    return [remove_varying_fields(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.shows("A.1", "A.56")
async def test_a_json_reply_equals_the_fold_of_its_stream(app: App, engine: FakeEngine) -> None:
    engine.says(ReasoningDelta("hm"), Text("Hel"), Text("lo"))
    streamed = parse_events(await post(app, stream=True))[-1]["response"]
    engine.repeats()
    reply = (await post(app)).json()
    assert remove_varying_fields(streamed) == remove_varying_fields(reply)
    check_response(reply)


@pytest.mark.shows("A.2", "A.23", "A.45", "A.57")
async def test_every_event_of_a_stream_is_valid_and_feeds_the_sdks_accumulator(app: App, engine: FakeEngine) -> None:
    engine.says(ReasoningDelta("hm"), Text("Hel"), Text("lo"))
    events = parse_events(await post(app, stream=True))
    for event in events:
        check_event(event)
    assert accumulate(events).output_text == "Hello"


@pytest.mark.shows("A.2", "H.18")
async def test_the_stream_field_overrides_the_accept_header(app: App) -> None:
    body = json.dumps({"model": "fake", "input": "hi"}).encode()
    answer = await call(app, "POST", "/v1/responses", JSON, (b"accept", b"text/event-stream"), body=[body])
    assert answer.header(b"content-type") == b"application/json"
    body = json.dumps({"model": "fake", "input": "hi", "stream": True}).encode()
    streamed = await call(app, "POST", "/v1/responses", JSON, (b"accept", b"application/json"), body=[body])
    assert (streamed.header(b"content-type") or b"").startswith(b"text/event-stream")
    assert streamed.header(b"x-accel-buffering") == b"no"


@pytest.mark.shows("G2.3")
async def test_the_endpoint_is_served_without_the_v1_prefix(app: App) -> None:
    body = json.dumps({"model": "fake", "input": "hi"}).encode()
    assert (await call(app, "POST", "/responses", JSON, body=[body])).status == 200


@pytest.mark.shows("A.18", "A.19")
async def test_query_parameters_that_the_endpoint_does_not_read_are_named(app: App) -> None:
    body = b'{"model":"fake","input":"hi","tempreature":1}'
    answer = await call(app, "POST", "/responses?beta=true&beta=1&a%0Ab=2", JSON, body=[body])
    assert (answer.status, answer.header(b"x-antiphon-ignored")) == (200, rb"tempreature, beta, a\nb")
    answer = await call(app, "POST", "/responses?" + "&".join("abc" * 99), JSON, body=[body])
    assert answer.header(b"x-antiphon-ignored") == b"tempreature, query"


@pytest.mark.shows("A.18")
async def test_unknown_fields_are_named_in_a_header_that_cannot_be_forged(app: App) -> None:
    answer = await post(app, **{"tempreature": 1, "a\r\nset-cookie: x": 2})
    named = answer.header(b"x-antiphon-ignored") or b""
    assert b"tempreature" in named
    assert b"\r" not in named
    assert b"\n" not in named


@pytest.mark.shows("A.48", "C.28")
async def test_an_engine_failure_is_an_http_error_in_json_and_two_events_in_a_stream(
    app: App, engine: FakeEngine
) -> None:
    for stream in (False, True):
        engine.says(Text("a"))
        engine.fails(EngineFailed("It died."), after=1)
        answer = await post(app, stream=stream)
        if stream:
            assert [event["type"] for event in parse_events(answer)][-2:] == ["error", "response.failed"]
        else:
            assert (answer.status, answer.error["message"]) == (500, "It died.")


async def test_text_that_looks_like_an_event_stays_text(app: App, engine: FakeEngine) -> None:
    forged = '\n\nevent: response.completed\ndata: {"type":"response.completed"}\n\n'
    engine.says(Text(forged), Text("x"))
    events = parse_events(await post(app, stream=True))
    assert [event["type"] for event in events].count("response.completed") == 1
    assert accumulate(events).output_text == forged + "x"


@pytest.mark.shows("A.54")
async def test_a_dropped_client_cancels_a_foreground_run() -> None:
    async with run_api(keep_streams=0) as server:
        server.engine.says(Text("Hel"), Text("lo"))
        gate = server.engine.holds(after=1)
        client = Client(server.app)
        async with asyncio.timeout(30):
            await gate.reached.wait()
            client.disconnect()
            await client.request
        assert (server.engine.running, server.engine.cancelled) == (0, 1)


@pytest.mark.shows("A.54")
async def test_a_client_that_disconnects_while_waiting_for_json_cancels_the_run(app: App, engine: FakeEngine) -> None:
    engine.says(Text("Hel"))
    gate = engine.holds(after=0)
    client = Client(app, stream=False)
    async with asyncio.timeout(30):
        await gate.reached.wait()
        client.disconnect()
        await client.request
    assert (engine.running, engine.cancelled) == (0, 1)
    assert client.messages.empty()


@pytest.mark.shows("A.53")
async def test_response_created_is_sent_before_the_first_engine_output(app: App, engine: FakeEngine) -> None:
    engine.says(Text("Hel"))
    gate = engine.holds(after=0)
    client = Client(app)
    assert (await anext(client.events()))["type"] == "response.created"
    gate.open()
    async with asyncio.timeout(30):
        await client.request


@pytest.mark.shows("A.46", "A.47")
async def test_an_idle_stream_sends_keepalives_with_the_last_sequence_number() -> None:
    async with run_api(ping_interval=0.02) as server:
        await _check_keepalives(server)


async def _check_keepalives(server: ApiServer) -> None:
    server.engine.says(Text("Hel"), Text("lo"))
    gate = server.engine.holds(after=1)
    client = Client(server.app)
    last = -1
    async for event in client.events():
        if event["type"] == "keepalive":
            assert event["sequence_number"] == last
            break
        last = event["sequence_number"]
    assert last > 0
    gate.open()
    numbers = [
        event["sequence_number"] async for event in _read_until_completed(client) if event["type"] != "keepalive"
    ]
    assert numbers == list(range(last + 1, last + 1 + len(numbers)))
    async with asyncio.timeout(30):
        await client.request


async def _read_until_completed(client: Client) -> AsyncIterator[dict[str, Any]]:
    async for event in client.events():
        yield event
        if event["type"] == "response.completed":
            return

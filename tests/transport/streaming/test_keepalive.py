"""Keep-alives of an event stream: when they are sent, when not, and with which content."""

import asyncio
import json
from itertools import pairwise
from typing import Any

import pytest

from antiphon.config import Config
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.transport.streaming.delivery import KeepAlive
from tests.api.app import Client, parse_events, run_api
from tests.http_server.recording_transport import run_loop_once
from tests.oracles.responses import accumulate, check_event
from tests.support.asgi_client import DEADLINE, HOST, JSON, AsgiResponse, build_http_scope
from tests.transport.streaming.streams import RecordingStream, ScriptedSource, make_delta

pytestmark = pytest.mark.anyio
BODY = json.dumps({"model": "fake", "input": "hi", "stream": True}).encode()
INTERVAL = 0.02
ENGINE_DELAY = (
    0.2  # seconds before the engine starts: many intervals, and longer than the delay of the disconnect watch
)


def test_the_default_ping_interval_is_fifteen_seconds() -> None:
    assert Config().server.ping_interval == 15


@pytest.mark.shows("A.46", "A.47")
async def test_keepalives_repeat_the_last_sequence_number_and_are_not_response_events() -> None:
    async with run_api(ping_interval=INTERVAL) as server:
        events = await Client(server.app).read_to_completion(server.engine.holds(), "keepalive", count=2)
    keepalives = [event for event in events if event["type"] == "keepalive"]
    response_events = [event for event in events if event["type"] != "keepalive"]
    assert len(keepalives) >= 2
    assert [event["sequence_number"] for event in response_events] == list(range(len(response_events)))
    for before, event in pairwise(events):
        if event["type"] == "keepalive":
            assert event["sequence_number"] == before["sequence_number"]
    for event in events:
        check_event(event)
    assert accumulate(response_events).output_text == "You said: hi"


@pytest.mark.parametrize("has_event", [True, False])
async def test_an_event_at_the_last_moment_suppresses_a_due_keepalive(has_event: bool) -> None:
    stream = RecordingStream(make_delta())
    async with KeepAlive(ScriptedSource(waits=True), stream, 60.0) as keep_alive:
        for _ in range(5):
            keep_alive._check()
        stream.last = make_delta() if has_event else stream.last
        await run_loop_once()
    assert stream.keepalives.empty() is has_event


@pytest.mark.shows("A.46")
async def test_keepalives_repeat_while_the_source_waits() -> None:
    stream = RecordingStream(last := make_delta())
    began = asyncio.get_running_loop().time()
    async with asyncio.timeout(30), KeepAlive(ScriptedSource(waits=True), stream, INTERVAL):
        assert [await stream.keepalives.get(), await stream.keepalives.get()] == [last, last]
    assert asyncio.get_running_loop().time() - began >= 2 * INTERVAL


async def test_no_keepalive_is_sent_while_the_source_does_not_wait() -> None:
    """A client that does not read its events gets no further data."""
    stream, source = RecordingStream(make_delta()), ScriptedSource(waits=False)
    async with KeepAlive(source, stream, INTERVAL):
        await source.wait_for_polls(12)
    assert stream.keepalives.empty()


async def test_events_suppress_keepalives() -> None:
    stream = RecordingStream(make_delta())
    source = ScriptedSource(waits=True, stream=stream)
    async with KeepAlive(source, stream, INTERVAL):
        await source.wait_for_polls(12)
    assert stream.keepalives.empty()


async def test_no_keepalive_is_sent_after_the_end_or_without_an_interval() -> None:
    stream, source, clock = RecordingStream(make_delta()), ScriptedSource(waits=True), ScriptedSource()
    async with KeepAlive(source, stream, INTERVAL):
        """Ends at once."""
    async with KeepAlive(source, stream, 0.0), KeepAlive(clock, RecordingStream(), INTERVAL):
        await clock.wait_for_polls(8)
    assert source.polls.empty()
    assert stream.keepalives.empty()


@pytest.mark.parametrize("ping_interval", [0.0, 60.0])
@pytest.mark.shows("A.46")
async def test_no_keepalive_is_sent_without_an_interval_or_before_it_elapses(ping_interval: float) -> None:
    async with run_api(engine=FakeEngine(FakeSettings(delay=ENGINE_DELAY)), ping_interval=ping_interval) as server:
        events = parse_events(await server.post("responses", BODY))
    assert "keepalive" not in {event["type"] for event in events}


@pytest.mark.shows("A.47")
async def test_no_keepalive_precedes_response_created_for_a_slow_client() -> None:
    """The client is slow to accept the first event, while the engine produces none."""
    chunks: list[bytes] = []
    requested, accepted = asyncio.Event(), asyncio.Event()

    async def receive() -> Any:
        if requested.is_set():
            await asyncio.Event().wait()
        requested.set()
        return {"type": "http.request", "body": BODY, "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            chunks.append(message.get("body", b""))
            await accepted.wait()

    scope = build_http_scope("POST", b"/v1/responses", (HOST, JSON))
    async with run_api(ping_interval=INTERVAL) as server:
        gate = server.engine.holds()
        request = asyncio.ensure_future(server.app(scope, receive, send))
        await asyncio.wait([request], timeout=ENGINE_DELAY)
        assert len(chunks) == 1
        accepted.set()
        async with asyncio.timeout(DEADLINE):
            while b"keepalive" not in b"".join(chunks):  # noqa: ASYNC110 - nothing signals its arrival
                await asyncio.sleep(INTERVAL)
            gate.open()
            await request
    types = [event["type"] for event in parse_events(AsgiResponse(body=b"".join(chunks)))]
    assert types[0] == "response.created"
    assert "keepalive" in types

"""Silence in a stream: when it is broken, when it is not, and by what."""

import asyncio
import json
from itertools import pairwise
from typing import Any

import pytest

from antiphon.config import Config
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.transport.http.request import Request, received
from antiphon.transport.streaming.event_writer import open_outlet
from antiphon.transport.streaming.keepalive import Listener
from tests.api.app import Client, api, events_in
from tests.oracles.responses import accumulate, check_event
from tests.support.asgi_client import DEADLINE, HOST, JSON, Answer, http_scope
from tests.transport.server.recording_transport import Carrier, turn

pytestmark = pytest.mark.anyio
BODY = json.dumps({"model": "fake", "input": "hi", "stream": True}).encode()
INTERVAL = 0.02
SILENCE = 0.2  # of the engine before it begins; many intervals, and past the moment in which nobody looks


class Silent:
    waits = True


def test_fifteen_seconds_of_silence_are_waited_for() -> None:
    assert Config().ping_interval == 15


@pytest.mark.shows("A.46", "A.47")
async def test_keepalives_repeat_the_last_number_and_are_no_events_of_the_response() -> None:
    async with api(ping_interval=INTERVAL) as server:
        events = await Client(server.app).whole(server.engine.holds(), "keepalive", times=2)
    kept = [event for event in events if event["type"] == "keepalive"]
    told = [event for event in events if event["type"] != "keepalive"]
    assert len(kept) >= 2
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    for before, event in pairwise(events):
        if event["type"] == "keepalive":
            assert event["sequence_number"] == before["sequence_number"]
    for event in events:
        check_event(event)
    assert accumulate(told).output_text == "You said: hi"


@pytest.mark.parametrize("spoken", [True, False])
async def test_what_is_said_in_the_last_moment_leaves_no_silence_to_be_broken(spoken: bool) -> None:
    carrier = Carrier()
    cycle = carrier.cycle()
    assert cycle.begin(200, []) is None
    async with Listener(received(cycle, Request), Silent(), 60.0, lambda last: b"still here") as listener:
        listener.outlet = outlet = open_outlet(cycle)
        outlet.last = "a word"
        for _ in range(5):
            listener._look()
        outlet.last = "another word" if spoken else outlet.last
        await turn()
    assert (b"still here" in b"".join(carrier.transport.writes)) is not spoken


@pytest.mark.parametrize("ping_interval", [0.0, 60.0])
@pytest.mark.shows("A.46")
async def test_without_an_interval_or_before_it_is_over_silence_stays_silence(ping_interval: float) -> None:
    async with api(engine=FakeEngine(FakeSettings(delay=SILENCE)), ping_interval=ping_interval) as server:
        events = events_in(await server.post("responses", BODY))
    assert "keepalive" not in {event["type"] for event in events}


@pytest.mark.shows("A.47")
async def test_nothing_comes_before_created_however_long_that_takes_to_send() -> None:
    """A client that is slow to take the first event, while the engine is silent."""
    heard: list[bytes] = []
    asked, taken = asyncio.Event(), asyncio.Event()

    async def receive() -> Any:
        if asked.is_set():
            await asyncio.Event().wait()
        asked.set()
        return {"type": "http.request", "body": BODY, "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            heard.append(message.get("body", b""))
            await taken.wait()

    scope = http_scope("POST", b"/v1/responses", (HOST, JSON))
    async with api(ping_interval=INTERVAL) as server:
        gate = server.engine.holds()
        request = asyncio.ensure_future(server.app(scope, receive, send))
        await asyncio.wait([request], timeout=SILENCE)
        assert len(heard) == 1
        taken.set()
        async with asyncio.timeout(DEADLINE):
            while b"keepalive" not in b"".join(heard):  # noqa: ASYNC110 - nobody says when it comes
                await asyncio.sleep(INTERVAL)
            gate.open()
            await request
    types = [event["type"] for event in events_in(Answer(body=b"".join(heard)))]
    assert types[0] == "response.created"
    assert "keepalive" in types

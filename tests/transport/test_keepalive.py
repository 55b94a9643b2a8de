"""Silence in a stream: when it is broken, when it is not, and by what."""

import asyncio
import json
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.config import Config
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.transport.app import App
from antiphon.wiring import build_app
from tests.asgi import HOST, JSON, call, http_scope
from tests.oracle import accumulate, check_event

pytestmark = pytest.mark.anyio
BODY = json.dumps({"model": "fake", "input": "hi", "stream": True}).encode()
INTERVAL = 0.02
SILENCE = 0.2  # of the engine before it begins; many intervals, and past the moment in which nobody looks


def app(ping_interval: float, silence: float = SILENCE) -> App:
    config = replace(Config(engine="fake"), ping_interval=ping_interval)
    return build_app(config, FakeEngine(FakeSettings(delay=silence)))


def events_in(body: bytes) -> list[dict[str, Any]]:
    *frames, done, rest = body.decode().split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(frame.partition("\ndata: ")[2]) for frame in frames]


async def streamed(ping_interval: float) -> list[dict[str, Any]]:
    return events_in((await call(app(ping_interval), "POST", "/v1/responses", JSON, body=[BODY])).body)


def test_fifteen_seconds_of_silence_are_waited_for() -> None:
    assert Config().ping_interval == 15


@pytest.mark.shows("A.46", "A.47")
async def test_keepalives_repeat_the_last_number_and_are_no_events_of_the_response() -> None:
    events = await streamed(INTERVAL)
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


@pytest.mark.parametrize("ping_interval", [0.0, 60.0])
@pytest.mark.shows("A.46")
async def test_without_an_interval_or_before_it_is_over_silence_stays_silence(ping_interval: float) -> None:
    assert "keepalive" not in {event["type"] for event in await streamed(ping_interval)}


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
    request = asyncio.ensure_future(app(INTERVAL)(scope, receive, send))
    await asyncio.wait([request], timeout=SILENCE)
    assert len(heard) == 1
    taken.set()
    async with asyncio.timeout(5):
        await request
    types = [event["type"] for event in events_in(b"".join(heard))]
    assert types[0] == "response.created"
    assert "keepalive" in types

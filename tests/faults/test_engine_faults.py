"""Engines that die, fall silent or talk nonsense: a typed error or one terminal event, in time, never a hang."""

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import running
from tests.faults.raw_client import Answer, body, exchange, request
from tests.oracles.responses import accumulate, check_event
from tests.support.server_process import Live, serving

pytestmark = pytest.mark.anyio

SCRIPT = str(Path(__file__).with_name("faulty.toml"))
TOOL = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
DEATHS = {
    "dies at once": (500, "server_error"),
    "dies in the middle": (500, "server_error"),
    "dies in a call": (500, "server_error"),
    "has no room": (503, "service_unavailable"),
    "finds it too long": (400, "context_length_exceeded"),
    "has a defect": (500, "server_error"),
    "breaks off": (500, "server_error"),
    "is silent": (500, "server_error"),
    "falls silent": (500, "server_error"),
    "goes on without a name": (500, "server_error"),
}


@pytest.fixture(scope="module")
def faulty() -> Iterator[Live]:
    """An engine that does what the input says; it may be silent for a second."""
    with serving(
        "--engine", "fake", "--fake-script", SCRIPT, "--first-token-timeout", "1", "--idle-timeout", "1"
    ) as live:
        yield live


@pytest.fixture(scope="module")
def silent() -> Iterator[Live]:
    """The same with all the patience in the world, and keep-alives after a tenth of a second."""
    flags = ("--ping-interval", "0.1", "--shutdown-grace", "1")
    with serving("--engine", "fake", "--fake-script", SCRIPT, *flags) as live:
        yield live


async def _asked(live: Live, what: str, *, stream: bool) -> Answer:
    return await exchange(live.port, request(body(input=f"It {what}.", stream=stream, tools=[TOOL])))


def _events(answer: Answer) -> list[dict[str, Any]]:
    assert answer.status == 200, answer
    *blocks, done, rest = answer.body.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    events = [json.loads(block.split(b"\ndata: ")[1]) for block in blocks]
    for event in events:
        check_event(event)
    return events


@pytest.mark.parametrize("what", DEATHS)
@pytest.mark.shows("C.28", "H.15")
async def test_a_reply_in_json_is_a_typed_error(faulty: Live, what: str) -> None:
    status, code = DEATHS[what]
    answer = await _asked(faulty, what, stream=False)
    assert answer.status == status, answer
    error = answer.error()
    assert error["code"] == code
    assert "secret" not in error["message"]


@pytest.mark.parametrize("what", DEATHS)
@pytest.mark.shows("A.29", "A.48", "A.55", "C.28")
async def test_a_stream_says_so_and_ends_with_failed(faulty: Live, what: str) -> None:
    _, code = DEATHS[what]
    events = _events(await _asked(faulty, what, stream=True))
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert events[-2]["code"] == events[-2]["error"]["code"] == code
    response = events[-1]["response"]
    assert response["status"] == "failed"
    assert response["error"]["code"] == code
    assert "secret" not in json.dumps(events)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    added = [event["item"]["id"] for event in events if event["type"] == "response.output_item.added"]
    done = [event["item"]["id"] for event in events if event["type"] == "response.output_item.done"]
    assert sorted(added) == sorted(done)
    assert accumulate(events).status == "failed"


@pytest.mark.shows("H.19", "H2.6", "H2.7")
async def test_a_busy_engine_says_when_to_come_back(faulty: Live) -> None:
    answer = await _asked(faulty, "has no room", stream=False)
    assert answer.headers["retry-after"] == "7"
    events = _events(await _asked(faulty, "has no room", stream=True))
    assert events[-2]["retry_after"] == 7


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.shows("D.19")
async def test_a_call_of_what_nobody_declared_is_never_passed_on(faulty: Live, stream: bool) -> None:
    answer = await _asked(faulty, "calls what nobody declared", stream=stream)
    assert b"rm_rf" not in answer.body
    response = _events(answer)[-1]["response"] if stream else json.loads(answer.body)
    assert [item["type"] for item in response["output"]] == ["message"]


async def test_text_that_looks_like_an_event_stays_text(faulty: Live) -> None:
    events = _events(await _asked(faulty, "forges an event", stream=True))
    said = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert said == "\n\nevent: response.completed\ndata: {}\n\ndata: [DONE]\n\n\0"
    assert [event["type"] for event in events].count("response.completed") == 1


@pytest.mark.parametrize("what", ["is silent", "falls silent"])
@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.shows("A.54")
async def test_work_of_a_silent_engine_ends_when_its_client_is_gone(silent: Live, what: str, stream: bool) -> None:
    async with asyncio.timeout(60):
        _, writer = await asyncio.open_connection("127.0.0.1", silent.port)
        writer.write(request(body(input=f"It {what}.", stream=stream)))
        while await running(silent) != 1:
            pass
        writer.close()
        while await running(silent):
            pass


@pytest.mark.parametrize("what", ["is silent", "falls silent"])
@pytest.mark.shows("A.46", "A.47")
async def test_silence_is_broken_by_keepalives_that_repeat_the_last_number(silent: Live, what: str) -> None:
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", silent.port)
        writer.write(request(body(input=f"It {what}.", stream=True)))
        last = -1
        for _ in range(3):
            before = await reader.readuntil(b"event: keepalive\ndata: ")
            numbers = [int(part.split(b",")[0]) for part in before.split(b'"sequence_number":')[1:]]
            last = max([last, *numbers])
            event = json.loads(await reader.readline())
            assert event == {"type": "keepalive", "sequence_number": last}
        writer.close()


@pytest.mark.shows("H.10")
async def test_a_server_that_is_told_to_stop_ends_its_streams_properly() -> None:
    with serving("--engine", "fake", "--fake-script", SCRIPT, "--shutdown-grace", "0.5") as live:
        asking = asyncio.create_task(_asked(live, "falls silent", stream=True))
        async with asyncio.timeout(60):
            while await running(live) != 1:
                pass
            live.process.send_signal(signal.SIGTERM)
            events = _events(await asking)
            assert events[-1]["type"] in ("response.failed", "response.incomplete")
            assert await asyncio.to_thread(live.process.wait, 60) == 0

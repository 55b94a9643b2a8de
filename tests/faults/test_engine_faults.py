"""Engines that crash, become silent or send invalid data: the client gets a typed error or one terminal event in time,
never a hang.
"""

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import count_running_requests
from tests.faults.raw_client import RawResponse, build_body, build_request, send_request
from tests.oracles.responses import accumulate, check_event
from tests.support.server_process import ServerProcess, run_server

pytestmark = pytest.mark.anyio

SCRIPT = str(Path(__file__).with_name("faulty.toml"))
TOOL = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
EXPECTED_ERRORS = {
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
def faulty_server() -> Iterator[ServerProcess]:
    """A server whose engine behaves as the input says, with timeouts of one second."""
    with run_server(
        "--engine", "fake", "--fake-script", SCRIPT, "--first-token-timeout", "1", "--idle-timeout", "1"
    ) as live:
        yield live


@pytest.fixture(scope="module")
def keepalive_server() -> Iterator[ServerProcess]:
    """The same engine with the default timeouts, and keep-alives every 0.1 seconds."""
    flags = ("--ping-interval", "0.1", "--shutdown-grace", "1", "--keep-streams", "0")
    with run_server("--engine", "fake", "--fake-script", SCRIPT, *flags) as live:
        yield live


async def _send(live: ServerProcess, behaviour: str, *, stream: bool) -> RawResponse:
    return await send_request(
        live.port, build_request(build_body(input=f"It {behaviour}.", stream=stream, tools=[TOOL]))
    )


def _parse_events(answer: RawResponse) -> list[dict[str, Any]]:
    assert answer.status == 200, answer
    *blocks, done, trailer = answer.body.split(b"\n\n")
    assert (done, trailer) == (b"data: [DONE]", b"")
    events = [json.loads(block.split(b"\ndata: ")[1]) for block in blocks]
    for event in events:
        check_event(event)
    return events


@pytest.mark.parametrize("behaviour", EXPECTED_ERRORS)
@pytest.mark.shows("C.28", "H.15")
async def test_a_json_response_is_a_typed_error(faulty_server: ServerProcess, behaviour: str) -> None:
    status, code = EXPECTED_ERRORS[behaviour]
    answer = await _send(faulty_server, behaviour, stream=False)
    assert answer.status == status, answer
    error = answer.parse_error()
    assert error["code"] == code
    assert "secret" not in error["message"]


@pytest.mark.parametrize("behaviour", EXPECTED_ERRORS)
@pytest.mark.shows("A.29", "A.48", "A.55", "C.28")
async def test_a_stream_reports_the_error_and_ends_with_failed(faulty_server: ServerProcess, behaviour: str) -> None:
    _, code = EXPECTED_ERRORS[behaviour]
    events = _parse_events(await _send(faulty_server, behaviour, stream=True))
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
async def test_a_busy_engine_sets_retry_after(faulty_server: ServerProcess) -> None:
    answer = await _send(faulty_server, "has no room", stream=False)
    assert answer.headers["retry-after"] == "7"
    events = _parse_events(await _send(faulty_server, "has no room", stream=True))
    assert events[-2]["retry_after"] == 7


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.shows("D.19")
async def test_a_call_of_an_undeclared_tool_is_never_passed_on(faulty_server: ServerProcess, stream: bool) -> None:
    answer = await _send(faulty_server, "calls what nobody declared", stream=stream)
    assert b"rm_rf" not in answer.body
    response = _parse_events(answer)[-1]["response"] if stream else json.loads(answer.body)
    assert [item["type"] for item in response["output"]] == ["message"]


async def test_text_that_looks_like_an_event_stays_text(faulty_server: ServerProcess) -> None:
    events = _parse_events(await _send(faulty_server, "forges an event", stream=True))
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert text == "\n\nevent: response.completed\ndata: {}\n\ndata: [DONE]\n\n\0"
    assert [event["type"] for event in events].count("response.completed") == 1


@pytest.mark.parametrize("behaviour", ["is silent", "falls silent"])
@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.shows("A.54")
async def test_a_disconnect_cancels_the_request_of_a_silent_engine(
    keepalive_server: ServerProcess, behaviour: str, stream: bool
) -> None:
    async with asyncio.timeout(60):
        _, writer = await asyncio.open_connection("127.0.0.1", keepalive_server.port)
        writer.write(build_request(build_body(input=f"It {behaviour}.", stream=stream)))
        while await count_running_requests(keepalive_server) != 1:
            pass
        writer.close()
        while await count_running_requests(keepalive_server):
            pass


@pytest.mark.parametrize("behaviour", ["is silent", "falls silent"])
@pytest.mark.shows("A.46", "A.47")
async def test_a_silent_stream_gets_keepalives_with_the_last_sequence_number(
    keepalive_server: ServerProcess, behaviour: str
) -> None:
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", keepalive_server.port)
        writer.write(build_request(build_body(input=f"It {behaviour}.", stream=True)))
        last = -1
        for _ in range(3):
            before = await reader.readuntil(b"event: keepalive\ndata: ")
            numbers = [int(part.split(b",")[0]) for part in before.split(b'"sequence_number":')[1:]]
            last = max([last, *numbers])
            event = json.loads(await reader.readline())
            assert event == {"type": "keepalive", "sequence_number": last}
        writer.close()


@pytest.mark.shows("H.10")
async def test_a_stopping_server_ends_its_streams_with_a_terminal_event() -> None:
    with run_server("--engine", "fake", "--fake-script", SCRIPT, "--shutdown-grace", "0.5") as live:
        request_task = asyncio.create_task(_send(live, "falls silent", stream=True))
        async with asyncio.timeout(60):
            while await count_running_requests(live) != 1:
                pass
            live.process.send_signal(signal.SIGTERM)
            events = _parse_events(await request_task)
            assert events[-1]["type"] in ("response.failed", "response.incomplete")
            assert await asyncio.to_thread(live.process.wait, 60) == 0

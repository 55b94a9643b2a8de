"""Text that breaks encoders, stores and streams: lone surrogates, NUL, and text that looks like our own events."""

import json
from typing import Any

import pytest

from drills.bombs.text import NAMED, NUL, NUL_IDS, PLACES, SURROGATES, TEXTS, escaped
from tests.faults.raw_client import Answer, body, exchange, refused, request
from tests.support.server_process import Live

pytestmark = pytest.mark.anyio


def _text(answer: Answer) -> str:
    assert answer.status == 200, answer
    text: str = json.loads(answer.body)["output"][0]["content"][0]["text"]
    return text


@pytest.mark.parametrize("escape", SURROGATES)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.shows("H6.8")
async def test_a_lone_surrogate_is_refused_wherever_it_is(server: Live, place: str, escape: str) -> None:
    await refused(server.port, request(escaped(PLACES[place], escape)), 400)


@pytest.mark.parametrize(("place", "param"), NAMED)
@pytest.mark.shows("H6.8")
async def test_nul_is_refused_in_names_and_metadata(server: Live, place: str, param: str) -> None:
    await refused(server.port, request(escaped(PLACES[place], NUL)), 400, param=param)


@pytest.mark.shows("H6.8")
async def test_nul_is_refused_in_ids(server: Live) -> None:
    await refused(server.port, request(body(input=NUL_IDS)), 400, param="input[0].call_id")


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
async def test_any_other_text_comes_back_as_it_was(server: Live, text: str, stream: bool) -> None:
    answer = await exchange(server.port, request(body(input=text, stream=stream)))
    if not stream:
        assert _text(answer) == f"You said: {text}"
        return
    events = _events(answer)
    said = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(said) == f"You said: {text}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events].count("response.completed") == 1


def _events(answer: Answer) -> list[dict[str, Any]]:
    """The events as a strict reader of server-sent events finds them: one data line each, and the end."""
    assert answer.status == 200, answer
    *blocks, done, rest = answer.body.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    events = []
    for block in blocks:
        kind, data = block.split(b"\n")
        event = json.loads(data.removeprefix(b"data: "))
        assert kind == b"event: " + event["type"].encode()
        events.append(event)
    return events

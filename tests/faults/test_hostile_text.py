"""Text that breaks encoders, stores and streams: lone surrogates, NUL, and text that looks like our own events."""

import json
from typing import Any

import pytest

from tests.faults.wire import Answer, body, exchange, refused, request
from tests.live import Live

pytestmark = pytest.mark.anyio

FORGED = '\n\nevent: response.completed\ndata: {"type":"response.completed"}\n\ndata: [DONE]\n\n'


def _text(answer: Answer) -> str:
    assert answer.status == 200, answer
    text: str = json.loads(answer.body)["output"][0]["content"][0]["text"]
    return text


def _escaped(template: str, escape: str) -> bytes:
    return template.replace("@", escape).encode()


SURROGATES = [r"\ud800", r"\udfff", r"a\ud83d", r"\ude00b", r"\ud800\ud800"]
PLACES = {
    "input": '{"model":"fake","input":"@"}',
    "instructions": '{"model":"fake","input":"hi","instructions":"@"}',
    "metadata value": '{"model":"fake","input":"hi","metadata":{"k":"@"}}',
    "metadata key": '{"model":"fake","input":"hi","metadata":{"@":"v"}}',
    "model": '{"model":"@","input":"hi"}',
    "tool name": '{"model":"fake","input":"hi","tools":[{"type":"function","name":"@"}]}',
    "unheard of": '{"model":"fake","input":"hi","@":1}',
    "schema": '{"model":"fake","input":"","text":{"format":{"type":"json_schema","name":"n","schema":{"const":"@"}}}}',
}


@pytest.mark.parametrize("escape", SURROGATES)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.shows("H6.8")
async def test_a_lone_surrogate_is_refused_wherever_it_is(server: Live, place: str, escape: str) -> None:
    await refused(server.port, request(_escaped(PLACES[place], escape)), 400)


@pytest.mark.parametrize(
    ("place", "param"),
    [
        ("metadata value", "metadata"),
        ("metadata key", "metadata"),
        ("model", "model"),
        ("tool name", "tools[0].name"),
    ],
)
@pytest.mark.shows("H6.8")
async def test_nul_is_refused_in_names_and_metadata(server: Live, place: str, param: str) -> None:
    await refused(server.port, request(_escaped(PLACES[place], r"a\u0000b")), 400, param=param)


@pytest.mark.shows("H6.8")
async def test_nul_is_refused_in_ids(server: Live) -> None:
    items = [
        {"type": "function_call", "call_id": "a\0b", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a\0b", "output": "x"},
    ]
    await refused(server.port, request(body(input=items)), 400, param="input[0].call_id")


@pytest.mark.parametrize(
    "text", ["a\0b", "\u2028\u2029", "\x7f\x1b[31m", "\ufffe\uffff", "👩🏽‍🚀", "\r\n", "\ufeff", FORGED, "</script>"]
)
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

"""Text that breaks encoders, stores and streams: lone surrogates, NUL, and text that looks like the server's own
events.
"""

import json
from typing import Any

import pytest

from drills.bombs.text import NUL, NUL_FIELDS, NUL_IDS, SURROGATES, TEMPLATES, TEXTS, fill_template
from tests.faults.raw_client import RawResponse, build_body, build_request, expect_error, send_request
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.anyio


def _parse_text(answer: RawResponse) -> str:
    assert answer.status == 200, answer
    text: str = json.loads(answer.body)["output"][0]["content"][0]["text"]
    return text


@pytest.mark.parametrize("escape", SURROGATES)
@pytest.mark.parametrize("position", TEMPLATES)
@pytest.mark.shows("H6.8")
async def test_a_lone_surrogate_is_rejected_at_every_position(
    server: ServerProcess, position: str, escape: str
) -> None:
    await expect_error(server.port, build_request(fill_template(TEMPLATES[position], escape)), 400)


@pytest.mark.parametrize(("position", "param"), NUL_FIELDS)
@pytest.mark.shows("H6.8")
async def test_nul_is_rejected_in_names_and_metadata(server: ServerProcess, position: str, param: str) -> None:
    await expect_error(server.port, build_request(fill_template(TEMPLATES[position], NUL)), 400, param=param)


@pytest.mark.shows("H6.8")
async def test_nul_is_rejected_in_ids(server: ServerProcess) -> None:
    await expect_error(server.port, build_request(build_body(input=NUL_IDS)), 400, param="input[0].call_id")


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
async def test_any_other_text_is_returned_unchanged(server: ServerProcess, text: str, stream: bool) -> None:
    answer = await send_request(server.port, build_request(build_body(input=text, stream=stream)))
    if not stream:
        assert _parse_text(answer) == f"You said: {text}"
        return
    events = _parse_events(answer)
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(deltas) == f"You said: {text}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events].count("response.completed") == 1


def _parse_events(answer: RawResponse) -> list[dict[str, Any]]:
    """Parse the events as a strict reader of server-sent events does: one data line each, then `[DONE]`."""
    assert answer.status == 200, answer
    *blocks, done, trailer = answer.body.split(b"\n\n")
    assert (done, trailer) == (b"data: [DONE]", b"")
    events = []
    for block in blocks:
        event_line, data = block.split(b"\n")
        event = json.loads(data.removeprefix(b"data: "))
        assert event_line == b"event: " + event["type"].encode()
        events.append(event)
    return events

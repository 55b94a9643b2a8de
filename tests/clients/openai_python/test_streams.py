"""Streams with the `openai` package: every event is valid, events are in order, and they fold to the final response."""

import json
from collections.abc import Iterable
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response
from pydantic import BaseModel

from tests.clients.tool_definitions import SQL, WEATHER, CityPopulation
from tests.oracles.responses import accumulate, check_event
from tests.support.server_process import ServerProcess

REQUESTS: dict[str, dict[str, Any]] = {
    "text": {},
    "instructions": {"instructions": "Be brief."},
    "function": {"tools": [WEATHER]},
    "custom": {"tools": [SQL]},
    "reasoning": {"reasoning": {"effort": "medium"}},
    "summary": {"reasoning": {"effort": "medium", "summary": "detailed"}},
    "encrypted reasoning": {"reasoning": {"effort": "medium"}, "include": ["reasoning.encrypted_content"]},
    "reasoning and function": {"reasoning": {"effort": "medium"}, "tools": [WEATHER]},
    "logprobs": {"include": ["message.output_text.logprobs"], "top_logprobs": 3},
    "json_object": {"text": {"format": {"type": "json_object"}}},
    "cut": {"max_output_tokens": 2},
}


def _validate_and_fold(events: Iterable[BaseModel]) -> Response:
    """Validate the events and their sequence numbers, and return the response they fold to."""
    raw = [json.loads(event.model_dump_json(exclude_unset=True, by_alias=True)) for event in events]
    for event in raw:
        check_event(event)
    assert [event["sequence_number"] for event in raw] == list(range(len(raw)))
    assert raw[0]["type"] == "response.created"
    return accumulate(raw)


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.shows("A.2", "A.23", "A.55", "A.56", "I.10")
def test_every_event_of_a_stream_is_valid_and_folds_to_the_final_response(client: OpenAI, name: str) -> None:
    with client.responses.create(model="fake", input="hi", stream=True, **REQUESTS[name]) as stream:
        events = list(stream)
    folded = _validate_and_fold(events)
    assert events[-1].type in ("response.completed", "response.incomplete")
    assert folded == events[-1].response


@pytest.mark.anyio
@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.shows("I.10")
async def test_the_async_client_gets_the_same_events(async_client: AsyncOpenAI, name: str) -> None:
    async with await async_client.responses.create(model="fake", input="hi", stream=True, **REQUESTS[name]) as stream:
        events = [event async for event in stream]
    assert _validate_and_fold(events).status == ("incomplete" if name == "cut" else "completed")


@pytest.mark.parametrize("name", [name for name in REQUESTS if name != "cut"])
@pytest.mark.shows("A.57", "I.10")
@pytest.mark.uses("openai-python", "streaming")
def test_the_stream_helper_returns_the_final_response(client: OpenAI, name: str) -> None:
    with client.responses.stream(model="fake", input="hi", **REQUESTS[name]) as stream:
        types = [event.type for event in stream]
        final = stream.get_final_response()
    assert types[-1] == "response.completed"
    assert final.status == "completed"
    assert final.output


@pytest.mark.anyio
@pytest.mark.shows("I.10")
async def test_the_async_stream_helper_returns_the_final_response(async_client: AsyncOpenAI) -> None:
    async with async_client.responses.stream(model="fake", input="hi") as stream:
        deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert len(deltas) > 1
    assert "".join(deltas) == final.output_text == "You said: hi"


@pytest.mark.shows("I.10")
def test_the_stream_helper_parses_into_a_model_class(client: OpenAI) -> None:
    with client.responses.stream(model="fake", input="Where?", text_format=CityPopulation) as stream:
        final = stream.get_final_response()
    assert isinstance(final.output_parsed, CityPopulation)


def test_a_cut_stream_ends_incomplete(client: OpenAI) -> None:
    with client.responses.create(model="fake", input="hi there", stream=True, max_output_tokens=1) as stream:
        last = list(stream)[-1]
    assert last.type == "response.incomplete"
    assert last.response.incomplete_details is not None
    assert last.response.incomplete_details.reason == "max_output_tokens"


def test_a_json_reply_equals_the_fold_of_its_stream(client: OpenAI) -> None:
    client.responses.create(model="fake", input="same")  # fills the prompt cache for both requests
    with client.responses.create(model="fake", input="same", stream=True) as stream:
        streamed = _validate_and_fold(list(stream))
    response = client.responses.create(model="fake", input="same")
    assert _without_ids(streamed) == _without_ids(response)


def _without_ids(response: Response) -> dict[str, Any]:
    fields = response.to_dict(mode="json")
    for name in ("id", "created_at", "completed_at"):
        fields.pop(name)
    for item in fields["output"]:  # type: ignore[attr-defined]  # a list according to the type of Response
        item.pop("id")
    return fields


@pytest.mark.shows("A.46", "H1.6")
def test_keepalives_disturb_neither_the_stream_nor_its_helper(slow_server: ServerProcess) -> None:
    with OpenAI(base_url=slow_server.v1, api_key="unused", max_retries=0, timeout=60) as client:
        with client.responses.create(model="fake", input="hi", stream=True) as stream:
            events = list(stream)
        with client.responses.stream(model="fake", input="hi") as helper:
            final = helper.get_final_response()
    assert [event for event in events if str(event.type) == "keepalive"]
    assert _validate_and_fold(event for event in events if str(event.type) != "keepalive").output_text == "You said: hi"
    assert final.output_text == "You said: hi"


@pytest.mark.shows("H.18")
def test_a_stream_has_event_stream_headers(client: OpenAI) -> None:
    raw = client.responses.with_raw_response.create(model="fake", input="hi", stream=True)
    assert raw.headers["content-type"].startswith("text/event-stream")
    assert raw.headers["x-accel-buffering"] == "no"
    assert raw.headers["x-request-id"].startswith("req_")
    raw.parse().close()

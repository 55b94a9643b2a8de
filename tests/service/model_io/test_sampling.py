"""Sampling fields of a request and the generation request that the engine receives for them."""

from typing import Any, get_args

import msgspec
import pytest

from antiphon.core.prompt import JsonObject, JsonSchema
from antiphon.engines.fake import FakeEngine
from antiphon.protocol.types.events import OutputTextDelta, OutputTextDone
from antiphon.protocol.types.items import Message, Reasoning
from antiphon.protocol.types.parts import Logprob, OutputText
from antiphon.protocol.types.response import Effort, Response
from tests.service.requests import create_response, get_text, make_responses, stream_events

pytestmark = pytest.mark.anyio
LOGPROBS = "message.output_text.logprobs"


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


def get_logprobs(response: Response) -> list[Logprob]:
    (message,) = [item for item in response.output if isinstance(item, Message)]
    return [one for part in message.content if isinstance(part, OutputText) for one in part.logprobs]


async def test_sampling_reaches_the_engine(engine: FakeEngine) -> None:
    await create_response(
        make_responses(engine), temperature=0.5, top_p=0.9, top_k=4, seed=3, stop="x", max_output_tokens=50
    )
    sampling = engine.seen[-1].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (0.5, 0.9, 4, 3)
    assert (sampling.stop, sampling.max_tokens) == (("x",), 50)


@pytest.mark.shows("A3.4")
async def test_unset_sampling_fields_are_left_to_the_engine(engine: FakeEngine) -> None:
    await create_response(make_responses(engine))
    sampling = engine.seen[-1].sampling
    assert sampling.top_k is sampling.temperature is sampling.top_p is sampling.min_p is sampling.seed is None
    await create_response(make_responses(engine), top_k=-1)
    assert engine.seen[-1].sampling.top_k == -1


@pytest.mark.shows("A3.2")
async def test_a_top_p_of_zero_is_greedy(engine: FakeEngine) -> None:
    await create_response(make_responses(engine), top_p=0, temperature=1.5)
    assert engine.seen[-1].sampling.temperature == 0
    assert engine.seen[-1].sampling.top_p is None


@pytest.mark.shows("A.33", "A.34")
async def test_a_format_becomes_a_constraint(engine: FakeEngine) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    text_format = {"type": "json_schema", "name": "thing", "schema": schema}
    assert get_text(await create_response(make_responses(engine), text={"format": text_format})) == '{"a":0}'
    assert get_text(await create_response(make_responses(engine), text={"format": {"type": "json_object"}})) == "{}"
    assert [request.constraint for request in engine.seen] == [JsonSchema(schema=schema, name="thing"), JsonObject()]


@pytest.mark.parametrize(("included", "expected"), [(False, "You said: a "), (True, "You said: a STOP")])
@pytest.mark.shows("A3.8", "A3.9")
async def test_a_stop_string_is_removed_unless_its_inclusion_is_requested(
    engine: FakeEngine, included: bool, expected: str
) -> None:
    body = {"input": "a STOP b", "stop": "STOP", "include_stop_str_in_output": included}
    response = await create_response(make_responses(engine), **body)
    assert (get_text(response), response.status) == (expected, "completed")
    events = await stream_events(make_responses(engine), **body)
    assert "".join(event.delta for event in events if isinstance(event, OutputTextDelta)) == expected


@pytest.mark.parametrize("body", [{"logprobs": True}, {"include": [LOGPROBS]}, {"top_logprobs": 2}])
@pytest.mark.shows("A.58", "A.63", "A3.16", "A4.4")
async def test_logprobs_are_in_the_response_and_in_its_events(engine: FakeEngine, body: dict[str, Any]) -> None:
    alternatives = body.get("top_logprobs", 0)
    logprobs = get_logprobs(await create_response(make_responses(engine), **body))
    assert "".join(one.token for one in logprobs) == "You said: hi"
    assert {len(one.top_logprobs) for one in logprobs} == {alternatives}
    events = await stream_events(make_responses(engine), **body)
    streamed_tokens = [one.token for event in events if isinstance(event, OutputTextDelta) for one in event.logprobs]
    (done,) = [event for event in events if isinstance(event, OutputTextDone)]
    assert streamed_tokens == [one.token for one in done.logprobs] == [one.token for one in logprobs]


@pytest.mark.parametrize("count", [0, 20])
@pytest.mark.shows("A.63")
async def test_top_logprobs_has_the_requested_length(engine: FakeEngine, count: int) -> None:
    logprobs = get_logprobs(await create_response(make_responses(engine), include=[LOGPROBS], top_logprobs=count))
    assert {len({top.token for top in one.top_logprobs}) for one in logprobs} == {count}


async def test_logprobs_are_absent_unless_requested(engine: FakeEngine) -> None:
    assert get_logprobs(await create_response(make_responses(engine))) == []


@pytest.mark.parametrize("effort", get_args(Effort))
@pytest.mark.shows("A.35")
async def test_an_effort_reaches_the_engine_and_is_echoed(engine: FakeEngine, effort: Effort) -> None:
    response = await create_response(make_responses(engine), reasoning={"effort": effort})
    assert engine.seen[-1].effort == response.reasoning.effort == effort
    assert any(isinstance(item, Reasoning) for item in response.output) is (effort != "none")


@pytest.mark.shows("A3.10")
async def test_ignore_eos_continues_up_to_the_token_limit(engine: FakeEngine) -> None:
    response = await create_response(make_responses(engine), ignore_eos=True, max_output_tokens=40)
    assert (response.status, msgspec.to_builtins(response.usage)["output_tokens"]) == ("incomplete", 40)

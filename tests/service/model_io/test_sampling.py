"""What a request says about choosing tokens, and what the engine is told of it."""

from typing import Any, get_args

import msgspec
import pytest

from antiphon.core.prompt import JsonObject, JsonSchema
from antiphon.engines.fake import FakeEngine
from antiphon.protocol.types.events import OutputTextDelta, OutputTextDone
from antiphon.protocol.types.items import Message, OutputText, Reasoning
from antiphon.protocol.types.response import Effort, Logprob, Response
from tests.service.requests import answered, service, streamed, text_of

pytestmark = pytest.mark.anyio
LOGPROBS = "message.output_text.logprobs"


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


def logprobs_of(response: Response) -> list[Logprob]:
    (message,) = [item for item in response.output if isinstance(item, Message)]
    return [one for part in message.content if isinstance(part, OutputText) for one in part.logprobs]


async def test_sampling_reaches_the_engine(engine: FakeEngine) -> None:
    await answered(service(engine), temperature=0.5, top_p=0.9, top_k=4, seed=3, stop="x", max_output_tokens=50)
    sampling = engine.seen[-1].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (0.5, 0.9, 4, 3)
    assert (sampling.stop, sampling.max_tokens) == (("x",), 50)


@pytest.mark.shows("A3.4")
async def test_what_was_not_said_is_left_to_the_engine(engine: FakeEngine) -> None:
    await answered(service(engine))
    sampling = engine.seen[-1].sampling
    assert sampling.top_k is sampling.temperature is sampling.top_p is sampling.min_p is sampling.seed is None
    await answered(service(engine), top_k=-1)
    assert engine.seen[-1].sampling.top_k == -1


@pytest.mark.shows("A3.2")
async def test_a_top_p_of_zero_is_greedy(engine: FakeEngine) -> None:
    await answered(service(engine), top_p=0, temperature=1.5)
    assert engine.seen[-1].sampling.temperature == 0
    assert engine.seen[-1].sampling.top_p is None


@pytest.mark.shows("A.33", "A.34")
async def test_a_format_becomes_a_constraint(engine: FakeEngine) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"type": "json_schema", "name": "thing", "schema": schema}
    assert text_of(await answered(service(engine), text={"format": form})) == '{"a":0}'
    assert text_of(await answered(service(engine), text={"format": {"type": "json_object"}})) == "{}"
    assert [work.constraint for work in engine.seen] == [JsonSchema(schema=schema, name="thing"), JsonObject()]


@pytest.mark.parametrize(("included", "said"), [(False, "You said: a "), (True, "You said: a STOP")])
@pytest.mark.shows("A3.8", "A3.9")
async def test_a_stop_string_is_left_out_unless_it_is_wanted(engine: FakeEngine, included: bool, said: str) -> None:
    asked = {"input": "a STOP b", "stop": "STOP", "include_stop_str_in_output": included}
    response = await answered(service(engine), **asked)
    assert (text_of(response), response.status) == (said, "completed")
    events = await streamed(service(engine), **asked)
    assert "".join(event.delta for event in events if isinstance(event, OutputTextDelta)) == said


@pytest.mark.parametrize("asked", [{"logprobs": True}, {"include": [LOGPROBS]}, {"top_logprobs": 2}])
@pytest.mark.shows("A.58", "A.63", "A3.16", "A4.4")
async def test_logprobs_come_with_the_answer_and_with_its_events(engine: FakeEngine, asked: dict[str, Any]) -> None:
    alternatives = asked.get("top_logprobs", 0)
    whole = logprobs_of(await answered(service(engine), **asked))
    assert "".join(one.token for one in whole) == "You said: hi"
    assert {len(one.top_logprobs) for one in whole} == {alternatives}
    events = await streamed(service(engine), **asked)
    told = [one.token for event in events if isinstance(event, OutputTextDelta) for one in event.logprobs]
    (done,) = [event for event in events if isinstance(event, OutputTextDone)]
    assert told == [one.token for one in done.logprobs] == [one.token for one in whole]


@pytest.mark.parametrize("count", [0, 20])
@pytest.mark.shows("A.63")
async def test_top_logprobs_are_as_many_as_asked_for(engine: FakeEngine, count: int) -> None:
    whole = logprobs_of(await answered(service(engine), include=[LOGPROBS], top_logprobs=count))
    assert {len({top.token for top in one.top_logprobs}) for one in whole} == {count}


async def test_logprobs_that_nobody_asked_for_do_not_come(engine: FakeEngine) -> None:
    assert logprobs_of(await answered(service(engine))) == []


@pytest.mark.parametrize("effort", get_args(Effort))
@pytest.mark.shows("A.35")
async def test_an_effort_is_taken_told_to_the_engine_and_echoed(engine: FakeEngine, effort: Effort) -> None:
    response = await answered(service(engine), reasoning={"effort": effort})
    assert engine.seen[-1].effort == response.reasoning.effort == effort
    assert any(isinstance(item, Reasoning) for item in response.output) is (effort != "none")


@pytest.mark.shows("A3.10")
async def test_an_answer_goes_on_past_its_end_where_the_end_is_ignored(engine: FakeEngine) -> None:
    response = await answered(service(engine), ignore_eos=True, max_output_tokens=40)
    assert (response.status, msgspec.to_builtins(response.usage)["output_tokens"]) == ("incomplete", 40)

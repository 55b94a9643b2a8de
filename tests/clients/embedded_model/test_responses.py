"""The `openai` package against the embedded model. The model is very small, so only the form of its answers is
checked.
"""

import json
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response
from pydantic import BaseModel, Field

from tests.oracles.responses import accumulate, check_event, check_response
from tests.support.server_process import ServerProcess

pytestmark = [pytest.mark.needs("llamacpp"), pytest.mark.real_model, pytest.mark.timeout(400)]


class Person(BaseModel):
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=120)


@pytest.fixture
def model(embedded_client: OpenAI) -> str:
    return next(iter(embedded_client.models.list())).id


@pytest.fixture
def limits() -> dict[str, Any]:
    """Request fields for short, repeatable answers."""
    return {"max_output_tokens": 16, "temperature": 0}


def _validate(response: Response) -> Response:
    check_response(json.loads(response.to_json()))
    return response


@pytest.mark.shows("C.1", "I.10")
@pytest.mark.uses("openai-python", "answers")
def test_create_returns_a_text(embedded_client: OpenAI, model: str, limits: dict[str, Any]) -> None:
    response = _validate(embedded_client.responses.create(model=model, input="Say hello.", **limits))
    assert response.output_text
    assert response.usage is not None
    assert 0 < response.usage.output_tokens <= 16


@pytest.mark.shows("A3.12")
def test_several_choices_are_sorted_by_their_mean_logprob(embedded_client: OpenAI, model: str) -> None:
    sampling = {"n": 3, "seed": 1, "temperature": 1.5}
    response = _validate(
        embedded_client.responses.create(
            model=model,
            input="Name a colour.",
            max_output_tokens=8,
            include=["message.output_text.logprobs"],
            extra_body=sampling,
        )
    )
    logprobs = [[one.logprob for one in item.content[0].logprobs] for item in response.output]  # type: ignore[union-attr, index]
    scores = [sum(each) / len(each) for each in logprobs]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    assert response.usage is not None
    assert response.usage.output_tokens == sum(map(len, logprobs))


@pytest.mark.anyio
@pytest.mark.shows("I.10")
@pytest.mark.uses("openai-python", "streaming")
async def test_the_async_client_streams(embedded_server: ServerProcess, model: str, limits: dict[str, Any]) -> None:
    async with (
        AsyncOpenAI(base_url=embedded_server.v1, api_key="unused", max_retries=0, timeout=120) as client,
        await client.responses.create(model=model, input="Say hello.", stream=True, **limits) as stream,
    ):
        events = [event.to_dict(mode="json") async for event in stream]
    for event in events:
        check_event(event)
    assert accumulate(events).output_text


def test_greedy_answers_are_the_same_in_json_and_in_a_stream(
    embedded_client: OpenAI, model: str, limits: dict[str, Any]
) -> None:
    response = embedded_client.responses.create(model=model, input="Count to three.", **limits)
    with embedded_client.responses.create(model=model, input="Count to three.", stream=True, **limits) as stream:
        last = list(stream)[-1]
    assert last.type in ("response.completed", "response.incomplete")
    assert last.response.output_text == response.output_text


def test_the_stream_helper_returns_a_parsed_final_response(embedded_client: OpenAI, model: str) -> None:
    with embedded_client.responses.stream(model=model, input="Hi", text_format=Person, temperature=0) as stream:
        final = stream.get_final_response()
    assert isinstance(final.output_parsed, Person)


@pytest.mark.shows("A.33")
@pytest.mark.uses("openai-python", "structured output")
def test_parse_returns_an_instance_of_the_model_class(embedded_client: OpenAI, model: str) -> None:
    response = embedded_client.responses.parse(model=model, input="Who?", text_format=Person, temperature=0)
    assert isinstance(response.output_parsed, Person)


@pytest.mark.shows("A.34")
def test_the_json_object_format_returns_an_object(embedded_client: OpenAI, model: str) -> None:
    response = _validate(
        embedded_client.responses.create(
            model=model,
            input='Answer in JSON: {"ok": true}',
            temperature=0,
            max_output_tokens=40,
            text={"format": {"type": "json_object"}},
        )
    )
    if response.status == "completed":
        assert isinstance(json.loads(response.output_text), dict)
    else:
        assert response.output_text.lstrip().startswith("{")


@pytest.mark.shows("A.63", "A4.4")
def test_logprobs_spell_the_text(embedded_client: OpenAI, model: str, limits: dict[str, Any]) -> None:
    response = _validate(
        embedded_client.responses.create(
            model=model, input="Hi", include=["message.output_text.logprobs"], top_logprobs=3, **limits
        )
    )
    (message,) = [item for item in response.output if item.type == "message"]
    (part,) = [part for part in message.content if part.type == "output_text"]
    assert part.logprobs
    assert b"".join(bytes(each.bytes) for each in part.logprobs).decode() == part.text
    assert all(len(each.top_logprobs) == 3 for each in part.logprobs)


@pytest.mark.shows("A.30")
def test_an_answer_cut_by_max_output_tokens_is_incomplete(embedded_client: OpenAI, model: str) -> None:
    response = _validate(
        embedded_client.responses.create(model=model, input="Tell a long story.", max_output_tokens=3, temperature=0)
    )
    assert response.status == "incomplete"
    assert response.usage is not None
    assert response.usage.output_tokens == 3


@pytest.mark.shows("A3.7", "C.11")
def test_a_seed_makes_sampling_repeatable(embedded_client: OpenAI, model: str) -> None:
    texts = {
        embedded_client.responses.create(
            model=model, input="A word?", max_output_tokens=8, temperature=1.2, extra_body={"seed": 7}
        ).output_text
        for _ in range(2)
    }
    assert len(texts) == 1


@pytest.mark.shows("H.16")
def test_an_unknown_model_is_not_found(embedded_client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as raised:
        embedded_client.responses.create(model="no-such-model", input="hi")
    assert raised.value.code == "model_not_found"


@pytest.mark.shows("A.27")
def test_a_prompt_longer_than_the_context_is_rejected(embedded_client: OpenAI, model: str) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        embedded_client.responses.create(model=model, input="word " * 600)
    assert raised.value.code == "context_length_exceeded"


@pytest.mark.shows("A.28")
def test_truncation_auto_drops_the_oldest_items(embedded_client: OpenAI, model: str, limits: dict[str, Any]) -> None:
    old: Any = [{"role": "user", "content": "word " * 400}, {"role": "user", "content": "word " * 200}]
    question: Any = {"role": "user", "content": "Say hello."}
    response = embedded_client.responses.create(model=model, input=[*old, question], truncation="auto", **limits)
    assert response.usage is not None
    assert 200 < response.usage.input_tokens < 400


@pytest.mark.shows("A7.2", "C.9")
def test_a_second_turn_finds_its_prefix_in_the_cache(
    embedded_client: OpenAI, model: str, limits: dict[str, Any]
) -> None:
    first: Any = {"role": "user", "content": "Remember these words: " + "apple pear plum " * 30}
    answer = embedded_client.responses.create(model=model, input=[first], **limits)
    second: Any = [
        first,
        {"role": "assistant", "content": answer.output_text},
        {"role": "user", "content": "And?"},
    ]
    response = embedded_client.responses.create(model=model, input=second, **limits)
    assert response.usage is not None
    assert response.usage.input_tokens_details.cached_tokens > 50

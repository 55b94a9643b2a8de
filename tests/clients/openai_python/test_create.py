"""`create()` and `parse()` of the `openai` package against the fake engine: the content of a Response for each kind of
request.
"""

import json
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response, ResponseCustomToolCall, ResponseFunctionToolCall

from tests.clients.tool_definitions import SQL, WEATHER, CityPopulation
from tests.oracles.responses import check_response


def _validate(response: Response) -> Response:
    check_response(json.loads(response.to_json()))
    return response


@pytest.mark.shows("A.1", "A7.1", "C.12", "I.10")
@pytest.mark.uses("openai-python", "answers")
def test_create_answers_the_last_user_text(client: OpenAI) -> None:
    response = _validate(client.responses.create(model="any-name", input="hello there"))
    assert response.output_text == "You said: hello there"
    assert response.status == "completed"
    assert response.model == "any-name"
    assert response.usage is not None
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    assert response.usage.output_tokens > 0


@pytest.mark.anyio
@pytest.mark.shows("I.10")
async def test_the_async_client_gets_the_same_answer(async_client: AsyncOpenAI) -> None:
    response = _validate(await async_client.responses.create(model="fake", input="hello there"))
    assert response.output_text == "You said: hello there"


def test_the_fields_of_the_request_are_echoed(client: OpenAI) -> None:
    response = _validate(
        client.responses.create(
            model="fake",
            input=[{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
            instructions="Be brief.",
            metadata={"trip": "7"},
            temperature=0.25,
            top_p=0.5,
            max_output_tokens=64,
            parallel_tool_calls=False,
            prompt_cache_key="k",
            safety_identifier="s",
            truncation="auto",
            text={"verbosity": "low"},
        )
    )
    assert (response.instructions, response.metadata) == ("Be brief.", {"trip": "7"})
    assert (response.temperature, response.top_p, response.max_output_tokens) == (0.25, 0.5, 64)
    assert (response.parallel_tool_calls, response.truncation) == (False, "auto")
    assert (response.prompt_cache_key, response.safety_identifier) == ("k", "s")
    assert response.text is not None
    assert response.text.verbosity == "low"


@pytest.mark.shows("A.33", "I.10")
@pytest.mark.uses("openai-python", "structured output")
def test_parse_returns_an_instance_of_the_model_class(client: OpenAI) -> None:
    response = client.responses.parse(model="fake", input="Where?", text_format=CityPopulation)
    assert isinstance(response.output_parsed, CityPopulation)


@pytest.mark.anyio
@pytest.mark.shows("I.10")
async def test_the_async_client_parses(async_client: AsyncOpenAI) -> None:
    response = await async_client.responses.parse(model="fake", input="Where?", text_format=CityPopulation)
    assert isinstance(response.output_parsed, CityPopulation)


@pytest.mark.shows("A.44")
@pytest.mark.uses("openai-python", "tools")
def test_a_function_is_called_and_its_output_is_answered(client: OpenAI) -> None:
    input_: Any = [{"role": "user", "content": "weather?"}]
    first = _validate(client.responses.create(model="fake", input=input_, tools=[WEATHER]))
    (call,) = [item for item in first.output if isinstance(item, ResponseFunctionToolCall)]
    assert call.name == "get_weather"
    assert json.loads(call.arguments)["days"] >= 2
    replayed = [item.to_dict() for item in first.output]
    answer: Any = [
        *input_,
        *replayed,
        {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"},
    ]
    second = _validate(client.responses.create(model="fake", input=answer, tools=[WEATHER]))
    assert "sunny" in second.output_text


@pytest.mark.shows("A.61", "D.14")
def test_a_custom_tool_is_called_with_freeform_input(client: OpenAI) -> None:
    response = _validate(client.responses.create(model="fake", input="rows?", tools=[SQL]))
    (call,) = [item for item in response.output if isinstance(item, ResponseCustomToolCall)]
    assert call.name == "sql"
    assert call.call_id


def test_tool_choice_none_calls_no_tool(client: OpenAI) -> None:
    response = _validate(client.responses.create(model="fake", input="hi", tools=[WEATHER], tool_choice="none"))
    assert [item.type for item in response.output] == ["message"]


def test_tool_choice_by_name_calls_that_tool(client: OpenAI) -> None:
    other: Any = {**WEATHER, "name": "other"}
    choice: Any = {"type": "function", "name": "other"}
    response = _validate(client.responses.create(model="fake", input="hi", tools=[WEATHER, other], tool_choice=choice))
    assert [item.name for item in response.output if item.type == "function_call"] == ["other"]


@pytest.mark.shows("A7.4")
@pytest.mark.uses("openai-python", "reasoning")
def test_reasoning_effort_adds_a_reasoning_item(client: OpenAI) -> None:
    response = _validate(client.responses.create(model="fake", input="hi", reasoning={"effort": "low"}))
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert response.reasoning is not None
    assert response.reasoning.effort == "low"
    assert response.usage is not None
    assert response.usage.output_tokens_details.reasoning_tokens > 0


def test_a_requested_reasoning_summary_is_returned(client: OpenAI) -> None:
    response = _validate(
        client.responses.create(model="fake", input="hi", reasoning={"effort": "high", "summary": "auto"})
    )
    (reasoning,) = [item for item in response.output if item.type == "reasoning"]
    assert reasoning.summary
    assert reasoning.summary[0].text


@pytest.mark.shows("A.63", "A4.4")
def test_logprobs_are_returned_when_included(client: OpenAI) -> None:
    response = _validate(
        client.responses.create(model="fake", input="hi", include=["message.output_text.logprobs"], top_logprobs=2)
    )
    (message,) = [item for item in response.output if item.type == "message"]
    (part,) = [part for part in message.content if part.type == "output_text"]
    assert part.logprobs
    assert "".join(each.token for each in part.logprobs) == part.text
    assert all(len(each.top_logprobs) == 2 for each in part.logprobs)


def test_an_answer_cut_by_max_output_tokens_is_incomplete(client: OpenAI) -> None:
    response = _validate(client.responses.create(model="fake", input="a much longer text", max_output_tokens=1))
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage is not None
    assert response.usage.output_tokens == 1


@pytest.mark.shows("G.5")
def test_models_are_listed_and_retrieved(client: OpenAI) -> None:
    listed = list(client.models.list())
    assert listed
    assert client.models.retrieve(listed[0].id).object == "model"


@pytest.mark.shows("A.18", "H2.3")
def test_headers_name_the_request_id_and_the_ignored_fields(client: OpenAI) -> None:
    raw = client.responses.with_raw_response.create(
        model="fake", input="hi", extra_body={"tempratur": 1, "access_programs": {"cyber": "standard"}}
    )
    assert raw.headers["x-request-id"].startswith("req_")
    assert "tempratur" in raw.headers["x-antiphon-ignored"]
    assert "tempratur" in (raw.parse().model_extra or {})["ignored_fields"]
    assert raw.headers["content-type"].startswith("application/json")
    assert int(raw.headers["openai-processing-ms"]) >= 0


def test_a_well_formed_request_id_is_echoed(client: OpenAI) -> None:
    raw = client.responses.with_raw_response.create(
        model="fake", input="hi", extra_headers={"x-request-id": "my-request-1"}
    )
    assert raw.headers["x-request-id"] == "my-request-1"

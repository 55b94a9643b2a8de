"""The openai package against Antiphon in front of real engines, at both levels: the tests of the embedded model, and
stored state. The model is very small, so only the form of its answers is checked.
"""

import json
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response

from tests.clients.embedded_model.test_responses import (
    Person,
    test_a_second_turn_finds_its_prefix_in_the_cache,
    test_a_seed_makes_sampling_repeatable,
    test_an_answer_cut_by_max_output_tokens_is_incomplete,
    test_an_unknown_model_is_not_found,
    test_create_returns_a_text,
    test_greedy_answers_are_the_same_in_json_and_in_a_stream,
    test_logprobs_spell_the_text,
    test_parse_returns_an_instance_of_the_model_class,
    test_the_async_client_streams,
    test_the_json_object_format_returns_an_object,
    test_the_stream_helper_returns_a_parsed_final_response,
)
from tests.oracles.responses import accumulate, check_event, check_response

__all__ = [
    "test_a_second_turn_finds_its_prefix_in_the_cache",
    "test_a_seed_makes_sampling_repeatable",
    "test_an_answer_cut_by_max_output_tokens_is_incomplete",
    "test_an_unknown_model_is_not_found",
    "test_create_returns_a_text",
    "test_greedy_answers_are_the_same_in_json_and_in_a_stream",
    "test_logprobs_spell_the_text",
    "test_parse_returns_an_instance_of_the_model_class",
    "test_the_async_client_streams",
    "test_the_json_object_format_returns_an_object",
    "test_the_stream_helper_returns_a_parsed_final_response",
]

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(400)]

TOOL: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Oslo"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


def validate(response: Response) -> Response:
    check_response(json.loads(response.to_json()))
    return response


@pytest.mark.shows("C.14", "C.15", "C.20", "C.21")
def test_capabilities_show_the_level_and_the_engine(embedded_client: OpenAI, level: str, engine_url: str) -> None:
    (capabilities,) = embedded_client.get("/capabilities", cast_to=dict[str, Any])["data"]
    assert (capabilities["level"], capabilities["engine"], capabilities["healthy"]) == (
        level,
        engine_url.partition("://")[0],
        True,
    )
    assert capabilities["engine_version"]
    assert capabilities["context"] == 4096
    assert "tools" in capabilities["honours"]
    assert "input_image" in capabilities["lacks"]


def test_a_stored_response_is_retrieved_continued_and_deleted(
    embedded_client: OpenAI, model: str, limits: dict[str, Any]
) -> None:
    first = validate(embedded_client.responses.create(model=model, input="My name is Ada.", **limits))
    assert validate(embedded_client.responses.retrieve(first.id)).output_text == first.output_text
    second = validate(
        embedded_client.responses.create(model=model, input="What is my name?", previous_response_id=first.id, **limits)
    )
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens
    assert [item.type for item in embedded_client.responses.input_items.list(second.id)] == ["message"]
    embedded_client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        embedded_client.responses.retrieve(first.id)


def test_a_conversation_collects_the_items_of_its_responses(
    embedded_client: OpenAI, model: str, limits: dict[str, Any]
) -> None:
    conversation = embedded_client.conversations.create(
        items=[{"type": "message", "role": "user", "content": "I like tea."}]
    )
    for _ in range(2):
        validate(embedded_client.responses.create(model=model, input="Well?", conversation=conversation.id, **limits))
    kinds = [item.type for item in embedded_client.conversations.items.list(conversation.id, order="asc")]
    assert kinds == ["message"] * 5


def test_a_background_response_can_be_streamed_and_resumed(
    embedded_client: OpenAI, model: str, limits: dict[str, Any]
) -> None:
    stream = embedded_client.responses.create(model=model, input="Count.", background=True, stream=True, **limits)
    events = [event.to_dict(mode="json") for event in stream]
    for event in events:
        check_event(event)
    response = accumulate(events)
    again = list(embedded_client.responses.retrieve(response.id, stream=True, starting_after=3))
    assert [event.to_dict(mode="json") for event in again] == events[4:]


def test_a_stop_string_ends_an_answer_and_is_omitted(
    embedded_client: OpenAI, model: str, limits: dict[str, Any]
) -> None:
    free = embedded_client.responses.create(model=model, input="Tell me of the sea.", **limits).output_text
    stop = free[6:9]
    cut = embedded_client.responses.create(
        model=model, input="Tell me of the sea.", extra_body={"stop": [stop]}, **limits
    )
    assert cut.output_text == free[: free.index(stop)]
    assert cut.status == "completed"


def test_a_prompt_that_exceeds_the_context_is_a_400(embedded_client: OpenAI, model: str) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as raised:
            embedded_client.responses.create(model=model, input="word " * 5000, stream=stream)
        assert (raised.value.code, raised.value.param) == ("context_length_exceeded", "input")


def test_max_output_tokens_is_lowered_to_the_free_context(embedded_client: OpenAI, model: str) -> None:
    """The number is an upper limit: it is lowered to the free context."""
    response = embedded_client.responses.create(
        model=model, input="Say one word.", max_output_tokens=4095, temperature=0, extra_body={"stop": ["\n", " "]}
    )
    assert response.status == "completed"


@pytest.mark.shows("D.12", "D.13")
def test_a_tool_that_must_be_called_is_called(embedded_client: OpenAI, model: str) -> None:
    """Enforced by the engine at chat level, and by a schema for a list of calls at token level."""
    fields: Any = {"model": model, "input": "Weather in Rome?", "tools": [TOOL], "tool_choice": "required"}
    response = validate(embedded_client.responses.create(max_output_tokens=100, temperature=0, **fields))
    calls = [item for item in response.output if item.type == "function_call" and item.status == "completed"]
    assert {call.name for call in calls} == {"get_weather"}
    assert {json.loads(call.arguments)["city"] for call in calls} <= {"Rome", "Oslo"}


def test_a_schema_is_enforced_in_a_stream(embedded_client: OpenAI, model: str) -> None:
    with embedded_client.responses.stream(model=model, input="Who?", text_format=Person, temperature=0) as stream:
        events = [event.type for event in stream]
        assert isinstance(stream.get_final_response().output_parsed, Person)
    assert events.count("response.output_text.delta") > 2


def test_a_regular_expression_is_enforced(embedded_client: OpenAI, model: str) -> None:
    form: Any = {"type": "structural_tag", "format": {"type": "regex", "pattern": "[0-9]{3}-[0-9]{2}"}}
    response = embedded_client.responses.create(
        model=model, input="A number?", text={"format": form}, max_output_tokens=40
    )
    head, _, tail = response.output_text.partition("-")
    assert (len(head), len(tail)) == (3, 2)


@pytest.mark.parametrize("stream", [False, True])
def test_chat_completions_are_answered(embedded_client: OpenAI, model: str, stream: bool) -> None:
    fields: Any = {"model": model, "messages": [{"role": "user", "content": "Hello!"}], "temperature": 0}
    if stream:
        chunks = list(embedded_client.chat.completions.create(max_completion_tokens=5, stream=True, **fields))
        assert chunks[-1].choices[0].finish_reason == "length"
    else:
        reply = embedded_client.chat.completions.create(max_completion_tokens=5, **fields)
        assert reply.choices[0].finish_reason == "length"
        assert reply.choices[0].message.content


@pytest.mark.parametrize("prompt", ["The sea is", [504, 3774, 314]])
def test_completions_accept_texts_and_tokens(embedded_client: OpenAI, model: str, prompt: Any) -> None:
    reply = embedded_client.completions.create(model=model, prompt=prompt, max_tokens=5, temperature=0, logprobs=2)
    assert reply.choices[0].text
    assert reply.choices[0].finish_reason == "length"
    assert reply.choices[0].logprobs is not None
    assert "".join(reply.choices[0].logprobs.tokens or []) == reply.choices[0].text
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 5

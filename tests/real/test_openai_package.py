"""The openai package against Antiphon in front of real engines, at both levels: what the embedded model is put through,
and what is kept. It is a very small model: only the form of its answers is judged."""

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
    test_create_answers,
    test_greedy_answers_are_the_same_in_json_and_in_a_stream,
    test_json_object_gives_an_object,
    test_logprobs_spell_the_text,
    test_parse_gives_an_instance_of_the_model_class,
    test_the_async_client_streams,
    test_the_stream_helper_gives_the_final_response,
)
from tests.oracles.responses import accumulate, check_event, check_response

__all__ = [
    "test_a_second_turn_finds_its_prefix_in_the_cache",
    "test_a_seed_makes_sampling_repeatable",
    "test_an_answer_cut_by_max_output_tokens_is_incomplete",
    "test_an_unknown_model_is_not_found",
    "test_create_answers",
    "test_greedy_answers_are_the_same_in_json_and_in_a_stream",
    "test_json_object_gives_an_object",
    "test_logprobs_spell_the_text",
    "test_parse_gives_an_instance_of_the_model_class",
    "test_the_async_client_streams",
    "test_the_stream_helper_gives_the_final_response",
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


def checked(response: Response) -> Response:
    check_response(json.loads(response.to_json()))
    return response


@pytest.mark.shows("C.14", "C.15", "C.20", "C.21")
def test_the_level_and_the_engine_are_shown(small: OpenAI, level: str, behind: str) -> None:
    (able,) = small.get("/capabilities", cast_to=dict[str, Any])["data"]
    assert (able["level"], able["engine"], able["healthy"]) == (level, behind.partition("://")[0], True)
    assert able["engine_version"]
    assert able["context"] == 4096
    assert "tools" in able["honours"]
    assert "input_image" in able["lacks"]


def test_what_was_stored_is_found_and_continued_and_deleted(small: OpenAI, model: str, limits: dict[str, Any]) -> None:
    first = checked(small.responses.create(model=model, input="My name is Ada.", **limits))
    assert checked(small.responses.retrieve(first.id)).output_text == first.output_text
    second = checked(
        small.responses.create(model=model, input="What is my name?", previous_response_id=first.id, **limits)
    )
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens
    assert [item.type for item in small.responses.input_items.list(second.id)] == ["message"]
    small.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        small.responses.retrieve(first.id)


def test_a_conversation_grows_by_what_is_said_in_it(small: OpenAI, model: str, limits: dict[str, Any]) -> None:
    conversation = small.conversations.create(items=[{"type": "message", "role": "user", "content": "I like tea."}])
    for _ in range(2):
        checked(small.responses.create(model=model, input="Well?", conversation=conversation.id, **limits))
    kinds = [item.type for item in small.conversations.items.list(conversation.id, order="asc")]
    assert kinds == ["message"] * 5


def test_a_background_response_is_followed_to_its_end(small: OpenAI, model: str, limits: dict[str, Any]) -> None:
    stream = small.responses.create(model=model, input="Count.", background=True, stream=True, **limits)
    events = [event.to_dict(mode="json") for event in stream]
    for event in events:
        check_event(event)
    whole = accumulate(events)
    again = list(small.responses.retrieve(whole.id, stream=True, starting_after=3))
    assert [event.to_dict(mode="json") for event in again] == events[4:]


def test_a_stop_string_ends_an_answer_and_is_left_out(small: OpenAI, model: str, limits: dict[str, Any]) -> None:
    free = small.responses.create(model=model, input="Tell me of the sea.", **limits).output_text
    stop = free[6:9]
    cut = small.responses.create(model=model, input="Tell me of the sea.", extra_body={"stop": [stop]}, **limits)
    assert cut.output_text == free[: free.index(stop)]
    assert cut.status == "completed"


def test_a_prompt_beyond_the_context_is_a_400(small: OpenAI, model: str) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as raised:
            small.responses.create(model=model, input="word " * 5000, stream=stream)
        assert (raised.value.code, raised.value.param) == ("context_length_exceeded", "input")


def test_a_larger_answer_than_the_context_has_room_for_is_asked_for_in_vain(small: OpenAI, model: str) -> None:
    """The number is a bound: it is lowered to what there is room for."""
    response = small.responses.create(
        model=model, input="Say one word.", max_output_tokens=4095, temperature=0, extra_body={"stop": ["\n", " "]}
    )
    assert response.status == "completed"


@pytest.mark.shows("D.12", "D.13")
def test_a_tool_that_must_be_called_is_called(small: OpenAI, model: str) -> None:
    """By the engine at chat level, by a schema of a list of calls at token level."""
    asked: Any = {"model": model, "input": "Weather in Rome?", "tools": [TOOL], "tool_choice": "required"}
    response = checked(small.responses.create(max_output_tokens=100, temperature=0, **asked))
    calls = [item for item in response.output if item.type == "function_call" and item.status == "completed"]
    assert {call.name for call in calls} == {"get_weather"}
    assert {json.loads(call.arguments)["city"] for call in calls} <= {"Rome", "Oslo"}


def test_a_schema_holds_in_a_stream(small: OpenAI, model: str) -> None:
    with small.responses.stream(model=model, input="Who?", text_format=Person, temperature=0) as stream:
        events = [event.type for event in stream]
        assert isinstance(stream.get_final_response().output_parsed, Person)
    assert events.count("response.output_text.delta") > 2


def test_a_regular_expression_holds(small: OpenAI, model: str) -> None:
    form: Any = {"type": "structural_tag", "format": {"type": "regex", "pattern": "[0-9]{3}-[0-9]{2}"}}
    response = small.responses.create(model=model, input="A number?", text={"format": form}, max_output_tokens=40)
    head, _, tail = response.output_text.partition("-")
    assert (len(head), len(tail)) == (3, 2)


@pytest.mark.parametrize("stream", [False, True])
def test_chat_completions_answer(small: OpenAI, model: str, stream: bool) -> None:
    asked: Any = {"model": model, "messages": [{"role": "user", "content": "Hello!"}], "temperature": 0}
    if stream:
        chunks = list(small.chat.completions.create(max_completion_tokens=5, stream=True, **asked))
        assert chunks[-1].choices[0].finish_reason == "length"
    else:
        reply = small.chat.completions.create(max_completion_tokens=5, **asked)
        assert reply.choices[0].finish_reason == "length"
        assert reply.choices[0].message.content


@pytest.mark.parametrize("prompt", ["The sea is", [504, 3774, 314]])
def test_completions_take_texts_and_tokens(small: OpenAI, model: str, prompt: Any) -> None:
    reply = small.completions.create(model=model, prompt=prompt, max_tokens=5, temperature=0, logprobs=2)
    assert reply.choices[0].text
    assert reply.choices[0].finish_reason == "length"
    assert reply.choices[0].logprobs is not None
    assert "".join(reply.choices[0].logprobs.tokens or []) == reply.choices[0].text
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 5

"""Output requirements of a request (strict tools, tool choice, formats) are enforced by retries, or the response fails.

Tested with fake engines that follow the requirements, follow them after a retry, or never follow them.
"""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Delta, ReasoningDelta, Refusal, Text
from antiphon.core.prompt import ChatPrompt, Chunk, JsonSchema, TextPrompt, TokenCounts
from antiphon.engines.base import Capabilities
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import AntiphonError, InvalidCall, InvalidOutput, InvalidValue
from antiphon.protocol.schemas.grammars import has_lark
from antiphon.protocol.types.events import Event
from antiphon.protocol.types.items import CustomToolCall, FunctionCall, Message, Reasoning
from antiphon.protocol.types.response import Response
from antiphon.service.planning.planner import PlannerSettings
from tests.service.requests import ServiceStack, create_response, get_text, make_responses, start_service, stream_events

pytestmark = pytest.mark.anyio

WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}
TIME: dict[str, Any] = {"type": "function", "name": "time", "parameters": {"type": "object", "properties": {}}}
VALID = '{"city": "Rome", "days": 2}'
INVALID = '{"city": "Rome"}'
FORMAT: dict[str, Any] = {
    "type": "json_schema",
    "name": "person",
    "strict": True,
    "schema": {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]},
}


class UnconstrainedEngine(FakeEngine):
    """Generates the replies of the test without any constraint."""


def make_call(arguments: str, name: str = "weather", key: int = 0) -> list[Delta]:
    half = len(arguments) // 2
    pieces: list[Delta] = [CallDelta(key, arguments[:half]), CallDelta(key, arguments[half:])]
    return [CallStarted(key, name), *pieces, CallDone(key)]


@pytest.fixture
def engine() -> FakeEngine:
    return UnconstrainedEngine()


def get_calls(response: Response) -> list[FunctionCall]:
    return [item for item in response.output if isinstance(item, FunctionCall)]


def list_types(events: list[Event]) -> list[str]:
    return [event.type for event in events]


def get_last_contents(engine: FakeEngine) -> list[Any]:
    prompt = engine.seen[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    return [message["content"] for message in prompt.messages]


@pytest.mark.shows("D.11")
async def test_a_valid_strict_call_is_returned_unchanged(engine: FakeEngine) -> None:
    engine.says(Text("Let me see."), *make_call(VALID))
    response = await create_response(make_responses(engine), tools=[WEATHER])
    assert [item.arguments for item in get_calls(response)] == [VALID]
    assert get_text(response) == "Let me see."
    assert len(engine.seen) == 1


@pytest.mark.shows("D.11")
async def test_a_strict_call_is_sent_when_complete_and_text_before_it_at_once(engine: FakeEngine) -> None:
    engine.says(Text("Let "), Text("me see."), *make_call(VALID))
    event_types = list_types(await stream_events(make_responses(engine), tools=[WEATHER]))
    assert event_types.count("response.output_text.delta") == 2
    assert event_types.count("response.function_call_arguments.delta") == 1


async def test_calls_of_tools_that_are_not_strict_are_streamed_unchecked(engine: FakeEngine) -> None:
    engine.says(*make_call('{"no such": thing', "time"))
    events = await stream_events(make_responses(engine), tools=[WEATHER, TIME])
    assert list_types(events).count("response.function_call_arguments.delta") == 2
    assert len(engine.seen) == 1


@pytest.mark.shows("D.11", "D.13")
async def test_unambiguous_mistakes_in_arguments_are_repaired(engine: FakeEngine) -> None:
    engine.says(*make_call('{"city": "Rome", "days": "2"}'))
    (made,) = get_calls(await create_response(make_responses(engine), tools=[WEATHER]))
    assert json.loads(made.arguments) == {"city": "Rome", "days": 2}
    assert len(engine.seen) == 1


@pytest.mark.shows("D.11", "D.13")
async def test_an_invalid_call_is_retried_with_the_reason_in_the_prompt(engine: FakeEngine) -> None:
    engine.says(*make_call(INVALID), counts=TokenCounts(input_tokens=10, output_tokens=5))
    engine.says(*make_call(VALID), counts=TokenCounts(input_tokens=30, output_tokens=6))
    response = await create_response(make_responses(engine), tools=[WEATHER])
    assert [item.arguments for item in get_calls(response)] == [VALID]
    assert response.status == "completed"
    _, previous, complaint = get_last_contents(engine)
    assert INVALID in previous
    assert "days" in complaint
    usage = response.usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens) == (40, 11)
    assert usage.output_tokens_details.output_tokens_per_turn == [5, 6]


@pytest.mark.shows("D.11")
async def test_a_retry_neither_retracts_nor_repeats_emitted_output(engine: FakeEngine) -> None:
    engine.says(ReasoningDelta("Hm."), Text("Let me see."), *make_call(INVALID))
    engine.says(ReasoningDelta("Again."), Text("Sorry."), *make_call(VALID))
    response = await create_response(make_responses(engine), tools=[WEATHER])
    assert [type(item) for item in response.output] == [Reasoning, Message, FunctionCall]
    assert get_text(response) == "Let me see."


async def test_a_retry_does_not_repeat_emitted_calls(engine: FakeEngine) -> None:
    engine.says(*make_call("{}", "time", 0), *make_call(INVALID, key=1))
    engine.says(*make_call("{}", "time", 0), *make_call(VALID, key=1))
    response = await create_response(make_responses(engine), tools=[WEATHER, TIME])
    assert [(item.name, item.arguments) for item in get_calls(response)] == [("time", "{}"), ("weather", VALID)]


async def test_a_call_of_a_retry_is_separate_from_the_emitted_call(engine: FakeEngine) -> None:
    engine.says(CallStarted(0, "time"), CallDelta(0, "{"), *make_call(INVALID, key=1))
    engine.says(*make_call(VALID, key=0))
    response = await create_response(make_responses(engine), tools=[WEATHER, TIME])
    assert [(item.name, item.arguments) for item in get_calls(response)] == [("time", "{"), ("weather", VALID)]


@pytest.mark.shows("D.11", "D.13")
async def test_a_response_fails_after_repeated_invalid_calls(engine: FakeEngine) -> None:
    for _ in range(3):
        engine.says(Text("Here:"), *make_call(INVALID))
    events = await stream_events(make_responses(engine), tools=[WEATHER])
    assert list_types(events)[-2:] == ["error", "response.failed"]
    last: Any = events[-1]
    assert last.response.error.code == "invalid_tool_call"
    assert not get_calls(last.response)
    assert len(engine.seen) == 3


@pytest.mark.shows("D.12", "D.13")
@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "time"}])
async def test_text_instead_of_a_required_call_is_dropped_and_retried(engine: FakeEngine, choice: Any) -> None:
    engine.says(ReasoningDelta("Hm."), Text("It is "), Text("late."))
    engine.says(Text("Sure."), *make_call("{}", "time"))
    events = await stream_events(make_responses(engine), tools=[TIME], tool_choice=choice)
    last: Any = events[-1]
    assert last.type == "response.completed"
    assert get_text(last.response) == "Sure."
    assert [item.name for item in get_calls(last.response)] == ["time"]
    assert "time" in get_last_contents(engine)[-1]


@pytest.mark.shows("D.12")
async def test_text_before_a_required_call_is_sent_with_the_call(engine: FakeEngine) -> None:
    engine.says(Text("Sure."), *make_call('{"a": 1}', "time"))
    event_types = list_types(await stream_events(make_responses(engine), tools=[TIME], tool_choice="required"))
    assert event_types.count("response.function_call_arguments.delta") == 2
    assert "response.output_text.delta" in event_types
    assert len(engine.seen) == 1


@pytest.mark.shows("D.12")
async def test_a_call_of_another_tool_does_not_satisfy_the_tool_choice(engine: FakeEngine) -> None:
    engine.says(*make_call(VALID))
    engine.says(*make_call(VALID, key=0), *make_call("{}", "time", 1))
    choice = {"type": "function", "name": "time"}
    response = await create_response(make_responses(engine), tools=[WEATHER, TIME], tool_choice=choice)
    assert [item.name for item in get_calls(response)] == ["time"]
    assert len(engine.seen) == 2


@pytest.mark.shows("D.12")
async def test_a_response_fails_if_the_model_never_makes_the_required_call(engine: FakeEngine) -> None:
    for _ in range(3):
        engine.says(Text("No."))
    with pytest.raises(InvalidCall, match="returned no tool call"):
        await create_response(make_responses(engine), tools=[TIME], tool_choice="required")


@pytest.mark.shows("D.12", "D.19")
async def test_a_call_of_an_undeclared_tool_does_not_satisfy_the_tool_choice(engine: FakeEngine) -> None:
    engine.says(*make_call("{}", "format_disk"))
    engine.says(*make_call("{}", "time"))
    response = await create_response(make_responses(engine), tools=[TIME], tool_choice="required")
    assert [item.name for item in get_calls(response)] == ["time"]


async def test_a_truncated_call_is_incomplete_and_not_retried(engine: FakeEngine) -> None:
    engine.says(CallStarted(0, "weather"), CallDelta(0, '{"city": "Ro'), finish="length")
    response = await create_response(make_responses(engine), tools=[WEATHER], tool_choice="required")
    (made,) = get_calls(response)
    assert (response.status, made.status, made.arguments) == ("incomplete", "incomplete", '{"city": "Ro')
    assert len(engine.seen) == 1


@pytest.mark.shows("D.10")
@pytest.mark.parametrize(("reply", "code"), [('{"age": 3', "invalid_output"), ('{"age": "x"}', "invalid_output")])
async def test_output_that_violates_its_format_fails_the_response(engine: FakeEngine, reply: str, code: str) -> None:
    engine.says(Text(reply))
    with pytest.raises(InvalidOutput) as raised:
        await create_response(make_responses(engine), text={"format": FORMAT})
    assert raised.value.code == code
    assert isinstance(engine.seen[-1].constraint, JsonSchema)


@pytest.mark.parametrize(
    ("text_format", "reply"),
    [
        (FORMAT, '{"age": 3}'),
        ({**FORMAT, "strict": False}, '{"age": "young"}'),
        ({"type": "json_object"}, '{"a": []}'),
    ],
)
async def test_output_in_the_requested_format_is_streamed(engine: FakeEngine, text_format: Any, reply: str) -> None:
    engine.says(ReasoningDelta("Hm."), Text(reply[:3]), Text(reply[3:]))
    events = await stream_events(make_responses(engine), text={"format": text_format})
    assert list_types(events).count("response.output_text.delta") == 2
    assert events[-1].type == "response.completed"


async def test_a_refusal_is_not_checked_against_the_format(engine: FakeEngine) -> None:
    engine.says(Refusal("I would rather not."))
    assert (await create_response(make_responses(engine), text={"format": FORMAT})).status == "completed"


async def test_a_truncated_answer_with_a_format_is_incomplete(engine: FakeEngine) -> None:
    engine.says(Text('{"age": '), finish="length")
    assert (await create_response(make_responses(engine), text={"format": FORMAT})).status == "incomplete"


async def test_endless_white_space_is_stopped(engine: FakeEngine) -> None:
    engine.says(Text('{"age":'), *[Text(" " * 50)] * 1000)
    response = await create_response(make_responses(engine), text={"format": FORMAT})
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert len(get_text(response)) < 2000


@pytest.mark.shows("D.14")
async def test_the_input_of_a_custom_tool_matches_its_regular_expression(engine: FakeEngine) -> None:
    tool = {"type": "custom", "name": "dial", "format": {"type": "grammar", "syntax": "regex", "definition": "[0-9]+"}}
    engine.says(*make_call('{"input": "call 911"}', "dial"))
    engine.says(*make_call('{"input": "911"}', "dial"))
    response = await create_response(make_responses(engine), tools=[tool])
    assert [item.input for item in response.output if isinstance(item, CustomToolCall)] == ["911"]


@pytest.mark.shows("D.14")
@pytest.mark.skipif(not has_lark(), reason="llguidance is not installed")
async def test_the_input_of_a_custom_tool_matches_its_grammar(engine: FakeEngine) -> None:
    text_format = {"type": "grammar", "syntax": "lark", "definition": 'start: NUMBER ("+" NUMBER)*\nNUMBER: /[0-9]+/'}
    tool = {"type": "custom", "name": "add", "format": text_format}
    engine.says(*make_call('{"input": "1 plus 2"}', "add"))
    engine.says(*make_call('{"input": "1+2"}', "add"))
    response = await create_response(make_responses(engine), tools=[tool])
    assert [item.input for item in response.output if isinstance(item, CustomToolCall)] == ["1+2"]
    assert "grammar" in get_last_contents(engine)[-1]
    with pytest.raises(InvalidValue, match="add"):
        await create_response(
            make_responses(engine), tools=[{**tool, "format": {**text_format, "definition": "start: nowhere"}}]
        )


@pytest.mark.skipif(not has_lark(), reason="llguidance is not installed")
async def test_the_fake_engine_generates_input_that_matches_a_grammar() -> None:
    text_format = {"type": "grammar", "syntax": "lark", "definition": 'start: "say " WORD "!"+\nWORD: /[b-z]+/'}
    response = await create_response(
        make_responses(FakeEngine()), tools=[{"type": "custom", "name": "say", "format": text_format}]
    )
    assert [item.input for item in response.output if isinstance(item, CustomToolCall)] == ["say b!"]


async def test_retries_and_repairs_are_counted_in_the_metrics(engine: FakeEngine) -> None:
    engine.says(*make_call(INVALID))
    engine.says(*make_call('{"city": "Rome", "days": "2"}'))
    stack = ServiceStack(engine, terms=PlannerSettings(store_enabled=False))
    await create_response(stack.responses, tools=[WEATHER])
    for _ in range(3):
        engine.says(Text("No."))
    with pytest.raises(AntiphonError):
        await create_response(stack.responses, tools=[TIME], tool_choice="required")
    text = stack.metrics.text().decode()
    for line in (
        'antiphon_insist_total{reason="arguments",outcome="asked_again"} 1',
        'antiphon_insist_total{reason="arguments",outcome="mended"} 1',
        'antiphon_insist_total{reason="no_call",outcome="asked_again"} 2',
        'antiphon_insist_total{reason="no_call",outcome="failed"} 1',
    ):
        assert line in text


async def test_a_retry_uses_another_seed(engine: FakeEngine) -> None:
    engine.says(*make_call(INVALID))
    engine.says(*make_call(VALID))
    await create_response(make_responses(engine), tools=[WEATHER], seed=7)
    assert [request.sampling.seed for request in engine.seen] == [7, 8]


async def test_a_retried_response_is_stored_as_it_was_sent(engine: FakeEngine) -> None:
    engine.says(Text("Let me see."), *make_call(INVALID))
    engine.says(*make_call(VALID))
    async with start_service(engine) as stack:
        response = await create_response(stack.responses, tools=[WEATHER])
        assert await stack.load_response(response.id) == response
        assert [item.arguments for item in get_calls(response)] == [VALID]


async def test_the_first_chunk_may_hold_the_complete_output(engine: FakeEngine) -> None:
    engine.says(Chunk(text='{"age": 3}'))
    assert get_text(await create_response(make_responses(engine), text={"format": FORMAT})) == '{"age": 3}'


class TextEngine(FakeEngine):
    """A text-level engine that supports only JSON schemas; the server parses its output."""

    def __init__(self) -> None:
        super().__init__(FakeSettings(level="text"))


class UnconstrainedTextEngine(TextEngine):
    """A text-level engine without constraints."""

    async def capabilities(self, model: str) -> Capabilities:
        capabilities = await super().capabilities(model)
        return replace(capabilities, supported_fields=capabilities.supported_fields - {"text.format"})


def make_hermes_call(arguments: str, name: str = "weather") -> Text:
    return Text(f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>')


@pytest.mark.shows("D.12", "D.13")
@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
async def test_a_model_constrained_to_a_list_of_calls_makes_a_call(choice: Any) -> None:
    response = await create_response(make_responses(TextEngine()), tools=[WEATHER, TIME], tool_choice=choice)
    (made,) = get_calls(response)
    assert (made.name, json.loads(made.arguments)) == ("weather", {"city": "", "days": 0})


@pytest.mark.shows("D.11", "D.13")
async def test_an_invalid_call_of_a_text_engine_is_retried() -> None:
    engine = UnconstrainedTextEngine()
    engine.says(Text("Let me see.\n"), make_hermes_call(INVALID))
    engine.says(make_hermes_call(VALID))
    response = await create_response(make_responses(engine), tools=[WEATHER])
    assert [item.arguments for item in get_calls(response)] == [VALID]
    prompt = engine.seen[-1].prompt
    assert isinstance(prompt, TextPrompt)
    assert "days" in "".join(segment.text for segment in prompt.segments if not segment.control)


@pytest.mark.shows("D.10")
@pytest.mark.parametrize(
    ("replies", "expected"),
    [
        (['{"age": 3}'], '{"age": 3}'),
        (['```json\n{"age": 3}\n```'], '{"age": 3}'),
        (['{"age": "3"}'], '{"age":3}'),
        (["He is three.", '{"age": 3}'], '{"age": 3}'),
    ],
)
async def test_json_beside_tools_is_held_back_until_it_is_valid(replies: list[str], expected: str) -> None:
    engine = TextEngine()
    for text in replies:
        engine.says(*[Text(piece) for piece in (text[:4], text[4:])])
    response = await create_response(make_responses(engine), tools=[TIME], text={"format": FORMAT})
    assert get_text(response) == expected
    prompt = engine.seen[0].prompt
    assert isinstance(prompt, TextPrompt)
    assert "JSON schema" in "".join([segment.text for segment in prompt.segments])


@pytest.mark.shows("D.10")
async def test_a_response_fails_if_the_model_never_answers_in_the_format() -> None:
    engine = TextEngine()
    for _ in range(3):
        engine.says(Text("He is three."))
    events = await stream_events(make_responses(engine), tools=[TIME], text={"format": FORMAT})
    last: Any = events[-1]
    assert last.response.error.code == "invalid_output"
    assert last.response.output == []


async def test_a_call_may_replace_the_formatted_answer() -> None:
    engine = TextEngine()
    engine.says(Text("Let me see.\n"), make_hermes_call("{}", "time"))
    response = await create_response(make_responses(engine), tools=[TIME], text={"format": FORMAT})
    assert [type(item) for item in response.output] == [FunctionCall]

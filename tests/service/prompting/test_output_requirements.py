"""What a request insists on is done, or said not to be: by models that do it, that need telling, and that will not."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Delta, Refusal, Text, Thought
from antiphon.core.prompt import ChatPrompt, Chunk, Counts, JsonSchema, TextPrompt
from antiphon.engines.base import Capabilities
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import AntiphonError, InvalidCall, InvalidOutput, InvalidValue
from antiphon.protocol.schemas.grammars import knows_lark
from antiphon.protocol.types.events import Event
from antiphon.protocol.types.items import CustomToolCall, FunctionCall, Message, Reasoning
from antiphon.protocol.types.response import Response
from antiphon.service.planning.planner import Terms
from tests.service.requests import Service, answered, service, serving, streamed, text_of

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
RIGHT = '{"city": "Rome", "days": 2}'
WRONG = '{"city": "Rome"}'
FORM: dict[str, Any] = {
    "type": "json_schema",
    "name": "person",
    "strict": True,
    "schema": {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]},
}


class Careless(FakeEngine):
    """Says what a test tells it to, and is held to nothing."""


def call(arguments: str, name: str = "weather", key: int = 0) -> list[Delta]:
    half = len(arguments) // 2
    pieces: list[Delta] = [CallDelta(key, arguments[:half]), CallDelta(key, arguments[half:])]
    return [CallStarted(key, name), *pieces, CallDone(key)]


@pytest.fixture
def engine() -> FakeEngine:
    return Careless()


def calls_of(response: Response) -> list[FunctionCall]:
    return [item for item in response.output if isinstance(item, FunctionCall)]


def types(events: list[Event]) -> list[str]:
    return [event.type for event in events]


def last_words(engine: FakeEngine) -> list[Any]:
    prompt = engine.seen[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    return [message["content"] for message in prompt.messages]


@pytest.mark.shows("D.11")
async def test_a_strict_call_that_fits_is_told_as_it_was_said(engine: FakeEngine) -> None:
    engine.says(Text("Let me see."), *call(RIGHT))
    response = await answered(service(engine), tools=[WEATHER])
    assert [item.arguments for item in calls_of(response)] == [RIGHT]
    assert text_of(response) == "Let me see."
    assert len(engine.seen) == 1


@pytest.mark.shows("D.11")
async def test_a_strict_call_is_told_when_it_is_whole_and_text_before_it_at_once(engine: FakeEngine) -> None:
    engine.says(Text("Let "), Text("me see."), *call(RIGHT))
    told = types(await streamed(service(engine), tools=[WEATHER]))
    assert told.count("response.output_text.delta") == 2
    assert told.count("response.function_call_arguments.delta") == 1


async def test_calls_of_tools_that_are_not_strict_are_streamed_as_they_are(engine: FakeEngine) -> None:
    engine.says(*call('{"no such": thing', "time"))
    events = await streamed(service(engine), tools=[WEATHER, TIME])
    assert types(events).count("response.function_call_arguments.delta") == 2
    assert len(engine.seen) == 1


@pytest.mark.shows("D.11", "D.13")
async def test_what_can_be_meant_in_one_way_is_mended(engine: FakeEngine) -> None:
    engine.says(*call('{"city": "Rome", "days": "2"}'))
    (made,) = calls_of(await answered(service(engine), tools=[WEATHER]))
    assert json.loads(made.arguments) == {"city": "Rome", "days": 2}
    assert len(engine.seen) == 1


@pytest.mark.shows("D.11", "D.13")
async def test_a_wrong_call_is_asked_for_again_and_the_model_told_why(engine: FakeEngine) -> None:
    engine.says(*call(WRONG), counts=Counts(input_tokens=10, output_tokens=5))
    engine.says(*call(RIGHT), counts=Counts(input_tokens=30, output_tokens=6))
    response = await answered(service(engine), tools=[WEATHER])
    assert [item.arguments for item in calls_of(response)] == [RIGHT]
    assert response.status == "completed"
    _, said, complaint = last_words(engine)
    assert WRONG in said
    assert "days" in complaint
    usage = response.usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens) == (40, 11)
    assert usage.output_tokens_details.output_tokens_per_turn == [5, 6]


@pytest.mark.shows("D.11")
async def test_what_was_told_is_not_taken_back_or_told_twice(engine: FakeEngine) -> None:
    engine.says(Thought("Hm."), Text("Let me see."), *call(WRONG))
    engine.says(Thought("Again."), Text("Sorry."), *call(RIGHT))
    response = await answered(service(engine), tools=[WEATHER])
    assert [type(item) for item in response.output] == [Reasoning, Message, FunctionCall]
    assert text_of(response) == "Let me see."


async def test_calls_that_were_told_are_not_told_twice(engine: FakeEngine) -> None:
    engine.says(*call("{}", "time", 0), *call(WRONG, key=1))
    engine.says(*call("{}", "time", 0), *call(RIGHT, key=1))
    response = await answered(service(engine), tools=[WEATHER, TIME])
    assert [(item.name, item.arguments) for item in calls_of(response)] == [("time", "{}"), ("weather", RIGHT)]


async def test_a_call_of_a_later_try_is_another_than_the_one_that_was_told(engine: FakeEngine) -> None:
    engine.says(CallStarted(0, "time"), CallDelta(0, "{"), *call(WRONG, key=1))
    engine.says(*call(RIGHT, key=0))
    response = await answered(service(engine), tools=[WEATHER, TIME])
    assert [(item.name, item.arguments) for item in calls_of(response)] == [("time", "{"), ("weather", RIGHT)]


@pytest.mark.shows("D.11", "D.13")
async def test_a_model_that_stays_wrong_fails_the_response(engine: FakeEngine) -> None:
    for _ in range(3):
        engine.says(Text("Here:"), *call(WRONG))
    events = await streamed(service(engine), tools=[WEATHER])
    assert types(events)[-2:] == ["error", "response.failed"]
    last: Any = events[-1]
    assert last.response.error.code == "invalid_tool_call"
    assert not calls_of(last.response)
    assert len(engine.seen) == 3


@pytest.mark.shows("D.12", "D.13")
@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "time"}])
async def test_who_must_call_and_talks_is_asked_again_and_its_talk_not_told(engine: FakeEngine, choice: Any) -> None:
    engine.says(Thought("Hm."), Text("It is "), Text("late."))
    engine.says(Text("Sure."), *call("{}", "time"))
    events = await streamed(service(engine), tools=[TIME], tool_choice=choice)
    last: Any = events[-1]
    assert last.type == "response.completed"
    assert text_of(last.response) == "Sure."
    assert [item.name for item in calls_of(last.response)] == ["time"]
    assert "time" in last_words(engine)[-1]


@pytest.mark.shows("D.12")
async def test_text_before_a_call_that_must_come_is_told_with_it(engine: FakeEngine) -> None:
    engine.says(Text("Sure."), *call('{"a": 1}', "time"))
    told = types(await streamed(service(engine), tools=[TIME], tool_choice="required"))
    assert told.count("response.function_call_arguments.delta") == 2
    assert "response.output_text.delta" in told
    assert len(engine.seen) == 1


@pytest.mark.shows("D.12")
async def test_a_call_of_another_tool_than_the_one_named_does_not_count(engine: FakeEngine) -> None:
    engine.says(*call(RIGHT))
    engine.says(*call(RIGHT, key=0), *call("{}", "time", 1))
    choice = {"type": "function", "name": "time"}
    response = await answered(service(engine), tools=[WEATHER, TIME], tool_choice=choice)
    assert [item.name for item in calls_of(response)] == ["time"]
    assert len(engine.seen) == 2


@pytest.mark.shows("D.12")
async def test_who_will_not_call_fails_the_response(engine: FakeEngine) -> None:
    for _ in range(3):
        engine.says(Text("No."))
    with pytest.raises(InvalidCall, match="did not"):
        await answered(service(engine), tools=[TIME], tool_choice="required")


@pytest.mark.shows("D.12", "D.19")
async def test_an_undeclared_tool_is_no_call(engine: FakeEngine) -> None:
    engine.says(*call("{}", "format_disk"))
    engine.says(*call("{}", "time"))
    response = await answered(service(engine), tools=[TIME], tool_choice="required")
    assert [item.name for item in calls_of(response)] == ["time"]


async def test_a_call_that_was_cut_is_incomplete_and_not_asked_for_again(engine: FakeEngine) -> None:
    engine.says(CallStarted(0, "weather"), CallDelta(0, '{"city": "Ro'), finish="length")
    response = await answered(service(engine), tools=[WEATHER], tool_choice="required")
    (made,) = calls_of(response)
    assert (response.status, made.status, made.arguments) == ("incomplete", "incomplete", '{"city": "Ro')
    assert len(engine.seen) == 1


@pytest.mark.shows("D.10")
@pytest.mark.parametrize(("said", "code"), [('{"age": 3', "invalid_output"), ('{"age": "x"}', "invalid_output")])
async def test_an_engine_that_does_not_keep_a_form_fails_the_response(engine: FakeEngine, said: str, code: str) -> None:
    engine.says(Text(said))
    with pytest.raises(InvalidOutput) as raised:
        await answered(service(engine), text={"format": FORM})
    assert raised.value.code == code
    assert isinstance(engine.seen[-1].constraint, JsonSchema)


@pytest.mark.parametrize(
    ("form", "said"),
    [
        (FORM, '{"age": 3}'),
        ({**FORM, "strict": False}, '{"age": "young"}'),
        ({"type": "json_object"}, '{"a": []}'),
    ],
)
async def test_what_has_the_form_is_told_as_it_comes(engine: FakeEngine, form: Any, said: str) -> None:
    engine.says(Thought("Hm."), Text(said[:3]), Text(said[3:]))
    events = await streamed(service(engine), text={"format": form})
    assert types(events).count("response.output_text.delta") == 2
    assert events[-1].type == "response.completed"


async def test_a_refusal_has_no_form(engine: FakeEngine) -> None:
    engine.says(Refusal("I would rather not."))
    assert (await answered(service(engine), text={"format": FORM})).status == "completed"


async def test_an_answer_with_a_form_that_was_cut_is_incomplete(engine: FakeEngine) -> None:
    engine.says(Text('{"age": '), finish="length")
    assert (await answered(service(engine), text={"format": FORM})).status == "incomplete"


async def test_white_space_without_end_is_ended(engine: FakeEngine) -> None:
    engine.says(Text('{"age":'), *[Text(" " * 50)] * 1000)
    response = await answered(service(engine), text={"format": FORM})
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert len(text_of(response)) < 2000


@pytest.mark.shows("D.14")
async def test_the_input_of_a_custom_tool_matches_its_regular_expression(engine: FakeEngine) -> None:
    tool = {"type": "custom", "name": "dial", "format": {"type": "grammar", "syntax": "regex", "definition": "[0-9]+"}}
    engine.says(*call('{"input": "call 911"}', "dial"))
    engine.says(*call('{"input": "911"}', "dial"))
    response = await answered(service(engine), tools=[tool])
    assert [item.input for item in response.output if isinstance(item, CustomToolCall)] == ["911"]


@pytest.mark.shows("D.14")
@pytest.mark.skipif(not knows_lark(), reason="llguidance is not installed")
async def test_the_input_of_a_custom_tool_is_a_sentence_of_its_grammar(engine: FakeEngine) -> None:
    form = {"type": "grammar", "syntax": "lark", "definition": 'start: NUMBER ("+" NUMBER)*\nNUMBER: /[0-9]+/'}
    tool = {"type": "custom", "name": "add", "format": form}
    engine.says(*call('{"input": "1 plus 2"}', "add"))
    engine.says(*call('{"input": "1+2"}', "add"))
    response = await answered(service(engine), tools=[tool])
    assert [item.input for item in response.output if isinstance(item, CustomToolCall)] == ["1+2"]
    assert "grammar" in last_words(engine)[-1]
    with pytest.raises(InvalidValue, match="add"):
        await answered(service(engine), tools=[{**tool, "format": {**form, "definition": "start: nowhere"}}])


@pytest.mark.skipif(not knows_lark(), reason="llguidance is not installed")
async def test_the_fake_engine_finds_a_sentence_by_itself() -> None:
    form = {"type": "grammar", "syntax": "lark", "definition": 'start: "say " WORD "!"+\nWORD: /[b-z]+/'}
    response = await answered(service(FakeEngine()), tools=[{"type": "custom", "name": "say", "format": form}])
    assert [item.input for item in response.output if isinstance(item, CustomToolCall)] == ["say b!"]


async def test_what_was_insisted_on_is_counted(engine: FakeEngine) -> None:
    engine.says(*call(WRONG))
    engine.says(*call('{"city": "Rome", "days": "2"}'))
    made = Service(engine, terms=Terms(stores=False))
    await answered(made.responses, tools=[WEATHER])
    for _ in range(3):
        engine.says(Text("No."))
    with pytest.raises(AntiphonError):
        await answered(made.responses, tools=[TIME], tool_choice="required")
    text = made.metrics.text().decode()
    for line in (
        'antiphon_insist_total{reason="arguments",outcome="asked_again"} 1',
        'antiphon_insist_total{reason="arguments",outcome="mended"} 1',
        'antiphon_insist_total{reason="no_call",outcome="asked_again"} 2',
        'antiphon_insist_total{reason="no_call",outcome="failed"} 1',
    ):
        assert line in text


async def test_a_seed_is_another_one_the_next_time(engine: FakeEngine) -> None:
    engine.says(*call(WRONG))
    engine.says(*call(RIGHT))
    await answered(service(engine), tools=[WEATHER], seed=7)
    assert [work.sampling.seed for work in engine.seen] == [7, 8]


async def test_a_stored_response_is_kept_as_it_was_told(engine: FakeEngine) -> None:
    engine.says(Text("Let me see."), *call(WRONG))
    engine.says(*call(RIGHT))
    async with serving(engine) as made:
        response = await answered(made.responses, tools=[WEATHER])
        assert await made.stored(response.id) == response
        assert [item.arguments for item in calls_of(response)] == [RIGHT]


async def test_a_first_chunk_may_hold_all_of_it(engine: FakeEngine) -> None:
    engine.says(Chunk(text='{"age": 3}'))
    assert text_of(await answered(service(engine), text={"format": FORM})) == '{"age": 3}'


class Raw(FakeEngine):
    """A model whose words we read, on an engine that knows schemas and nothing else."""

    def __init__(self) -> None:
        super().__init__(FakeSettings(level="text"))


class Free(Raw):
    """One that is held to nothing."""

    async def capabilities(self, model: str) -> Capabilities:
        able = await super().capabilities(model)
        return replace(able, honours=able.honours - {"text.format"})


def hermes(arguments: str, name: str = "weather") -> Text:
    return Text(f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>')


@pytest.mark.shows("D.12", "D.13")
@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
async def test_a_model_that_is_held_to_a_list_of_calls_calls(choice: Any) -> None:
    response = await answered(service(Raw()), tools=[WEATHER, TIME], tool_choice=choice)
    (made,) = calls_of(response)
    assert (made.name, json.loads(made.arguments)) == ("weather", {"city": "", "days": 0})


@pytest.mark.shows("D.11", "D.13")
async def test_a_raw_models_wrong_call_is_asked_for_again() -> None:
    engine = Free()
    engine.says(Text("Let me see.\n"), hermes(WRONG))
    engine.says(hermes(RIGHT))
    response = await answered(service(engine), tools=[WEATHER])
    assert [item.arguments for item in calls_of(response)] == [RIGHT]
    prompt = engine.seen[-1].prompt
    assert isinstance(prompt, TextPrompt)
    assert "days" in "".join(segment.text for segment in prompt.segments if not segment.control)


@pytest.mark.shows("D.10")
@pytest.mark.parametrize(
    ("said", "told"),
    [
        (['{"age": 3}'], '{"age": 3}'),
        (['```json\n{"age": 3}\n```'], '{"age": 3}'),
        (['{"age": "3"}'], '{"age":3}'),
        (["He is three.", '{"age": 3}'], '{"age": 3}'),
    ],
)
async def test_json_beside_tools_is_held_back_until_it_is_right(said: list[str], told: str) -> None:
    engine = Raw()
    for text in said:
        engine.says(*[Text(piece) for piece in (text[:4], text[4:])])
    response = await answered(service(engine), tools=[TIME], text={"format": FORM})
    assert text_of(response) == told
    prompt = engine.seen[0].prompt
    assert isinstance(prompt, TextPrompt)
    assert "JSON schema" in "".join([segment.text for segment in prompt.segments])


@pytest.mark.shows("D.10")
async def test_who_will_not_answer_in_the_form_fails_the_response() -> None:
    engine = Raw()
    for _ in range(3):
        engine.says(Text("He is three."))
    events = await streamed(service(engine), tools=[TIME], text={"format": FORM})
    last: Any = events[-1]
    assert last.response.error.code == "invalid_output"
    assert last.response.output == []


async def test_a_call_may_stand_instead_of_the_form() -> None:
    engine = Raw()
    engine.says(Text("Let me see.\n"), hermes("{}", "time"))
    response = await answered(service(engine), tools=[TIME], text={"format": FORM})
    assert [type(item) for item in response.output] == [FunctionCall]

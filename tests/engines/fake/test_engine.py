"""The fake engine at chat level: automatic answers, tool calls, schemas, limits, logprobs, counts and filler text.

Covers `engines/fake/answer.py`.
"""

import json
import time

import pytest

from antiphon.core.prompt import JsonObject, JsonSchema, Sampling, TokenCounts
from antiphon.engines.base import Engine
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import ContextTooLong, InvalidValue, StartupError
from tests.engines.fake.generation import (
    TIME,
    WEATHER,
    GenerationResult,
    chat_prompt,
    make_request,
    run_generation,
    tool_message,
    user_message,
)

pytestmark = pytest.mark.anyio

CITY_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 2}, "height": {"type": ["number", "null"]}},
    "required": ["name", "height"],
    "additionalProperties": False,
}


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


def test_the_fake_engine_implements_the_engine_protocol() -> None:
    engine: Engine = FakeEngine()
    assert engine.name == "fake"


@pytest.mark.shows("C.12")
async def test_the_engine_serves_any_model_and_lists_one(engine: FakeEngine) -> None:
    await engine.open()
    assert engine.serves("gpt-oss-120b")
    assert [model.id for model in engine.models()] == ["fake"]
    assert engine.is_healthy()
    await engine.close()


@pytest.mark.shows("C.12")
async def test_the_answer_repeats_the_last_user_text_in_small_chunks(engine: FakeEngine) -> None:
    result = await run_generation(engine, chat_prompt("first", {"role": "assistant", "content": "no"}, "hello there"))
    assert result.text == "You said: hello there"
    assert result.finish == "stop"
    assert len(result.lists) > 5
    assert all(len(chunks) == 1 and len(chunks[0].text) <= 4 for chunks in result.lists)


async def test_images_and_files_are_mentioned(engine: FakeEngine) -> None:
    parts = [
        {"type": "text", "text": "what is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:,"}},
        {"type": "file", "file": {"file_id": "file_1"}},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
    ]
    result = await run_generation(engine, chat_prompt(user_message(parts)))
    assert result.text == "You said: what is this? [image] [file a.pdf] [file] [audio]"


async def test_a_prompt_without_user_text_is_answered(engine: FakeEngine) -> None:
    assert (await run_generation(engine, chat_prompt({"role": "system", "content": "Be brief."}))).text == "You said: "


@pytest.mark.shows("C.13")
async def test_the_first_tool_is_called_with_the_smallest_arguments(engine: FakeEngine) -> None:
    result = await run_generation(engine, chat_prompt("weather?", tools=(WEATHER, TIME)))
    assert result.calls == {0: ("get_weather", '{"city":"","days":2}')}
    assert (result.text, result.finish) == ("", "tool_calls")
    assert result.chunks[0].calls[0].name == "get_weather"
    assert len(result.lists) > 4


async def test_a_tool_without_parameters_gets_an_empty_object(engine: FakeEngine) -> None:
    assert (await run_generation(engine, chat_prompt("?", tools=(TIME,)))).calls == {0: ("get_time", "{}")}


async def test_a_custom_tool_gets_an_input(engine: FakeEngine) -> None:
    result = await run_generation(engine, chat_prompt("?", tools=({"type": "custom", "custom": {"name": "sql"}},)))
    assert result.calls == {0: ("sql", '{"input":""}')}


async def test_tools_of_other_kinds_are_not_called(engine: FakeEngine) -> None:
    assert (await run_generation(engine, chat_prompt("hi", tools=({"type": "web_search"},)))).text == "You said: hi"


async def test_tool_outputs_are_quoted(engine: FakeEngine) -> None:
    messages = (user_message("weather?"), tool_message("sunny"), tool_message([{"type": "text", "text": "and warm"}]))
    result = await run_generation(engine, chat_prompt(*messages, tools=(WEATHER,)))
    assert result.text == "The tool said: sunny and warm"
    assert result.finish == "stop"


async def test_only_tool_outputs_at_the_end_are_quoted(engine: FakeEngine) -> None:
    result = await run_generation(
        engine, chat_prompt(user_message("weather?"), tool_message("sunny"), user_message("and now?"), tools=(WEATHER,))
    )
    assert result.calls


@pytest.mark.shows("C.13")
async def test_a_schema_is_answered_with_the_smallest_instance(engine: FakeEngine) -> None:
    result = await run_generation(engine, make_request("where?", constraint=JsonSchema(CITY_SCHEMA)))
    assert json.loads(result.text) == {"name": "xx", "height": 0}


async def test_json_object_mode_is_answered_with_an_empty_object(engine: FakeEngine) -> None:
    assert (await run_generation(engine, make_request("where?", constraint=JsonObject()))).text == "{}"


async def test_an_unsatisfiable_schema_is_rejected(engine: FakeEngine) -> None:
    impossible = JsonSchema({"type": "string", "minLength": 2, "maxLength": 1})
    with pytest.raises(InvalidValue, match="no valid instance"):
        await run_generation(engine, make_request("?", constraint=impossible))
    assert engine.running == 0


async def test_a_schema_takes_precedence_over_tools(engine: FakeEngine) -> None:
    result = await run_generation(
        engine, make_request(chat_prompt("?", tools=(WEATHER,)), constraint=JsonSchema(CITY_SCHEMA))
    )
    assert not result.calls
    assert json.loads(result.text)


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "function": {"name": "get_time"}},
        {"type": "function", "name": "get_time"},
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [TIME]}},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_time"}]},
    ],
)
async def test_a_forced_tool_takes_precedence_over_a_schema(engine: FakeEngine, choice: dict[str, object]) -> None:
    prompt = chat_prompt("?", tools=(WEATHER, TIME), tool_choice=choice)
    assert (await run_generation(engine, make_request(prompt, constraint=JsonSchema(CITY_SCHEMA)))).calls == {
        0: ("get_time", "{}")
    }


async def test_tool_choice_required_calls_the_first_tool_even_after_an_output(engine: FakeEngine) -> None:
    prompt = chat_prompt(user_message("?"), tool_message("sunny"), tools=(TIME, WEATHER), tool_choice="required")
    assert (await run_generation(engine, make_request(prompt, constraint=JsonSchema(CITY_SCHEMA)))).calls == {
        0: ("get_time", "{}")
    }


async def test_allowed_tools_in_mode_auto_narrow_the_choice(engine: FakeEngine) -> None:
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [TIME]}}
    assert (await run_generation(engine, chat_prompt("?", tools=(WEATHER, TIME), tool_choice=choice))).calls == {
        0: ("get_time", "{}")
    }
    constrained = make_request(chat_prompt("?", tools=(WEATHER, TIME), tool_choice=choice), constraint=JsonObject())
    assert (await run_generation(engine, constrained)).text == "{}"


async def test_tool_choice_none_calls_no_tool(engine: FakeEngine) -> None:
    assert (
        await run_generation(engine, chat_prompt("hi", tools=(WEATHER,), tool_choice="none"))
    ).text == "You said: hi"


@pytest.mark.shows("C.13")
async def test_reasoning_precedes_the_answer_and_grows_with_the_effort(engine: FakeEngine) -> None:
    answers = [await run_generation(engine, make_request("hi", effort=effort)) for effort in ("low", "high")]
    for result in answers:
        kinds = ["thought" if chunk.reasoning else "text" for chunk in result.chunks[:-1]]
        assert kinds == sorted(kinds, reverse=True)
        assert result.text == "You said: hi"
        assert result.counts.reasoning_tokens == kinds.count("thought")
    assert len(answers[0].reasoning) < len(answers[1].reasoning)


@pytest.mark.parametrize("effort", [None, "none"])
async def test_no_effort_means_no_reasoning(engine: FakeEngine, effort: str | None) -> None:
    result = await run_generation(engine, make_request("hi", effort=effort))
    assert result.reasoning == ""
    assert result.counts.reasoning_tokens == 0


async def test_enable_thinking_overrides_the_effort(engine: FakeEngine) -> None:
    assert (await run_generation(engine, chat_prompt("hi", template_kwargs={"enable_thinking": True}))).reasoning
    refused = make_request(chat_prompt("hi", template_kwargs={"enable_thinking": False}), effort="high")
    assert not (await run_generation(engine, refused)).reasoning


async def test_reasoning_precedes_calls_and_schema_instances(engine: FakeEngine) -> None:
    called = await run_generation(engine, make_request(chat_prompt("?", tools=(TIME,)), effort="low"))
    assert called.chunks[0].reasoning
    assert called.calls
    constrained = await run_generation(engine, make_request("?", constraint=JsonObject(), effort="low"))
    assert constrained.chunks[0].reasoning
    assert constrained.text == "{}"


async def test_max_tokens_cuts_text_reasoning_and_calls(engine: FakeEngine) -> None:
    for request in (
        make_request("a longer text", sampling=Sampling(max_tokens=2)),
        make_request("hi", effort="max", sampling=Sampling(max_tokens=2)),
        make_request(chat_prompt("?", tools=(WEATHER,)), sampling=Sampling(max_tokens=2)),
    ):
        result = await run_generation(engine, request)
        assert (result.finish, result.counts.output_tokens, len(result.chunks)) == ("length", 2, 3)


async def test_an_answer_that_just_fits_is_not_cut(engine: FakeEngine) -> None:
    full = await run_generation(engine, "hi")
    result = await run_generation(engine, make_request("hi", sampling=Sampling(max_tokens=full.counts.output_tokens)))
    assert (result.text, result.finish) == (full.text, "stop")


@pytest.mark.parametrize(
    ("stop", "included", "text"),
    [
        (("b",), False, "You said: a "),
        (("b",), True, "You said: a b"),
        (("z", "c", "b c"), False, "You said: a "),
        (("c", "b c"), True, "You said: a b c"),
        (("x",), False, "You said: a b c d"),
    ],
)
@pytest.mark.shows("A3.9")
async def test_a_stop_string_ends_the_answer(
    engine: FakeEngine, stop: tuple[str, ...], included: bool, text: str
) -> None:
    sampling = Sampling(stop=stop, include_stop_str_in_output=included)
    result = await run_generation(engine, make_request("a b c d", sampling=sampling))
    assert (result.text, result.finish) == (text, "stop")


@pytest.mark.shows("A3.10")
async def test_ignore_eos_generates_up_to_the_limit(engine: FakeEngine) -> None:
    result = await run_generation(engine, make_request("hi", sampling=Sampling(ignore_eos=True, max_tokens=50)))
    assert result.text.startswith("You said: hi")
    assert (result.counts.output_tokens, result.finish) == (50, "length")


@pytest.mark.shows("A.63")
async def test_logprobs_belong_to_the_tokens_of_the_text(engine: FakeEngine) -> None:
    sampling = Sampling(logprobs=3)
    result = await run_generation(engine, make_request("hällo 🌍", effort="low", sampling=sampling))
    logprobs = [logprob for chunk in result.chunks for logprob in chunk.logprobs]
    assert "".join(logprob.token for logprob in logprobs) == result.text
    for logprob in logprobs:
        assert bytes(logprob.bytes).decode() == logprob.token
        chances = [top.logprob for top in logprob.top_logprobs]
        assert chances == sorted(chances, reverse=True)
        assert logprob.top_logprobs[0].token == logprob.token
        assert len({top.token for top in logprob.top_logprobs}) == 3
        assert max(chances) < 0
    again = await run_generation(engine, make_request("hällo 🌍", effort="low", sampling=sampling))
    assert [chunk.logprobs for chunk in again.chunks] == [chunk.logprobs for chunk in result.chunks]


async def test_zero_logprobs_returns_no_alternatives(engine: FakeEngine) -> None:
    result = await run_generation(engine, make_request("hi", sampling=Sampling(logprobs=0)))
    assert all(chunk.logprobs[0].top_logprobs == [] for chunk in result.chunks[:-1])


@pytest.mark.shows("A.63")
async def test_twenty_alternatives_all_differ(engine: FakeEngine) -> None:
    result = await run_generation(engine, make_request("the fox and the dog", sampling=Sampling(logprobs=20)))
    for chunk in result.chunks[:-1]:
        assert len({top.token for top in chunk.logprobs[0].top_logprobs}) == 20


async def test_usage_equals_the_token_count_and_the_produced_tokens(engine: FakeEngine) -> None:
    prompt = chat_prompt({"role": "system", "content": "Be brief."}, "hello", tools=(TIME,), tool_choice="none")
    result = await run_generation(engine, prompt)
    assert result.counts.input_tokens == await engine.count_tokens("any", prompt) > 10
    assert result.counts.output_tokens == len(result.chunks) - 1
    assert result.chunks[-1].counts is result.counts
    assert [chunk.counts for chunk in result.chunks[:-1]] == [None] * (len(result.chunks) - 1)


async def test_calls_and_tools_are_counted(engine: FakeEngine) -> None:
    call = {"id": "call_1", "function": {"name": "f", "arguments": "{}"}}
    without = await engine.count_tokens("any", chat_prompt("hi"))
    assert (
        await engine.count_tokens(
            "any", chat_prompt("hi", {"role": "assistant", "content": None, "tool_calls": [call]})
        )
        > without
    )
    assert await engine.count_tokens("any", chat_prompt("hi", tools=(WEATHER,))) > without


async def test_a_second_turn_finds_the_first_in_the_cache(engine: FakeEngine) -> None:
    first = await run_generation(engine, chat_prompt("a question that is long enough"))
    assert first.counts.cached_tokens == 0
    second = await run_generation(
        engine, chat_prompt("a question that is long enough", {"role": "assistant", "content": "x"}, "more")
    )
    assert first.counts.input_tokens - 8 <= second.counts.cached_tokens < second.counts.input_tokens
    other = await run_generation(engine, chat_prompt("something else altogether, as long as it was"))
    assert other.counts.cached_tokens < 8


async def test_a_tool_call_keeps_the_cached_prefix(engine: FakeEngine) -> None:
    call = {"id": "call_1", "function": {"name": "a_function_with_a_long_name", "arguments": "{}"}}
    turns = (user_message("?"), {"role": "assistant", "content": None, "tool_calls": [call]}, tool_message("sunny"))
    first = await run_generation(engine, chat_prompt(*turns))
    second = await run_generation(
        engine, chat_prompt(*turns, {"role": "assistant", "content": "It is."}, user_message("thanks"))
    )
    assert second.counts.cached_tokens >= first.counts.input_tokens - 8


async def test_the_last_token_is_never_cached(engine: FakeEngine) -> None:
    counts = [(await run_generation(engine, "the same")).counts for _ in range(2)]
    assert counts[1].cached_tokens == counts[1].input_tokens - 1


async def test_salts_separate_the_caches(engine: FakeEngine) -> None:
    await run_generation(engine, make_request("the same question as before", salt="a"))
    assert (
        await run_generation(engine, make_request("the same question as before", salt="b"))
    ).counts.cached_tokens == 0


async def test_prompt_and_answer_share_the_context() -> None:
    engine = FakeEngine(FakeSettings(context=40))
    result = await run_generation(engine, "x" * 60)
    assert result.finish == "length"
    assert result.counts.input_tokens + result.counts.output_tokens == 40
    with pytest.raises(ContextTooLong, match="40"):
        await run_generation(engine, "x" * 400)


async def test_capabilities_depend_on_the_level() -> None:
    chat_capabilities = await FakeEngine().capabilities("any")
    assert {
        "tools",
        "stop",
        "text.format",
        "reasoning.effort",
        "top_logprobs",
        "n",
        "input_image",
    } <= chat_capabilities.supported_fields
    assert not {"best_of", "skip_special_tokens"} & chat_capabilities.supported_fields
    assert (
        chat_capabilities.level,
        chat_capabilities.context,
        chat_capabilities.slots,
        chat_capabilities.can_count_tokens,
    ) == ("chat", 32_768, None, True)
    text_capabilities = await FakeEngine(FakeSettings(level="text")).capabilities("any")
    assert not {"tools", "input_image"} & text_capabilities.supported_fields
    assert text_capabilities.template is not None


async def test_filler_text_has_exactly_the_configured_number_of_tokens() -> None:
    engine = FakeEngine(FakeSettings(tokens=500, joined=8))
    result = await run_generation(engine, "hi")
    assert result.counts == TokenCounts(input_tokens=result.counts.input_tokens, output_tokens=500)
    assert [len(chunks) for chunks in result.lists] == [8] * 62 + [4, 1]
    assert len(set(result.text.split())) > 40
    assert all(one.text != other.text for one, other in zip(result.chunks, result.chunks[1:], strict=False))
    assert (
        await run_generation(engine, make_request("hi", sampling=Sampling(max_tokens=20)))
    ).counts.output_tokens == 20
    assert (await run_generation(engine, make_request("hi", sampling=Sampling(stop=("fox",))))).text in result.text
    assert (await run_generation(engine, make_request("hi", sampling=Sampling(logprobs=1)))).text == result.text
    assert (await run_generation(engine, make_request("hi", effort="low"))).reasoning


async def test_filler_text_that_exceeds_the_context_fails_at_startup() -> None:
    with pytest.raises(StartupError, match="500 tokens"):
        await FakeEngine(FakeSettings(tokens=500, context=500)).open()


async def test_the_token_rate_is_honoured() -> None:
    timer = time.monotonic
    started = timer()
    result: GenerationResult = await run_generation(FakeEngine(FakeSettings(tokens=20, rate=1000.0, joined=2)), "hi")
    assert timer() - started >= 0.019
    assert result.counts.output_tokens == 20


async def test_the_first_chunk_comes_after_the_delay() -> None:
    timer = time.monotonic
    started = timer()
    await run_generation(FakeEngine(FakeSettings(delay=0.02)), "hi")
    assert timer() - started >= 0.019

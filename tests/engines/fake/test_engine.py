import json
import time

import pytest

from antiphon.core.prompt import Counts, JsonObject, JsonSchema, Sampling
from antiphon.engines.base import Engine
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import ContextTooLong, InvalidValue, StartupError
from tests.engines.fake.generation import TIME, WEATHER, Said, ask, chat, tool, user, work

pytestmark = pytest.mark.anyio

PLACE = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 2}, "height": {"type": ["number", "null"]}},
    "required": ["name", "height"],
    "additionalProperties": False,
}


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


def test_it_is_an_engine() -> None:
    engine: Engine = FakeEngine()
    assert engine.name == "fake"


@pytest.mark.shows("C.12")
async def test_it_serves_any_model_and_lists_one(engine: FakeEngine) -> None:
    await engine.open()
    assert engine.serves("gpt-oss-120b")
    assert [model.id for model in engine.models()] == ["fake"]
    assert engine.healthy()
    await engine.close()


@pytest.mark.shows("C.12")
async def test_it_repeats_the_last_user_text_in_small_chunks(engine: FakeEngine) -> None:
    said = await ask(engine, chat("first", {"role": "assistant", "content": "no"}, "hello there"))
    assert said.text == "You said: hello there"
    assert said.finish == "stop"
    assert len(said.lists) > 5
    assert all(len(chunks) == 1 and len(chunks[0].text) <= 4 for chunks in said.lists)


@pytest.mark.shows("C.26")
async def test_images_and_files_are_mentioned(engine: FakeEngine) -> None:
    parts = [
        {"type": "text", "text": "what is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:,"}},
        {"type": "file", "file": {"file_id": "file_1"}},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
    ]
    said = await ask(engine, chat(user(parts)))
    assert said.text == "You said: what is this? [image] [file a.pdf] [file] [audio]"


async def test_without_anything_said_it_still_answers(engine: FakeEngine) -> None:
    assert (await ask(engine, chat({"role": "system", "content": "Be brief."}))).text == "You said: "


@pytest.mark.shows("C.13")
async def test_it_calls_the_first_tool_with_the_smallest_arguments(engine: FakeEngine) -> None:
    said = await ask(engine, chat("weather?", tools=(WEATHER, TIME)))
    assert said.calls == {0: ("get_weather", '{"city":"","days":2}')}
    assert (said.text, said.finish) == ("", "tool_calls")
    assert said.chunks[0].calls[0].name == "get_weather"
    assert len(said.lists) > 4


async def test_a_tool_without_parameters_gets_an_empty_object(engine: FakeEngine) -> None:
    assert (await ask(engine, chat("?", tools=(TIME,)))).calls == {0: ("get_time", "{}")}


async def test_a_custom_tool_gets_an_input(engine: FakeEngine) -> None:
    said = await ask(engine, chat("?", tools=({"type": "custom", "custom": {"name": "sql"}},)))
    assert said.calls == {0: ("sql", '{"input":""}')}


async def test_tools_of_other_kinds_are_left_alone(engine: FakeEngine) -> None:
    assert (await ask(engine, chat("hi", tools=({"type": "web_search"},)))).text == "You said: hi"


async def test_after_tool_outputs_it_quotes_them(engine: FakeEngine) -> None:
    messages = (user("weather?"), tool("sunny"), tool([{"type": "text", "text": "and warm"}]))
    said = await ask(engine, chat(*messages, tools=(WEATHER,)))
    assert said.text == "The tool said: sunny and warm"
    assert said.finish == "stop"


async def test_an_output_that_is_not_at_the_end_is_past(engine: FakeEngine) -> None:
    said = await ask(engine, chat(user("weather?"), tool("sunny"), user("and now?"), tools=(WEATHER,)))
    assert said.calls


@pytest.mark.shows("C.13")
async def test_a_schema_is_answered_with_the_smallest_instance(engine: FakeEngine) -> None:
    said = await ask(engine, work("where?", constraint=JsonSchema(PLACE)))
    assert json.loads(said.text) == {"name": "xx", "height": 0}


async def test_a_json_object_is_answered_with_an_empty_one(engine: FakeEngine) -> None:
    assert (await ask(engine, work("where?", constraint=JsonObject()))).text == "{}"


async def test_a_schema_without_instances_is_an_error_that_says_so(engine: FakeEngine) -> None:
    impossible = JsonSchema({"type": "string", "minLength": 2, "maxLength": 1})
    with pytest.raises(InvalidValue, match="no valid instance"):
        await ask(engine, work("?", constraint=impossible))
    assert engine.running == 0


async def test_a_schema_comes_before_tools(engine: FakeEngine) -> None:
    said = await ask(engine, work(chat("?", tools=(WEATHER,)), constraint=JsonSchema(PLACE)))
    assert not said.calls
    assert json.loads(said.text)


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "function": {"name": "get_time"}},
        {"type": "function", "name": "get_time"},
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [TIME]}},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_time"}]},
    ],
)
async def test_a_forced_tool_comes_before_a_schema(engine: FakeEngine, choice: dict[str, object]) -> None:
    prompt = chat("?", tools=(WEATHER, TIME), tool_choice=choice)
    assert (await ask(engine, work(prompt, constraint=JsonSchema(PLACE)))).calls == {0: ("get_time", "{}")}


async def test_required_calls_the_first_tool_even_after_an_output(engine: FakeEngine) -> None:
    prompt = chat(user("?"), tool("sunny"), tools=(TIME, WEATHER), tool_choice="required")
    assert (await ask(engine, work(prompt, constraint=JsonSchema(PLACE)))).calls == {0: ("get_time", "{}")}


async def test_allowed_tools_in_mode_auto_narrow_the_choice(engine: FakeEngine) -> None:
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [TIME]}}
    assert (await ask(engine, chat("?", tools=(WEATHER, TIME), tool_choice=choice))).calls == {0: ("get_time", "{}")}
    constrained = work(chat("?", tools=(WEATHER, TIME), tool_choice=choice), constraint=JsonObject())
    assert (await ask(engine, constrained)).text == "{}"


async def test_tool_choice_none_leaves_the_tools_alone(engine: FakeEngine) -> None:
    assert (await ask(engine, chat("hi", tools=(WEATHER,), tool_choice="none"))).text == "You said: hi"


@pytest.mark.shows("C.13")
async def test_with_an_effort_it_thinks_first_and_longer_with_more(engine: FakeEngine) -> None:
    answers = [await ask(engine, work("hi", effort=effort)) for effort in ("low", "high")]
    for said in answers:
        kinds = ["thought" if chunk.thought else "text" for chunk in said.chunks[:-1]]
        assert kinds == sorted(kinds, reverse=True)
        assert said.text == "You said: hi"
        assert said.counts.reasoning_tokens == kinds.count("thought")
    assert len(answers[0].thought) < len(answers[1].thought)


@pytest.mark.parametrize("effort", [None, "none"])
async def test_without_an_effort_it_does_not_think(engine: FakeEngine, effort: str | None) -> None:
    said = await ask(engine, work("hi", effort=effort))
    assert said.thought == ""
    assert said.counts.reasoning_tokens == 0


async def test_enable_thinking_decides_where_it_is_given(engine: FakeEngine) -> None:
    assert (await ask(engine, chat("hi", template_kwargs={"enable_thinking": True}))).thought
    refused = work(chat("hi", template_kwargs={"enable_thinking": False}), effort="high")
    assert not (await ask(engine, refused)).thought


async def test_it_thinks_before_calls_and_schemas_too(engine: FakeEngine) -> None:
    called = await ask(engine, work(chat("?", tools=(TIME,)), effort="low"))
    assert called.chunks[0].thought
    assert called.calls
    constrained = await ask(engine, work("?", constraint=JsonObject(), effort="low"))
    assert constrained.chunks[0].thought
    assert constrained.text == "{}"


async def test_max_tokens_cuts_text_thoughts_and_calls(engine: FakeEngine) -> None:
    for asked in (
        work("a longer text", sampling=Sampling(max_tokens=2)),
        work("hi", effort="max", sampling=Sampling(max_tokens=2)),
        work(chat("?", tools=(WEATHER,)), sampling=Sampling(max_tokens=2)),
    ):
        said = await ask(engine, asked)
        assert (said.finish, said.counts.output_tokens, len(said.chunks)) == ("length", 2, 3)


async def test_an_answer_that_just_fits_is_not_cut(engine: FakeEngine) -> None:
    whole = await ask(engine, "hi")
    said = await ask(engine, work("hi", sampling=Sampling(max_tokens=whole.counts.output_tokens)))
    assert (said.text, said.finish) == (whole.text, "stop")


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
async def test_stop_ends_the_answer(engine: FakeEngine, stop: tuple[str, ...], included: bool, text: str) -> None:
    sampling = Sampling(stop=stop, include_stop_str_in_output=included)
    said = await ask(engine, work("a b c d", sampling=sampling))
    assert (said.text, said.finish) == (text, "stop")


@pytest.mark.shows("A3.10")
async def test_ignore_eos_goes_on_to_the_limit(engine: FakeEngine) -> None:
    said = await ask(engine, work("hi", sampling=Sampling(ignore_eos=True, max_tokens=50)))
    assert said.text.startswith("You said: hi")
    assert (said.counts.output_tokens, said.finish) == (50, "length")


@pytest.mark.shows("A.63")
async def test_logprobs_belong_to_the_tokens_of_the_text(engine: FakeEngine) -> None:
    sampling = Sampling(logprobs=3)
    said = await ask(engine, work("hällo 🌍", effort="low", sampling=sampling))
    logprobs = [logprob for chunk in said.chunks for logprob in chunk.logprobs]
    assert "".join(logprob.token for logprob in logprobs) == said.text
    for logprob in logprobs:
        assert bytes(logprob.bytes).decode() == logprob.token
        chances = [top.logprob for top in logprob.top_logprobs]
        assert chances == sorted(chances, reverse=True)
        assert logprob.top_logprobs[0].token == logprob.token
        assert len({top.token for top in logprob.top_logprobs}) == 3
        assert max(chances) < 0
    again = await ask(engine, work("hällo 🌍", effort="low", sampling=sampling))
    assert [chunk.logprobs for chunk in again.chunks] == [chunk.logprobs for chunk in said.chunks]


async def test_logprobs_without_alternatives(engine: FakeEngine) -> None:
    said = await ask(engine, work("hi", sampling=Sampling(logprobs=0)))
    assert all(chunk.logprobs[0].top_logprobs == [] for chunk in said.chunks[:-1])


@pytest.mark.shows("A.63")
async def test_twenty_alternatives_all_differ(engine: FakeEngine) -> None:
    said = await ask(engine, work("the fox and the dog", sampling=Sampling(logprobs=20)))
    for chunk in said.chunks[:-1]:
        assert len({top.token for top in chunk.logprobs[0].top_logprobs}) == 20


async def test_usage_is_what_count_says_and_what_was_produced(engine: FakeEngine) -> None:
    prompt = chat({"role": "system", "content": "Be brief."}, "hello", tools=(TIME,), tool_choice="none")
    said = await ask(engine, prompt)
    assert said.counts.input_tokens == await engine.count("any", prompt) > 10
    assert said.counts.output_tokens == len(said.chunks) - 1
    assert said.chunks[-1].counts is said.counts
    assert [chunk.counts for chunk in said.chunks[:-1]] == [None] * (len(said.chunks) - 1)


async def test_calls_and_tools_count(engine: FakeEngine) -> None:
    call = {"id": "call_1", "function": {"name": "f", "arguments": "{}"}}
    without = await engine.count("any", chat("hi"))
    assert await engine.count("any", chat("hi", {"role": "assistant", "content": None, "tool_calls": [call]})) > without
    assert await engine.count("any", chat("hi", tools=(WEATHER,))) > without


async def test_a_second_turn_finds_the_first_in_the_cache(engine: FakeEngine) -> None:
    first = await ask(engine, chat("a question that is long enough"))
    assert first.counts.cached_tokens == 0
    second = await ask(engine, chat("a question that is long enough", {"role": "assistant", "content": "x"}, "more"))
    assert first.counts.input_tokens - 8 <= second.counts.cached_tokens < second.counts.input_tokens
    other = await ask(engine, chat("something else altogether, as long as it was"))
    assert other.counts.cached_tokens < 8


async def test_a_call_stays_where_it_was_in_the_cache(engine: FakeEngine) -> None:
    call = {"id": "call_1", "function": {"name": "a_function_with_a_long_name", "arguments": "{}"}}
    turns = (user("?"), {"role": "assistant", "content": None, "tool_calls": [call]}, tool("sunny"))
    first = await ask(engine, chat(*turns))
    second = await ask(engine, chat(*turns, {"role": "assistant", "content": "It is."}, user("thanks")))
    assert second.counts.cached_tokens >= first.counts.input_tokens - 8


async def test_the_last_token_is_never_cached(engine: FakeEngine) -> None:
    counts = [(await ask(engine, "the same")).counts for _ in range(2)]
    assert counts[1].cached_tokens == counts[1].input_tokens - 1


async def test_salts_keep_caches_apart(engine: FakeEngine) -> None:
    await ask(engine, work("the same question as before", salt="a"))
    assert (await ask(engine, work("the same question as before", salt="b"))).counts.cached_tokens == 0


async def test_prompt_and_answer_share_the_context() -> None:
    engine = FakeEngine(FakeSettings(context=40))
    said = await ask(engine, "x" * 60)
    assert said.finish == "length"
    assert said.counts.input_tokens + said.counts.output_tokens == 40
    with pytest.raises(ContextTooLong, match="40"):
        await ask(engine, "x" * 400)


async def test_what_it_honours_depends_on_the_level() -> None:
    chatty = await FakeEngine().capabilities("any")
    assert {"tools", "stop", "text.format", "reasoning.effort", "top_logprobs", "n", "input_image"} <= chatty.honours
    assert not {"best_of", "skip_special_tokens"} & chatty.honours
    assert (chatty.prompt, chatty.context, chatty.slots, chatty.counts) == ("chat", 32_768, None, True)
    raw = await FakeEngine(FakeSettings(level="text")).capabilities("any")
    assert not {"tools", "input_image"} & raw.honours
    assert raw.template is not None


async def test_load_is_exactly_as_many_tokens_of_varied_words() -> None:
    engine = FakeEngine(FakeSettings(tokens=500, joined=8))
    said = await ask(engine, "hi")
    assert said.counts == Counts(input_tokens=said.counts.input_tokens, output_tokens=500)
    assert [len(chunks) for chunks in said.lists] == [8] * 62 + [4, 1]
    assert len(set(said.text.split())) > 40
    assert all(one.text != other.text for one, other in zip(said.chunks, said.chunks[1:], strict=False))
    assert (await ask(engine, work("hi", sampling=Sampling(max_tokens=20)))).counts.output_tokens == 20
    assert (await ask(engine, work("hi", sampling=Sampling(stop=("fox",))))).text in said.text
    assert (await ask(engine, work("hi", sampling=Sampling(logprobs=1)))).text == said.text
    assert (await ask(engine, work("hi", effort="low"))).thought


async def test_load_that_does_not_fit_the_context_is_found_at_the_start() -> None:
    with pytest.raises(StartupError, match="500 tokens"):
        await FakeEngine(FakeSettings(tokens=500, context=500)).open()


async def test_the_rate_is_kept() -> None:
    timer = time.monotonic
    started = timer()
    said: Said = await ask(FakeEngine(FakeSettings(tokens=20, rate=1000.0, joined=2)), "hi")
    assert timer() - started >= 0.019
    assert said.counts.output_tokens == 20


async def test_the_first_chunk_comes_after_the_delay() -> None:
    timer = time.monotonic
    started = timer()
    await ask(FakeEngine(FakeSettings(delay=0.02)), "hi")
    assert timer() - started >= 0.019

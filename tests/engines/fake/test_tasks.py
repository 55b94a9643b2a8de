"""What the fake engine does beside generating, and how raw prompts and token numbers steer it."""

import asyncio
import math

import msgspec
import pytest

from antiphon.core.prompt import Extras, Grammar, Sampling, Segment, TextPrompt, TokenPrompt
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.engines.fake.tasks import DIMENSIONS, likeness, vector
from antiphon.engines.fake.tokens import Level, ids_of
from antiphon.errors import ContextTooLong, InvalidValue, UnsupportedParameter
from tests.engines.fake.generation import ask, chat, work

pytestmark = pytest.mark.anyio


def raw(text: str) -> TextPrompt:
    return TextPrompt((Segment(text, control=True),))


def at(level: Level, context: int | None = None) -> FakeEngine:
    return FakeEngine(FakeSettings(level=level, context=context))


def test_a_vector_is_one_long_the_same_every_time_and_near_to_its_like() -> None:
    assert vector("The sea.") == vector("the SEA")
    assert math.isclose(likeness(vector("the sea"), vector("the sea")), 1)
    assert likeness(vector("a cat on a mat"), vector("on a mat a cat lay")) > 0.7
    assert likeness(vector("a cat on a mat"), vector("parliament voted today")) < 0.5
    assert likeness(vector("a a a b"), vector("a")) > likeness(vector("a b"), vector("a"))
    for text in ("", "!?", "\ud800", "x"):
        assert math.isclose(likeness(vector(text), vector(text)), 1)
    assert len(vector("x")) == DIMENSIONS


async def test_inputs_are_counted_bounded_and_cut() -> None:
    engine = at("chat", context=4)
    assert (await engine.embed("m", ["x" * 16])).tokens == 4
    with pytest.raises(ContextTooLong):
        await engine.embed("m", ["x" * 17])
    cut = await engine.embed("m", ["ab cd ef gh ij kl"], truncate=2)
    assert (cut.tokens, cut.vectors) == (2, [vector("ab cd ef")])
    assert (await engine.embed("m", ["x" * 17], truncate=-1)).tokens == 4
    assert (await engine.embed("m", [ids_of("the")])).vectors == [vector("the")]
    for dimensions in (0, DIMENSIONS + 1):
        with pytest.raises(InvalidValue):
            await engine.embed("m", ["x"], dimensions)


async def test_tokens_have_numbers_at_token_level_alone() -> None:
    engine = at("tokens")
    tokens = await engine.tokenize("m", raw("<|im_start|>hé"))
    assert tokens == (1, *ids_of("hé"))
    assert await engine.detokenize("m", tokens) == "<|im_start|>hé"
    assert await engine.count("m", raw("<|im_start|>hé")) == len(tokens)
    for level in ("chat", "text"):
        other: FakeEngine = at(level)
        assert "tokenize" not in (await other.capabilities("m")).does
        with pytest.raises(UnsupportedParameter):
            await other.tokenize("m", raw("x"))
    with pytest.raises(UnsupportedParameter):
        await engine.tokenize("m", chat("x"))


@pytest.mark.parametrize("level", ["chat", "text", "tokens"])
async def test_a_raw_prompt_is_what_was_said_at_every_level(level: Level) -> None:
    engine = at(level)
    able = await engine.capabilities("m")
    assert {"text", "tokens"} <= able.takes | {able.prompt}
    assert (await ask(engine, raw("Once upon"))).text == "You said: Once upon"
    assert (await ask(engine, TokenPrompt(tuple(ids_of("Once upon"))))).text == "You said: Once upon"


@pytest.mark.parametrize("token", [0, 4, 15, 0xD800 + 16, 0x110000 + 16])
async def test_a_number_that_is_no_token_is_refused(token: int) -> None:
    with pytest.raises(InvalidValue):
        await ask(at("tokens"), TokenPrompt((token,)))


async def test_an_answer_is_a_sentence_of_a_regular_expression() -> None:
    assert (await ask(FakeEngine(), work("x", constraint=Grammar("regex", "[a-c]{3}|z{9}")))).text in (
        "aaa",
        "zzzzzzzzz",
    )
    able = await FakeEngine().capabilities("m")
    assert "grammar.regex" in able.honours
    assert not {"grammar.lark", "grammar.gbnf", "structural_tag"} & able.honours


async def test_at_least_so_many_tokens_are_said_and_no_stop_comes_before() -> None:
    short = await ask(FakeEngine(), "hi")
    assert short.counts.output_tokens == 3
    said = await ask(FakeEngine(), work("hi", sampling=Sampling(min_tokens=10)))
    assert (said.counts.output_tokens, said.text[:12]) == (10, "You said: hi")
    stopped = await ask(FakeEngine(), work("hi hi", sampling=Sampling(min_tokens=3, stop=("hi",))))
    assert stopped.text == "You said: hi "


async def test_more_than_fits_into_the_context_is_not_said_however_much_is_wanted() -> None:
    async with asyncio.timeout(30):
        said = await ask(FakeEngine(), work("hi", sampling=Sampling(min_tokens=2**31 - 1, max_tokens=20)))
    assert said.counts.output_tokens == 20


async def test_why_an_answer_stopped_is_told() -> None:
    said = await ask(FakeEngine(), work("one two", sampling=Sampling(stop=("two", "one two"))))
    assert (said.text, said.chunks[-1].extras) == ("You said: ", Extras(stop_reason="one two"))
    [stop] = ids_of("w")
    said = await ask(at("tokens"), work(raw("one two"), sampling=Sampling(stop_token_ids=(stop,))))
    assert (said.text, said.chunks[-1].extras) == ("You said: one t", Extras(stop_reason=stop))
    assert (await ask(FakeEngine(), "one")).chunks[-1].extras is None


async def test_the_numbers_of_the_prompt_are_told_to_who_wants_them() -> None:
    said = await ask(at("tokens"), work(raw("ab"), sampling=Sampling(return_token_ids=True)))
    assert said.chunks[-1].extras == Extras(prompt_token_ids=ids_of("ab"))


async def test_scores_and_rankings_are_in_vllms_shapes() -> None:
    engine = FakeEngine()
    pairs = b'{"text_1": ["a b", "c"], "text_2": ["a b", "d"]}'
    scored = msgspec.json.decode((await engine.relay("m", "score", pairs)).body)
    assert [each["score"] for each in scored["data"]] == [pytest.approx(1), likeness(vector("c"), vector("d"))]
    with pytest.raises(InvalidValue):
        await engine.relay("m", "score", b'{"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}')
    for deed in ("classify", "pooling", "translate"):
        with pytest.raises(UnsupportedParameter, match=f"does not {deed}"):
            await engine.relay("m", deed, b"{}")

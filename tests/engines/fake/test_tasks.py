"""The fake engine's tasks besides generation (embedding, tokenizing, scoring), and the effect of raw prompts, grammars
and token ids on generation.
"""

import asyncio
import math

import msgspec
import pytest

from antiphon.core.prompt import EngineExtras, Grammar, Sampling, Segment, TextPrompt, TokenPrompt
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.engines.fake.tasks import DIMENSIONS, cosine_similarity, embed_text
from antiphon.engines.fake.tokens import Level, encode_text
from antiphon.errors import ContextTooLong, InvalidValue, UnsupportedParameter
from antiphon.protocol.schemas.grammars import has_lark
from tests.engines.fake.generation import chat_prompt, make_request, run_generation

pytestmark = pytest.mark.anyio


def raw_prompt(text: str) -> TextPrompt:
    return TextPrompt((Segment(text, control=True),))


def make_engine(level: Level, context: int | None = None) -> FakeEngine:
    return FakeEngine(FakeSettings(level=level, context=context))


def test_vectors_are_normalised_deterministic_and_similar_for_similar_texts() -> None:
    assert embed_text("The sea.") == embed_text("the SEA")
    assert math.isclose(cosine_similarity(embed_text("the sea"), embed_text("the sea")), 1)
    assert cosine_similarity(embed_text("a cat on a mat"), embed_text("on a mat a cat lay")) > 0.7
    assert cosine_similarity(embed_text("a cat on a mat"), embed_text("parliament voted today")) < 0.5
    assert cosine_similarity(embed_text("a a a b"), embed_text("a")) > cosine_similarity(
        embed_text("a b"), embed_text("a")
    )
    for text in ("", "!?", "\ud800", "x"):
        assert math.isclose(cosine_similarity(embed_text(text), embed_text(text)), 1)
    assert len(embed_text("x")) == DIMENSIONS


async def test_embedding_inputs_are_counted_limited_and_truncated() -> None:
    engine = make_engine("chat", context=4)
    assert (await engine.embed("m", ["x" * 16])).tokens == 4
    with pytest.raises(ContextTooLong):
        await engine.embed("m", ["x" * 17])
    cut = await engine.embed("m", ["ab cd ef gh ij kl"], truncate=2)
    assert (cut.tokens, cut.vectors) == (2, [embed_text("ab cd ef")])
    assert (await engine.embed("m", ["x" * 17], truncate=-1)).tokens == 4
    assert (await engine.embed("m", [encode_text("the")])).vectors == [embed_text("the")]
    for dimensions in (0, DIMENSIONS + 1):
        with pytest.raises(InvalidValue):
            await engine.embed("m", ["x"], dimensions)


async def test_token_ids_exist_only_at_token_level() -> None:
    engine = make_engine("tokens")
    tokens = await engine.tokenize("m", raw_prompt("<|im_start|>hé"))
    assert tokens == (1, *encode_text("hé"))
    assert await engine.detokenize("m", tokens) == "<|im_start|>hé"
    assert await engine.count_tokens("m", raw_prompt("<|im_start|>hé")) == len(tokens)
    for level in ("chat", "text"):
        other: FakeEngine = make_engine(level)
        assert "tokenize" not in (await other.capabilities("m")).tasks
        with pytest.raises(UnsupportedParameter):
            await other.tokenize("m", raw_prompt("x"))
    with pytest.raises(UnsupportedParameter):
        await engine.tokenize("m", chat_prompt("x"))


@pytest.mark.parametrize("level", ["chat", "text", "tokens"])
async def test_a_raw_prompt_is_accepted_at_every_level(level: Level) -> None:
    engine = make_engine(level)
    capabilities = await engine.capabilities("m")
    assert {"text", "tokens"} <= capabilities.other_levels | {capabilities.level}
    assert (await run_generation(engine, raw_prompt("Once upon"))).text == "You said: Once upon"
    assert (await run_generation(engine, TokenPrompt(tuple(encode_text("Once upon"))))).text == "You said: Once upon"


@pytest.mark.parametrize("token", [0, 4, 15, 0xD800 + 16, 0x110000 + 16])
async def test_an_invalid_token_id_is_rejected(token: int) -> None:
    with pytest.raises(InvalidValue):
        await run_generation(make_engine("tokens"), TokenPrompt((token,)))


@pytest.mark.skipif(not has_lark(), reason="llguidance is not installed")
async def test_the_answer_matches_a_regular_expression() -> None:
    reply = await run_generation(FakeEngine(), make_request("x", constraint=Grammar("regex", "[a-c]{3}-[0-9]+")))
    assert reply.text == "aaa-0"
    capabilities = await FakeEngine().capabilities("m")
    assert "grammar.regex" in capabilities.supported_fields
    assert not {"grammar.lark", "grammar.gbnf", "structural_tag"} & capabilities.supported_fields


async def test_min_tokens_is_reached_and_delays_stop_strings() -> None:
    short = await run_generation(FakeEngine(), "hi")
    assert short.counts.output_tokens == 3
    result = await run_generation(FakeEngine(), make_request("hi", sampling=Sampling(min_tokens=10)))
    assert (result.counts.output_tokens, result.text[:12]) == (10, "You said: hi")
    stopped = await run_generation(FakeEngine(), make_request("hi hi", sampling=Sampling(min_tokens=3, stop=("hi",))))
    assert stopped.text == "You said: hi "


async def test_min_tokens_is_limited_by_max_tokens() -> None:
    async with asyncio.timeout(30):
        result = await run_generation(
            FakeEngine(), make_request("hi", sampling=Sampling(min_tokens=2**31 - 1, max_tokens=20))
        )
    assert result.counts.output_tokens == 20


async def test_the_stop_reason_is_reported() -> None:
    result = await run_generation(FakeEngine(), make_request("one two", sampling=Sampling(stop=("two", "one two"))))
    assert (result.text, result.chunks[-1].extras) == ("You said: ", EngineExtras(stop_reason="one two"))
    [stop] = encode_text("w")
    result = await run_generation(
        make_engine("tokens"), make_request(raw_prompt("one two"), sampling=Sampling(stop_token_ids=(stop,)))
    )
    assert (result.text, result.chunks[-1].extras) == ("You said: one t", EngineExtras(stop_reason=stop))
    assert (await run_generation(FakeEngine(), "one")).chunks[-1].extras is None


async def test_prompt_token_ids_are_returned_on_request() -> None:
    result = await run_generation(
        make_engine("tokens"), make_request(raw_prompt("ab"), sampling=Sampling(return_token_ids=True))
    )
    assert result.chunks[-1].extras == EngineExtras(prompt_token_ids=encode_text("ab"))


async def test_scores_have_the_shape_of_vllm() -> None:
    engine = FakeEngine()
    pairs = b'{"text_1": ["a b", "c"], "text_2": ["a b", "d"]}'
    scored = msgspec.json.decode((await engine.pass_through("m", "score", pairs)).body)
    assert [each["score"] for each in scored["data"]] == [
        pytest.approx(1),
        cosine_similarity(embed_text("c"), embed_text("d")),
    ]
    with pytest.raises(InvalidValue):
        await engine.pass_through("m", "score", b'{"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}')
    for task in ("classify", "pooling", "translate"):
        with pytest.raises(UnsupportedParameter, match=f"does not {task}"):
            await engine.pass_through("m", task, b"{}")

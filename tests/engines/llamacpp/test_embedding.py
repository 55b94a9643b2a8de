"""The embedded engine's embeddings, with the model that it fetches by itself, against those of another implementation.

minilm.json holds what transformers and torch made of the same weights: cosines of less than 0.999 would be a mistake in
the file that we make, in the tokens, or in the pooling.
"""

import array
import asyncio
import base64
import os
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest
from msgspec import Struct

from antiphon.config.xdg import cache_home
from antiphon.core.prompt import Segment, TextPrompt
from antiphon.engines.gguf import read_header
from antiphon.engines.llamacpp import embedding
from antiphon.engines.llamacpp.engine import LlamaCpp, LlamaCppSettings
from antiphon.engines.llamacpp.model_files import DEFAULT, EMBEDDING, fetch
from antiphon.errors import ContextTooLong, InvalidValue, StartupError, Unavailable, UnsupportedParameter
from tests.engines.gguf_files import PAIRS, gguf
from tests.engines.llamacpp.generation import ask, work

pytestmark = [pytest.mark.anyio, pytest.mark.needs("llamacpp"), pytest.mark.real_model, pytest.mark.timeout(400)]

CLS, SEP = 101, 102


class Known(Struct):
    text: str
    tokens: list[int]
    vector: str

    @property
    def numbers(self) -> list[float]:
        return array.array("f", base64.b64decode(self.vector)).tolist()


class Golden(Struct):
    made_by: str
    sentences: list[Known]


GOLDEN = msgspec.json.decode(Path(__file__).with_name("minilm.json").read_bytes(), type=Golden).sentences


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(left * right for left, right in zip(one, other, strict=True))


@pytest.fixture(scope="module")
def minilm() -> Path:
    return fetch(EMBEDDING, cache_home())


@pytest.fixture(scope="module")
async def engine(minilm: Path) -> AsyncIterator[LlamaCpp]:
    engine = LlamaCpp(LlamaCppSettings(model=(f"mini={minilm}",), context=128, slots=2))
    await engine.open()
    yield engine
    await engine.close()


async def vectors(engine: LlamaCpp, *texts: str) -> list[list[float]]:
    async with asyncio.timeout(60):
        return (await engine.embed("mini", texts)).vectors


async def test_the_header_tells_that_it_embeds(engine: LlamaCpp) -> None:
    able = await engine.capabilities("mini")
    assert (able.does, able.context, able.slots) == (embedding.DOES, 128, 2)


async def test_what_is_told_before_it_is_fetched_holds_afterwards(minilm: Path) -> None:
    unfetched = LlamaCpp(LlamaCppSettings(slots=2))
    assert await unfetched.capabilities(EMBEDDING.id) == embedding.able(512, 2)
    header = read_header(minilm)
    assert EMBEDDING.embeds is not None
    assert (header.context, header.width) == (EMBEDDING.embeds.context, EMBEDDING.embeds.dimensions)


@pytest.mark.shows("C.27")
async def test_vectors_are_those_of_the_reference(engine: LlamaCpp) -> None:
    async with asyncio.timeout(60):
        made = await engine.embed("mini", [known.text for known in GOLDEN])
    cosines = [cosine(vector, known.numbers) for vector, known in zip(made.vectors, GOLDEN, strict=True)]
    assert min(cosines) > 0.9999
    assert made.tokens == sum(len(known.tokens) for known in GOLDEN)


async def test_texts_become_the_tokens_of_the_reference(engine: LlamaCpp) -> None:
    for known in GOLDEN:
        prompt = TextPrompt((Segment(known.text, control=False),))
        assert [*await engine.tokenize("mini", prompt)] == known.tokens
        assert [*await engine.tokenize("mini", prompt, special=False)] == known.tokens[1:-1]
    assert await engine.detokenize("mini", GOLDEN[0].tokens[1:-1]) == " a man is eating food ."


async def test_what_means_the_same_is_nearer_than_what_does_not(engine: LlamaCpp) -> None:
    one, same, other = await vectors(
        engine, "How do I reset my password?", "I forgot my login and need a new one.", "The soup needs more salt."
    )
    assert cosine(one, same) > 0.5 > 0.2 > cosine(one, other)


async def test_control_tokens_in_a_text_stay_text(engine: LlamaCpp) -> None:
    tokens = await engine.tokenize("mini", TextPrompt((Segment("[CLS] x [SEP]", control=False),)))
    assert [tokens[0], tokens[-1]] == [CLS, SEP]
    assert not {CLS, SEP} & {*tokens[1:-1]}


async def test_numbers_of_tokens_are_taken_as_they_are(engine: LlamaCpp) -> None:
    made = await engine.embed("mini", [GOLDEN[0].tokens, GOLDEN[0].tokens[1:-1]])
    assert cosine(made.vectors[0], GOLDEN[0].numbers) > 0.9999 > cosine(made.vectors[1], GOLDEN[0].numbers)
    assert made.tokens == 2 * len(GOLDEN[0].tokens) - 2


async def test_many_texts_are_computed_as_each_by_itself(engine: LlamaCpp) -> None:
    texts = [f"{known.text} {number}" for number in range(5) for known in GOLDEN]
    together = await vectors(engine, *texts)
    for at in (0, 7, len(texts) - 1):
        [alone] = await vectors(engine, texts[at])
        assert cosine(together[at], alone) > 0.9999


async def test_what_is_too_long_is_refused_before_anything_is_computed_or_cut_on_demand(engine: LlamaCpp) -> None:
    with pytest.raises(ContextTooLong, match="Input 1 has 202 tokens, and this model takes 128"):
        await engine.embed("mini", ["a", "word " * 200])
    with pytest.raises(ContextTooLong, match="far too many"):
        await engine.embed("mini", ["word " * 1_000_000])
    whole = await engine.embed("mini", ["word " * 200, "word " * 1_000_000], truncate=-1)
    assert whole.tokens == 256
    assert cosine(*whole.vectors) > 0.9999
    cut = await engine.embed("mini", ["A man is eating food.", GOLDEN[0].tokens], truncate=4)
    assert cut.tokens == 8
    [expected] = (await engine.embed("mini", [[*GOLDEN[0].tokens[:3], SEP]])).vectors
    assert cosine(cut.vectors[0], expected) > 0.9999


@pytest.mark.parametrize(
    ("wish", "param"),
    [
        ({"dimensions": 100}, "dimensions"),
        ({"dimensions": 1000}, "dimensions"),
        ({"truncate": 129}, "truncate_prompt_tokens"),
    ],
)
async def test_what_the_model_was_not_made_for_is_refused_by_name(
    engine: LlamaCpp, wish: dict[str, int], param: str
) -> None:
    with pytest.raises((UnsupportedParameter, InvalidValue)) as caught:
        await engine.embed("mini", ["a"], **wish)
    assert caught.value.param == param
    assert len((await engine.embed("mini", ["a"], dimensions=384)).vectors[0]) == 384


@pytest.fixture
def renamed(minilm: Path, tmp_path: Path) -> Path:
    """No model that can be cut is at hand: this one says that it is."""
    data = minilm.read_bytes()
    assert data.count(b"all-minilm-l6-v2") == 1
    (tmp_path / "renamed.gguf").write_bytes(data.replace(b"all-minilm-l6-v2", b"qwen3 embedding!"))
    return tmp_path / "renamed.gguf"


async def test_a_model_that_was_made_to_be_cut_is(renamed: Path) -> None:
    engine = LlamaCpp(LlamaCppSettings(model=(f"mini={renamed}",), slots=1))
    await engine.open()
    try:
        made = await engine.embed("mini", [GOLDEN[0].text], 64)
        assert len(made.vectors[0]) == 64
        assert cosine(made.vectors[0], made.vectors[0]) == pytest.approx(1)
        expected = GOLDEN[0].numbers[:64]
        assert cosine(made.vectors[0], expected) == pytest.approx(cosine(expected, expected) ** 0.5, abs=1e-4)
        with pytest.raises(InvalidValue):
            await engine.embed("mini", ["a"], 385)
    finally:
        await engine.close()


async def test_it_does_not_generate(engine: LlamaCpp) -> None:
    with pytest.raises(UnsupportedParameter, match="makes embeddings; it does not generate"):
        await ask(engine, work("x", model="mini"))


@pytest.mark.shows("C.5")
async def test_a_killed_child_is_started_again(engine: LlamaCpp) -> None:
    [model] = engine.loaded
    assert model.child is not None
    os.kill(model.child.pid, signal.SIGKILL)
    assert len(await vectors(engine, "a")) == 1


async def test_who_leaves_stops_the_work_after_the_batch_under_way(engine: LlamaCpp) -> None:
    task = asyncio.ensure_future(engine.embed("mini", ["word " * 100] * 500))
    async with asyncio.timeout(30):
        while not any(model.in_flight for model in engine.loaded):  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        assert len(await vectors(engine, "a")) == 1  # long before five hundred of them could be done


async def test_a_model_that_ranks_is_a_sentence_at_the_start(tmp_path: Path) -> None:
    ranks = tmp_path / "ranks.gguf"
    ranks.write_bytes(gguf({**PAIRS, "llama.pooling_type": 4}))
    engine = LlamaCpp(LlamaCppSettings(model=(str(ranks),)))
    with pytest.raises(StartupError, match="is a model that ranks texts"):
        await engine.open()
    await engine.close()


async def test_who_names_no_model_has_one_for_embeddings_that_is_fetched_when_it_is_asked_for(
    model_file: Path, minilm: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Into a cache that cannot be used at first; then it has both, so that nothing comes over the network here."""
    cache = tmp_path / "models"
    cache.mkdir()
    (cache / model_file.name).symlink_to(model_file)
    engine = LlamaCpp(LlamaCppSettings(cache_dir=tmp_path, context=256, slots=1))
    await engine.open()
    try:
        assert [bool(model.created) for model in engine.models()] == [True, False]
        assert (await engine.capabilities(EMBEDDING.id)).context == 256
        (cache / ".lock").rename(tmp_path / "lock")
        (cache / ".lock").mkdir()
        with pytest.raises(Unavailable, match="cannot be used") as caught:
            await engine.embed(EMBEDDING.id, ["a"])
        assert caught.value.retry_after == 30
        assert engine.healthy()
        (cache / ".lock").rmdir()
        (cache / minilm.name).symlink_to(minilm)
        with caplog.at_level("INFO"):
            made = await asyncio.gather(*[engine.embed(EMBEDDING.id, ["a"]) for _ in range(3)])
        assert {len(one.vectors[0]) for one in made} == {384}
        assert f"Checking {EMBEDDING.id}: 100 %" in caplog.messages
        assert [bool(model.created) for model in engine.models()] == [True, True]
        assert len(engine.loaded) == 2
        with pytest.raises(UnsupportedParameter, match="makes no embeddings"):
            await engine.embed(DEFAULT.id, ["a"])
    finally:
        await engine.close()

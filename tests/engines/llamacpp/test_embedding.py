"""Embeddings of the embedded engine, by llama.cpp and by OpenVINO, with the model that it fetches by itself, against a
reference implementation.

minilm.json holds the vectors of transformers and torch for the same weights. A cosine below 0.999 indicates an error in
the converted file, the tokens or the pooling.

Covers `engines/embedded/embedding.py`.
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

from antiphon.config.base_folders import cache_home
from antiphon.core.prompt import Segment, TextPrompt
from antiphon.engines.embedded import embedding
from antiphon.engines.embedded.known_models import DEFAULT_MODEL, EMBEDDING_MODEL
from antiphon.engines.embedded.model_files import fetch_model
from antiphon.engines.gguf import read_header
from antiphon.engines.llamacpp.engine import LlamaCpp, LlamaCppSettings
from antiphon.errors import ContextTooLong, InvalidValue, StartupError, Unavailable, UnsupportedParameter
from tests.engines.gguf_files import METADATA, make_gguf
from tests.engines.llamacpp.generation import make_request, run_generation

pytestmark = [pytest.mark.anyio, pytest.mark.needs("llamacpp"), pytest.mark.real_model, pytest.mark.timeout(400)]

CLS, SEP = 101, 102


class ReferenceSentence(Struct):
    text: str
    tokens: list[int]
    vector: str

    @property
    def values(self) -> list[float]:
        return array.array("f", base64.b64decode(self.vector)).tolist()


class ReferenceFile(Struct):
    made_by: str
    sentences: list[ReferenceSentence]


GOLDEN = msgspec.json.decode(Path(__file__).with_name("minilm.json").read_bytes(), type=ReferenceFile).sentences


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(first * second for first, second in zip(one, other, strict=True))


@pytest.fixture(scope="module")
def minilm() -> Path:
    return fetch_model(EMBEDDING_MODEL, cache_home())


@pytest.fixture(
    scope="module",
    params=["llamacpp", pytest.param("openvino", marks=[pytest.mark.needs("openvino"), pytest.mark.real_engine])],
)
async def engine(request: pytest.FixtureRequest, minilm: Path) -> AsyncIterator[LlamaCpp]:
    by_llamacpp = request.param == "llamacpp"
    engine = LlamaCpp(
        LlamaCppSettings(model=(f"mini={minilm}",), context=128, slots=2, llamacpp_embeddings=by_llamacpp)
    )
    await engine.open()
    yield engine
    await engine.close()


async def embed_texts(engine: LlamaCpp, *texts: str) -> list[list[float]]:
    async with asyncio.timeout(60):
        return (await engine.embed("mini", texts)).vectors


async def test_capabilities_are_read_from_the_header(engine: LlamaCpp) -> None:
    capabilities = await engine.capabilities("mini")
    assert (capabilities.tasks, capabilities.context, capabilities.slots) == (embedding.TASKS, 128, 2)


async def test_capabilities_before_the_fetch_match_the_fetched_file(minilm: Path) -> None:
    unfetched = LlamaCpp(LlamaCppSettings(slots=2))
    assert await unfetched.capabilities(EMBEDDING_MODEL.id) == embedding.embedding_capabilities(512, 2)
    header = read_header(minilm)
    assert (header.context, header.embedding_size) == (EMBEDDING_MODEL.embedding_context, 384)


@pytest.mark.shows("C.27", "C.70")
async def test_vectors_match_the_reference(engine: LlamaCpp) -> None:
    async with asyncio.timeout(60):
        result = await engine.embed("mini", [sentence.text for sentence in GOLDEN])
    cosines = [cosine(vector, sentence.values) for vector, sentence in zip(result.vectors, GOLDEN, strict=True)]
    assert min(cosines) > 0.9999
    assert result.tokens == sum(len(sentence.tokens) for sentence in GOLDEN)


async def test_token_ids_match_the_reference(engine: LlamaCpp) -> None:
    for sentence in GOLDEN:
        prompt = TextPrompt((Segment(sentence.text, control=False),))
        assert [*await engine.tokenize("mini", prompt)] == sentence.tokens
        assert [*await engine.tokenize("mini", prompt, special=False)] == sentence.tokens[1:-1]
    assert await engine.detokenize("mini", GOLDEN[0].tokens[1:-1]) == " a man is eating food ."


async def test_texts_of_similar_meaning_have_similar_vectors(engine: LlamaCpp) -> None:
    one, same, other = await embed_texts(
        engine, "How do I reset my password?", "I forgot my login and need a new one.", "The soup needs more salt."
    )
    assert cosine(one, same) > 0.5 > 0.2 > cosine(one, other)


async def test_control_tokens_in_a_text_stay_text(engine: LlamaCpp) -> None:
    tokens = await engine.tokenize("mini", TextPrompt((Segment("[CLS] x [SEP]", control=False),)))
    assert [tokens[0], tokens[-1]] == [CLS, SEP]
    assert not {CLS, SEP} & {*tokens[1:-1]}


async def test_token_ids_are_embedded_unchanged(engine: LlamaCpp) -> None:
    result = await engine.embed("mini", [GOLDEN[0].tokens, GOLDEN[0].tokens[1:-1]])
    assert cosine(result.vectors[0], GOLDEN[0].values) > 0.9999 > cosine(result.vectors[1], GOLDEN[0].values)
    assert result.tokens == 2 * len(GOLDEN[0].tokens) - 2


async def test_batched_texts_have_the_same_vectors_as_single_texts(engine: LlamaCpp) -> None:
    texts = [f"{sentence.text} {number}" for number in range(5) for sentence in GOLDEN]
    together = await embed_texts(engine, *texts)
    for at in (0, 7, len(texts) - 1):
        [alone] = await embed_texts(engine, texts[at])
        assert cosine(together[at], alone) > 0.9999


async def test_too_long_inputs_are_rejected_or_truncated_on_request(engine: LlamaCpp) -> None:
    with pytest.raises(ContextTooLong, match="Input 1 has 202 tokens, and this model takes 128"):
        await engine.embed("mini", ["a", "word " * 200])
    with pytest.raises(ContextTooLong, match="far too many"):
        await engine.embed("mini", ["word " * 1_000_000])
    truncated = await engine.embed("mini", ["word " * 200, "word " * 1_000_000], truncate=-1)
    assert truncated.tokens == 256
    assert cosine(*truncated.vectors) > 0.9999
    cut = await engine.embed("mini", ["A man is eating food.", GOLDEN[0].tokens], truncate=4)
    assert cut.tokens == 8
    [expected] = (await engine.embed("mini", [[*GOLDEN[0].tokens[:3], SEP]])).vectors
    assert cosine(cut.vectors[0], expected) > 0.9999


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"dimensions": 100}, "dimensions"),
        ({"dimensions": 1000}, "dimensions"),
        ({"truncate": 129}, "truncate_prompt_tokens"),
    ],
)
async def test_unsupported_options_are_rejected_by_name(engine: LlamaCpp, options: dict[str, int], param: str) -> None:
    with pytest.raises((UnsupportedParameter, InvalidValue)) as caught:
        await engine.embed("mini", ["a"], **options)
    assert caught.value.param == param
    assert len((await engine.embed("mini", ["a"], dimensions=384)).vectors[0]) == 384


@pytest.fixture
def matryoshka_model(minilm: Path, tmp_path: Path) -> Path:
    """No model that supports shorter vectors is available, so this copy claims by its name to be one."""
    data = minilm.read_bytes()
    assert data.count(b"all-minilm-l6-v2") == 1
    (tmp_path / "renamed.gguf").write_bytes(data.replace(b"all-minilm-l6-v2", b"qwen3 embedding!"))
    return tmp_path / "renamed.gguf"


async def test_a_matryoshka_model_returns_shorter_vectors(matryoshka_model: Path) -> None:
    engine = LlamaCpp(LlamaCppSettings(model=(f"mini={matryoshka_model}",), slots=1))
    await engine.open()
    try:
        result = await engine.embed("mini", [GOLDEN[0].text], 64)
        assert len(result.vectors[0]) == 64
        assert cosine(result.vectors[0], result.vectors[0]) == pytest.approx(1)
        expected = GOLDEN[0].values[:64]
        assert cosine(result.vectors[0], expected) == pytest.approx(cosine(expected, expected) ** 0.5, abs=1e-4)
        with pytest.raises(InvalidValue):
            await engine.embed("mini", ["a"], 385)
    finally:
        await engine.close()


async def test_an_embedding_model_does_not_generate(engine: LlamaCpp) -> None:
    with pytest.raises(UnsupportedParameter, match="creates embeddings; it does not generate"):
        await run_generation(engine, make_request("x", model="mini"))


def _read_session_niceness(pid: int) -> int | None:
    """Return the niceness of the session of a process; None if the kernel does not divide CPU time among sessions."""
    path = Path(f"/proc/{pid}/autogroup")
    return int(path.read_text().split()[-1]) if path.exists() else None


async def test_the_child_of_an_embedding_model_has_a_lower_priority(engine: LlamaCpp) -> None:
    await embed_texts(engine, "hello")
    [model] = engine.loaded_models
    assert model.child is not None
    assert os.getpriority(os.PRIO_PROCESS, model.child.pid) == min(os.getpriority(os.PRIO_PROCESS, 0) + 10, 19)
    assert _read_session_niceness(model.child.pid) in (10, None)


@pytest.mark.shows("C.5")
async def test_a_killed_child_is_restarted(engine: LlamaCpp) -> None:
    [model] = engine.loaded_models
    assert model.child is not None
    os.kill(model.child.pid, signal.SIGKILL)
    assert len(await embed_texts(engine, "a")) == 1


async def test_a_cancelled_caller_stops_the_work_after_the_running_batch(engine: LlamaCpp) -> None:
    task = asyncio.ensure_future(engine.embed("mini", ["word " * 100] * 500))
    async with asyncio.timeout(30):
        while not any(model.in_flight for model in engine.loaded_models):  # noqa: ASYNC110 - the engine signals no event
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        assert len(await embed_texts(engine, "a")) == 1  # much sooner than 500 texts could be embedded


async def test_a_ranking_model_is_rejected_at_startup(tmp_path: Path) -> None:
    ranks = tmp_path / "ranks.gguf"
    ranks.write_bytes(make_gguf({**METADATA, "llama.pooling_type": 4}))
    engine = LlamaCpp(LlamaCppSettings(model=(str(ranks),)))
    with pytest.raises(StartupError, match="is a model that ranks texts"):
        await engine.open()
    await engine.close()


async def test_the_default_embedding_model_is_fetched_on_first_use(
    model_file: Path, minilm: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The cache is unusable at first. Afterwards it holds both models, so that nothing is downloaded here."""
    cache = tmp_path / "models"
    cache.mkdir()
    (cache / model_file.name).symlink_to(model_file)
    engine = LlamaCpp(LlamaCppSettings(cache_dir=tmp_path, context=256, slots=1))
    await engine.open()
    try:
        assert [bool(model.created) for model in engine.models()] == [True, False]
        assert (await engine.capabilities(EMBEDDING_MODEL.id)).context == 256
        (cache / ".lock").rename(tmp_path / "lock")
        (cache / ".lock").mkdir()
        with pytest.raises(Unavailable, match="cannot be used") as caught:
            await engine.embed(EMBEDDING_MODEL.id, ["a"])
        assert caught.value.retry_after == 30
        assert engine.is_healthy()
        (cache / ".lock").rmdir()
        (cache / minilm.name).symlink_to(minilm)
        with caplog.at_level("INFO"):
            result = await asyncio.gather(*[engine.embed(EMBEDDING_MODEL.id, ["a"]) for _ in range(3)])
        assert {len(one.vectors[0]) for one in result} == {384}
        assert f"Checking {EMBEDDING_MODEL.id}: 100 %" in caplog.messages
        assert [bool(model.created) for model in engine.models()] == [True, True]
        assert len(engine.loaded_models) == 2
        with pytest.raises(UnsupportedParameter, match="does not create embeddings"):
            await engine.embed(DEFAULT_MODEL.id, ["a"])
    finally:
        await engine.close()

"""The embedder: which model it takes, what it counts, and which vectors it returns and rejects."""

import math
from collections.abc import Sequence
from struct import unpack as unpack_floats

import pytest
from msgspec.structs import replace

from antiphon.engines.base import Capabilities, EmbeddingResult, Model
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.engines.fake.tasks import embed_text
from antiphon.errors import EngineFailed, NotFound
from antiphon.service.engine_tasks import EngineTasks
from antiphon.service.model_io.models import ModelNaming, Models
from antiphon.service.vector_stores.embedder import Embedder

pytestmark = pytest.mark.anyio


class VectorEngine(FakeEngine):
    """Models that embed, by name, beside one that generates. Texts with "zero" or "nan" have bad vectors."""

    def __init__(self, *names: str, settings: FakeSettings | None = None) -> None:
        super().__init__(settings)
        self.names = names

    def models(self) -> Sequence[Model]:
        return [Model(id=name, created=1) for name in ("chat", *self.names)]

    def serves(self, model: str) -> bool:
        return model in ("chat", *self.names)

    async def capabilities(self, model: str) -> Capabilities:
        capabilities = await super().capabilities(model)
        return capabilities if model != "chat" else replace(capabilities, tasks=frozenset({"generate"}))

    async def embed(
        self,
        model: str,
        inputs: Sequence[str | Sequence[int]],
        dimensions: int | None = None,
        truncate: int | None = None,
    ) -> EmbeddingResult:
        result = await super().embed(model, inputs, dimensions, truncate)
        bad = {"zero": 0.0, "nan": math.nan}
        vectors = [
            [bad[text]] * len(vector) if isinstance(text, str) and text in bad else [3 * number for number in vector]
            for text, vector in zip(inputs, result.vectors, strict=True)
        ]
        return EmbeddingResult(vectors=vectors, tokens=result.tokens)


def make_embedder(engine: FakeEngine, model: str | None = None, accept_any: bool = False) -> Embedder:
    return Embedder(EngineTasks(Models(engine, ModelNaming(accept_any=accept_any)), 5.0), model)


def unpack(vector: bytes) -> list[float]:
    return [*unpack_floats(f"<{len(vector) // 2}e", vector)]


async def test_a_new_store_gets_the_first_model_that_embeds_and_others_keep_theirs() -> None:
    embedder = make_embedder(VectorEngine("one", "two"))
    assert [(await embedder.choose(stored)).model for stored in ("", "two")] == ["one", "two"]


async def test_the_model_of_the_settings_replaces_that_of_the_store() -> None:
    embedder = make_embedder(VectorEngine("one", "two"), "two")
    assert [(await embedder.choose(stored)).model for stored in ("", "one")] == ["two", "two"]


@pytest.mark.parametrize("accept_any", [False, True])
async def test_another_model_never_takes_the_place_of_one_that_is_gone(accept_any: bool) -> None:
    embedder = make_embedder(VectorEngine("two"), accept_any=accept_any)
    with pytest.raises(NotFound, match="one"):
        await embedder.choose("one")
    with pytest.raises(NotFound, match="one"):
        await embedder.embed("tenant", "one", ["text"])


async def test_a_server_without_a_model_that_embeds_reports_it() -> None:
    with pytest.raises(NotFound, match="embed"):
        await make_embedder(VectorEngine()).choose("")


async def test_the_window_is_the_context_of_the_model_without_special_tokens() -> None:
    target = await make_embedder(VectorEngine("one", settings=FakeSettings(context=100))).choose("")
    assert target.window == 96


async def test_tokens_are_those_of_the_model_or_else_an_estimate_from_the_bytes() -> None:
    text = "twelve chars"
    exact = make_embedder(VectorEngine("one", settings=FakeSettings(level="tokens")))
    assert await exact.count("one", text) == 12
    assert await make_embedder(VectorEngine("one")).count("one", text) == 5


async def test_vectors_have_length_1_in_little_endian_floats() -> None:
    [vector] = await make_embedder(VectorEngine("one")).embed("tenant", "one", ["hello"])
    assert unpack(vector) == pytest.approx(embed_text("hello"), abs=1e-3)


async def test_a_vector_that_is_zero_or_not_finite_is_rejected_alone() -> None:
    embedder = make_embedder(VectorEngine("one"))
    vectors = await embedder.embed_each("tenant", "one", ["hello", "zero", "nan", "world"])
    assert [vector is None for vector in vectors] == [False, True, True, False]
    with pytest.raises(EngineFailed, match="zero or not finite"):
        await embedder.embed("tenant", "one", ["hello", "zero"])


async def test_a_text_that_is_too_long_gets_the_mean_of_its_parts() -> None:
    settings = FakeSettings(level="tokens", context=10)
    embedder = make_embedder(VectorEngine("one", settings=settings))
    vectors = await embedder.embed("tenant", "one", ["red green", "reddish blueish"])
    assert unpack(vectors[0]) == pytest.approx(embed_text("red green"), abs=1e-3)
    parts = [embed_text("reddish"), embed_text("blueish")]
    mean = [sum(numbers) for numbers in zip(*parts, strict=True)]
    assert unpack(vectors[1]) == pytest.approx([number / math.hypot(*mean) for number in mean], abs=1e-3)

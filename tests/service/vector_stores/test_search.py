"""Searches in vector stores over the memory store, with an embedder that hashes words."""

import asyncio
import random
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from antiphon.core.file_search import SearchHit, SearchRequest
from antiphon.errors import EngineFailed, InvalidValue, UnknownVectorStore
from antiphon.ids import new_id
from antiphon.protocol.types.filters import Filter
from antiphon.service.vector_stores import search as search_module
from antiphon.service.vector_stores.search import VectorSearch
from antiphon.stores.sqlite import SqliteStore
from antiphon.stores.vector_rows import AttributeValue, IndexResult, TextChunk
from antiphon.testing.rows.response_rows import TENANT, TTL, Clock
from antiphon.testing.rows.vector_rows import (
    attach_file,
    claim_one,
    create_vector_store,
    index_texts,
    make_new_file,
)
from tests.service.vector_stores.vectors import DIMENSIONS, WordEmbedder, draw_clustered, draw_near, embed_words

pytestmark = pytest.mark.anyio


class FixedEmbedder:
    def __init__(self, vector: bytes) -> None:
        self._vector = vector

    async def embed(self, tenant: str, model: str, texts: Sequence[str]) -> list[bytes]:
        return [self._vector for _ in texts]


def dot(first: bytes, second: bytes) -> float:
    layout = f"<{len(first) // 2}e"
    return float(sum(a * b for a, b in zip(struct.unpack(layout, first), struct.unpack(layout, second), strict=True)))


class SearchSetup:
    """A memory store and a search over it."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.store = SqliteStore(":memory:", TTL, self.clock)
        self.embedder = WordEmbedder()
        self.vector_search = VectorSearch(self.store, self.embedder)

    async def create(self) -> str:
        return await create_vector_store(self.store, self.clock)

    async def add(
        self, name: str, *texts: str, attributes: Mapping[str, AttributeValue] | None = None, embedder: str = "embedder"
    ) -> str:
        return await index_texts(
            self.store,
            self.clock,
            name,
            texts,
            vectors=[[embed_words(text, embedder)] for text in texts],
            attributes=attributes,
            embedder=embedder,
            dimensions=DIMENSIONS,
        )

    async def search(self, stores: str | list[str], queries: str | list[str], **options: Any) -> list[SearchHit]:
        request = SearchRequest(
            stores=[stores] if isinstance(stores, str) else stores,
            queries=[queries] if isinstance(queries, str) else queries,
            **options,
        )
        hits = await self.vector_search.search(TENANT, request)
        scores = [hit.score for hit in hits]
        assert scores == sorted(scores, reverse=True)
        assert all(0 <= score <= 1 for score in scores)
        assert len(hits) <= request.max_results
        return hits

    async def find_texts(self, stores: str | list[str], queries: str | list[str], **options: Any) -> list[str]:
        return [hit.text for hit in await self.search(stores, queries, **options)]


@pytest.fixture
async def setup() -> AsyncIterator[SearchSetup]:
    setup = SearchSetup()
    await setup.store.open()
    yield setup
    await setup.store.close()


async def test_a_hit_has_its_file_its_attributes_its_text_and_its_cosine(setup: SearchSetup) -> None:
    name = await setup.create()
    file = await setup.add(name, "otters sleep", "foxes run", attributes={"year": 2026})
    best, *others = await setup.search(name, "otters sleep")
    assert (best.file_id, best.filename, best.attributes) == (file, f"{file}.txt", {"year": 2026})
    assert best.text == "otters sleep"
    assert best.score == pytest.approx(1.0, abs=1e-3)
    assert all(hit.score < 0.5 for hit in others)


async def test_meaning_and_words_complete_each_other(setup: SearchSetup) -> None:
    name = await setup.create()
    await index_texts(
        setup.store,
        setup.clock,
        name,
        ["code X17Z", "about sleep", "weather"],
        vectors=[[embed_words("noise")], [embed_words("otters sleep")], [embed_words("rain")]],
        dimensions=DIMENSIONS,
    )
    assert {*(await setup.find_texts(name, "otters sleep X17Z"))[:2]} == {"code X17Z", "about sleep"}
    assert (await setup.find_texts(name, "otters sleep X17Z", ranker="none"))[0] == "about sleep"
    assert await setup.find_texts(name, "X17Z", embedding_weight=0.0) == ["code X17Z"]
    assert (await setup.find_texts(name, "otters X17Z", embedding_weight=100.0))[0] == "about sleep"
    assert (await setup.find_texts(name, "otters X17Z", text_weight=100.0))[0] == "code X17Z"
    assert (await setup.find_texts(name, "otters X17Z", text_weight=0.0))[0] == "about sleep"


async def test_a_search_by_words_embeds_nothing_and_scores_by_rank(setup: SearchSetup) -> None:
    name = await setup.create()
    await setup.add(name, "fox fox", "fox and other animals of the wood")
    hits = await setup.search(name, "fox", embedding_weight=0.0)
    assert [hit.text for hit in hits] == ["fox fox", "fox and other animals of the wood"]
    assert [hit.score for hit in hits] == pytest.approx([60 / 61, 60 / 62])
    assert setup.embedder.calls == []


@pytest.mark.parametrize(
    "query", ["the of and", '" OR *', "NEAR(fox, 2) -fox ^fox", "text: fox*", "'", "", "\0", "日本"]
)
async def test_stop_words_and_operators_are_no_error(query: str, setup: SearchSetup) -> None:
    name = await setup.create()
    await setup.add(name, "fox")
    assert await setup.find_texts(name, query) == ["fox"]


async def test_a_threshold_drops_hits_and_1_is_no_error(setup: SearchSetup) -> None:
    name = await setup.create()
    await setup.add(name, "red fox", "red fox and hen", "blue whale")
    everything = await setup.search(name, "red fox hen")
    middle = everything[1].score
    assert [hit.score for hit in await setup.search(name, "red fox hen", score_threshold=middle)] == [
        hit.score for hit in everything if hit.score >= middle
    ]
    assert await setup.search(name, "red fox hen", score_threshold=1.0) == []


async def test_filters_select_files_before_the_ranking(setup: SearchSetup) -> None:
    name = await setup.create()
    for _ in range(30):
        await setup.add(name, *["red fox"] * 20, attributes={"year": 2025})
    file = await setup.add(name, "a long text about one fox", "whale", attributes={"year": 2026})
    condition = msgspec.convert({"type": "eq", "key": "year", "value": 2026}, Filter)
    for options in ({}, {"ranker": "none"}, {"embedding_weight": 0.0}):
        hits = await setup.search(name, "red fox", filters=condition, **options)
        assert hits
        assert {hit.file_id for hit in hits} == {file}
    nothing = msgspec.convert({"type": "eq", "key": "year", "value": 1}, Filter)
    assert await setup.search(name, "red fox", filters=nothing) == []


async def test_several_stores_are_ranked_together_and_the_same_text_is_one_hit(setup: SearchSetup) -> None:
    first, second, third = [await setup.create() for _ in range(3)]
    file = await setup.add(first, "red fox", "grey wolf")
    await setup.add(second, "red fox in snow")
    await setup.store.add_vector_files(TENANT, third, [make_new_file(file)], None, 10)
    job = await claim_one(setup.store, setup.clock)
    await setup.store.write_chunks(job.key, [TextChunk(number=0, text="red fox", vectors=[embed_words("red fox")])])
    await setup.store.finish_vector_file(job.key, IndexResult(embedder="embedder", dimensions=DIMENSIONS))
    texts = await setup.find_texts([first, second, third, first], "red fox")
    assert texts == ["red fox", "red fox in snow", "grey wolf"]
    assert await setup.find_texts([first, second], "red fox", max_results=1) == ["red fox"]


async def test_hits_of_several_queries_are_fused(setup: SearchSetup) -> None:
    name = await setup.create()
    await setup.add(name, "red fox", "blue whale", "green frog", "grey wolf")
    hits = await setup.search(name, ["red fox", "blue whale"])
    assert {hit.text for hit in hits[:2]} == {"red fox", "blue whale"}
    assert [hit.score for hit in hits[:2]] == pytest.approx([1.0, 1.0], abs=1e-3)
    assert setup.embedder.calls == [(TENANT, "embedder", ("red fox", "blue whale"))]
    [best] = await setup.search(name, ["fox", "blue whale red"], embedding_weight=0.0, max_results=1)
    assert best.text == "red fox"
    assert best.score == pytest.approx(60 / 61)


async def test_a_query_is_embedded_by_the_model_of_each_store(setup: SearchSetup) -> None:
    first, second, empty = [await setup.create() for _ in range(3)]
    await setup.add(first, "red fox")
    await setup.add(second, "blue fox", embedder="other")
    assert {*await setup.find_texts([first, second, empty], "fox", ranker="none")} == {"red fox", "blue fox"}
    assert {model for _, model, _ in setup.embedder.calls} == {"embedder", "other"}


async def test_files_of_a_former_embedder_are_found_by_their_text(setup: SearchSetup) -> None:
    name = await setup.create()
    await index_texts(
        setup.store,
        setup.clock,
        name,
        ["red fox"],
        vectors=[[embed_words("red")]],  # as if both models were the same
        embedder="former",
        dimensions=DIMENSIONS,
    )
    await setup.add(name, "grey wolf", "grey fox in the wood")
    assert {*await setup.find_texts(name, "fox", ranker="none")} == {"grey wolf", "grey fox in the wood"}
    [best, *_] = await setup.search(name, "fox")
    assert best.text == "grey fox in the wood"
    [best, *_] = await setup.search(name, "red", text_weight=2.0, max_results=1)
    assert best.text == "red fox"
    assert best.score == pytest.approx(60 / 61)


async def test_failures_are_raised_and_never_no_results(setup: SearchSetup) -> None:
    name = await setup.create()
    await setup.add(name, "fox")
    unknown = new_id("vs")
    with pytest.raises(UnknownVectorStore, match=unknown):
        await setup.search([name, unknown], "fox")
    setup.embedder.fails = True
    with pytest.raises(EngineFailed):
        await setup.search(name, "fox")


async def test_vectors_of_another_size_are_reported(setup: SearchSetup) -> None:
    name = await setup.create()
    await index_texts(setup.store, setup.clock, name, ["fox"], vectors=[[b"\0" * 8]], dimensions=4)
    with pytest.raises(InvalidValue, match=r"4 dimensions.* returns 64"):
        await setup.search(name, "fox")


async def test_a_removed_file_is_not_found_any_more(setup: SearchSetup) -> None:
    name = await setup.create()
    file = await setup.add(name, "red fox")
    await setup.add(name, "grey wolf")
    assert len(await setup.find_texts(name, "fox")) == 2
    await setup.store.remove_vector_file(TENANT, name, file)
    assert await setup.find_texts(name, "fox") == ["grey wolf"]


async def test_the_ten_nearest_chunks_are_found_among_thousands(setup: SearchSetup) -> None:
    rng, name = random.Random(5), await setup.create()
    vectors = draw_clustered(rng, 2000, 384)
    await index_texts(
        setup.store,
        setup.clock,
        name,
        [f"{number}" for number in range(len(vectors))],
        vectors=[[vector] for vector in vectors],
        dimensions=384,
    )
    found = 0
    for query in [draw_near(rng, vector) for vector in rng.sample(vectors, 10)]:
        setup.vector_search = VectorSearch(setup.store, FixedEmbedder(query))
        exact = sorted(range(len(vectors)), key=lambda number: -dot(query, vectors[number]))[:10]
        texts = await setup.find_texts(name, "-", ranker="none")
        found += len({*texts}.intersection(map(str, exact)))
    assert found / 100 >= 0.98


async def test_a_wait_ends_when_all_files_are_found_or_the_time_is_over(
    setup: SearchSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_module, "_POLL_SECONDS", 0.001)
    name, other = await setup.create(), await setup.create()
    assert await setup.vector_search.wait_indexed(TENANT, [name], 0.0)
    file = await attach_file(setup.store, setup.clock, name)
    assert not await setup.vector_search.wait_indexed(TENANT, [other, name], 0.0)
    waiting = asyncio.create_task(setup.vector_search.wait_indexed(TENANT, [other, name], 60.0))
    job = await claim_one(setup.store, setup.clock)
    await setup.store.finish_vector_file(job.key, IndexResult())
    assert await waiting
    await setup.store.add_vector_files(TENANT, name, [make_new_file(file)], None, 10)
    assert await setup.vector_search.wait_indexed(TENANT, [name], 0.0), "its former chunks are found"
    with pytest.raises(UnknownVectorStore):
        await setup.vector_search.check_store("other", name)
    await setup.vector_search.check_store(TENANT, name)

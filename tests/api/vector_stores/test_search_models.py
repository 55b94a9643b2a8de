"""Models that take part in searches of vector stores: one rewrites queries, another one ranks hits again.

Covers `service/vector_stores/query_rewriter.py` and `service/vector_stores/reranker.py`.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.core.deltas import ReasoningDelta, Text
from antiphon.core.prompt import ChatPrompt, TokenCounts
from antiphon.engines.base import JSON_MEDIA_TYPE, Capabilities, PassthroughReply, Task
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import BadRequest, EngineFailed
from antiphon.service.vector_stores import query_rewriter, reranker
from tests.api.app import run_api
from tests.api.vector_stores.vector_api import VectorApi
from tests.transport.middleware.test_rate_limiting import run_limited

pytestmark = pytest.mark.anyio
FRUIT, LAW, SEA = "Apples and pears grow on trees.", "A law was passed in parliament.", "Otters swim in the sea."
QUESTION = "Hello! Could you please tell me which animals live in salt water?"


class RankingEngine(FakeEngine):
    """Ranks by a word: documents with it are relevant."""

    word = "law"
    scores = (0.1, 0.9)  # of other documents and of those with the word
    error: Exception | None = None
    reply: bytes | None = None  # instead of a ranking
    is_stalled = False
    tasks: frozenset[Task] = frozenset({"generate", "embed", "rerank"})

    def __init__(self, settings: FakeSettings | None = None) -> None:
        super().__init__(settings)
        self.bodies: list[dict[str, Any]] = []

    async def capabilities(self, model: str) -> Capabilities:
        return replace(await super().capabilities(model), tasks=self.tasks)

    async def pass_through(
        self, model: str, task: Task, body: bytes, media_type: str = JSON_MEDIA_TYPE
    ) -> PassthroughReply:
        if self.is_stalled:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        if self.reply is not None:
            return PassthroughReply(self.reply)
        self.bodies.append(json.loads(body))
        scored = [(self.scores[self.word in text], index) for index, text in enumerate(self.bodies[-1]["documents"])]
        results = [{"index": index, "relevance_score": score} for score, index in sorted(scored, reverse=True)]
        return PassthroughReply(
            json.dumps({"model": model, "usage": {"total_tokens": 90}, "results": results}).encode()
        )


@pytest.fixture
async def engine() -> RankingEngine:
    return RankingEngine()


@pytest.fixture
async def api(engine: RankingEngine) -> AsyncIterator[VectorApi]:
    async with run_limited(engine=engine, rerank_model="fake", quota_tokens_per_minute=1_000_000) as server:
        yield VectorApi(server)


def read_names(page: Any) -> list[str]:
    return [hit["filename"] for hit in page["data"]]


async def count_remaining(api: VectorApi, store_id: str, body: Any) -> int:
    answer = await api.server.post(f"vector_stores/{store_id}/search", body)
    assert answer.status == 200, answer.body
    return int(answer.header(b"x-ratelimit-remaining-tokens") or b"")


@pytest.mark.shows("E5.13")
@pytest.mark.parametrize("written", ['"otters sea"', "\n otters sea \nThis query finds animals.", "“otters sea”"])
async def test_a_model_rewrites_the_query_which_the_page_repeats(written: str) -> None:
    async with run_api() as server:
        api = VectorApi(server)
        store = await api.create_indexed(FRUIT, LAW, SEA)
        server.engine.says(Text(written))
        page = await api.post(f"{store['id']}/search", {"query": QUESTION, "rewrite_query": True, "max_num_results": 1})
        assert (page["search_query"], read_names(page)) == (["otters sea"], ["2.txt"])
        [request] = server.engine.seen
        assert isinstance(request.prompt, ChatPrompt)
        assert QUESTION in str(request.prompt.messages[-1]["content"])
        assert (request.sampling.max_tokens, request.sampling.temperature) == (128, 0.0)


@pytest.mark.shows("E5.13")
async def test_each_query_is_rewritten_by_the_configured_model_and_charged(api: VectorApi) -> None:
    store, engine = await api.create_indexed(FRUIT, LAW, SEA), api.server.engine
    before = await count_remaining(api, store["id"], {"query": "law"})
    engine.says(Text("otters"), counts=TokenCounts(input_tokens=30_000, output_tokens=100))
    engine.says(Text("apples"), counts=TokenCounts(input_tokens=30_000, output_tokens=100))
    body = {"query": ["animals?", "food?"], "rewrite_query": True}
    used = before - await count_remaining(api, store["id"], body)
    assert 60_200 <= used < 61_000
    engine.says(Text("otters"))
    engine.says(Text("apples"))
    assert (await api.post(f"{store['id']}/search", body))["search_query"] == ["otters", "apples"]


async def test_the_operator_chooses_the_model_that_rewrites() -> None:
    async with run_api(rewrite_model="small") as server:
        api = VectorApi(server)
        store = await api.create_indexed(SEA)
        server.engine.says(Text("otters"))
        await api.post(f"{store['id']}/search", {"query": QUESTION, "rewrite_query": True})
        assert [request.model for request in server.engine.seen] == ["small"]


async def test_a_model_that_reasons_anyway_or_rejects_an_effort_is_called_again_with_more_tokens() -> None:
    async with run_api() as server:
        api = VectorApi(server)
        store = await api.create_indexed(SEA)
        server.engine.says(ReasoningDelta("The user wants"), finish="length")
        server.engine.says(ReasoningDelta("Otters."), Text("otters"))
        server.engine.says()
        server.engine.fails(BadRequest("reasoning_effort: none is unknown"))
        server.engine.says(Text("sea"))
        for query in ("otters", "sea"):
            page = await api.post(f"{store['id']}/search", {"query": QUESTION, "rewrite_query": True})
            assert page["search_query"] == [query]
        assert [request.sampling.max_tokens for request in server.engine.seen] == [128, 1024, 128, 1024]


@pytest.mark.shows("E5.13")
async def test_a_model_that_fails_to_rewrite_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with run_api() as server:
        api = VectorApi(server)
        store = await api.create_indexed(SEA)
        body = {"query": QUESTION, "rewrite_query": True}
        server.engine.says()
        server.engine.fails(EngineFailed("The engine is gone."))
        assert (await api.refuse(f"{store['id']}/search", body))[0] >= 500
        server.engine.says(Text(" \n"))
        server.engine.repeats()
        status, _, message = await api.refuse(f"{store['id']}/search", body)
        assert (status >= 500, message) == (True, "The model 'fake' returned no query.")
        assert (await api.refuse("vs_unknown/search", body))[0] == 404
        requests = server.engine.requests
        assert requests == 3, "an unknown vector store is refused before a model is called"
        monkeypatch.setattr(query_rewriter, "_SECONDS", 0.0)
        server.engine.holds()
        status, _, message = await api.refuse(f"{store['id']}/search", body)
        assert (status >= 500, message) == (True, "The model did not rewrite the query within 0 seconds.")


@pytest.mark.shows("E5.13")
async def test_without_a_model_that_generates_the_field_is_refused(api: VectorApi, engine: RankingEngine) -> None:
    engine.tasks = frozenset({"embed"})
    store_id = (await api.create())["id"]
    status, param, message = await api.refuse(f"{store_id}/search", {"query": "x", "rewrite_query": True})
    assert (status, param) == (400, "rewrite_query")
    assert "--rewrite-model" in message


@pytest.mark.shows("E5.14")
async def test_hits_are_ranked_and_scored_by_the_model_unless_the_ranker_is_none(
    api: VectorApi, engine: RankingEngine
) -> None:
    store = await api.create_indexed(FRUIT, LAW, SEA)
    page = await api.post(f"{store['id']}/search", {"query": "otters"})
    assert read_names(page)[0] == "1.txt"
    assert [hit["score"] for hit in page["data"]] == [0.9, 0.1, 0.1]
    assert {*engine.bodies[0]} == {"model", "query", "documents"}
    assert {*engine.bodies[0]["documents"]} == {FRUIT, LAW, SEA}
    options = {"score_threshold": 0.5}
    assert read_names(await api.post(f"{store['id']}/search", {"query": "otters", "ranking_options": options})) == [
        "1.txt"
    ]
    best = await api.post(f"{store['id']}/search", {"query": ["otters", "apples"], "max_num_results": 1})
    assert read_names(best) == ["1.txt"]
    assert [body["query"] for body in engine.bodies[-2:]] == ["otters", "apples"]
    calls = len(engine.bodies)
    page = await api.post(f"{store['id']}/search", {"query": "otters", "ranking_options": {"ranker": "none"}})
    assert (read_names(page)[0], len(engine.bodies)) == ("2.txt", calls)
    empty = await api.create()
    assert (await api.post(f"{empty['id']}/search", {"query": "otters"}))["data"] == []
    assert len(engine.bodies) == calls


@pytest.mark.shows("E5.14")
async def test_the_tokens_of_a_ranking_are_charged(api: VectorApi, engine: RankingEngine) -> None:
    store = await api.create_indexed(SEA)
    first = await count_remaining(api, store["id"], {"query": "otters"})
    second = await count_remaining(api, store["id"], {"query": "otters"})
    third = await count_remaining(api, store["id"], {"query": "otters", "ranking_options": {"ranker": "none"}})
    assert (first - second) - (second - third) == 90


async def test_scores_outside_0_to_1_are_logits(api: VectorApi, engine: RankingEngine) -> None:
    engine.scores = (-900.0, 3.0)
    store = await api.create_indexed(FRUIT, LAW)
    page = await api.post(f"{store['id']}/search", {"query": "otters"})
    assert [hit["score"] for hit in page["data"]] == pytest.approx([0.9526, 0.0], abs=1e-4)


async def test_a_text_beyond_the_context_of_the_model_is_scored_by_its_best_part() -> None:
    engine = RankingEngine(FakeSettings(context=300))
    filler = "Nothing of interest is written in this place. " * 30
    async with run_api(engine=engine, rerank_model="fake") as server:
        api = VectorApi(server)
        store = await api.create_indexed(filler + LAW, filler)
        page = await api.post(f"{store['id']}/search", {"query": "otters"})
    assert [(hit["filename"], hit["score"]) for hit in page["data"]] == [("0.txt", 0.9), ("1.txt", 0.1)]
    assert len(engine.bodies[0]["documents"]) > 2
    assert all(len(text) < 3 * 300 for text in engine.bodies[0]["documents"])


@pytest.mark.shows("E5.14")
@pytest.mark.parametrize("fault", ["error", "task", "scores", "time", "no json", '{"results": []}'])
async def test_hits_keep_their_order_if_the_model_fails(
    fault: str,
    api: VectorApi,
    engine: RankingEngine,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = await api.create_indexed(FRUIT, LAW, SEA)
    expected = await api.post(f"{store['id']}/search", {"query": "otters", "ranking_options": {"ranker": "none"}})
    match fault:
        case "error":
            engine.error = EngineFailed("The engine is gone.")
        case "task":
            engine.tasks = frozenset({"generate", "embed"})
        case "scores":
            engine.scores = (float("nan"), 1.0)
        case "time":
            engine.is_stalled = True
            monkeypatch.setattr(reranker, "_SECONDS", 0.0)
        case _:
            engine.reply = fault.encode()
    with caplog.at_level(logging.WARNING):
        page = await api.post(f"{store['id']}/search", {"query": "otters"})
    assert read_names(page)[0] == read_names(expected)[0] == "2.txt"
    assert page["data"][0]["score"] == expected["data"][0]["score"]
    assert "hits were not ranked by fake" in caplog.text
    text = api.server.app.lifecycle.components.observability.metrics.text()  # type: ignore[attr-defined]
    assert b"antiphon_vector_rerank_failures_total 1" in text

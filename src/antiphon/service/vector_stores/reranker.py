"""Ranks the hits of a search again with a model that compares each of them with the queries.

    fused hits ─▶ texts, in windows of the model's context ─▶ scores of the model ─▶ hits by their best score

The model improves the order of what was found. If it fails, the hits keep theirs, with a warning and a count of such
searches, so that searches do not depend on one more engine.
"""

import asyncio
import logging
import math
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from antiphon.core.file_search import SearchHit
from antiphon.errors import AntiphonError
from antiphon.service.engine_tasks import EngineTasks
from antiphon.service.vector_stores.chunker import split_windows
from antiphon.service.vector_stores.embedder import estimate_tokens

log = logging.getLogger(__name__)

RERANKED: Final = 50  # hits of a search
_SECONDS: Final = 20.0  # for all queries of a search
_SPECIAL_TOKENS: Final = 8  # of a pair of query and text


class Reranker:
    def __init__(self, tasks: EngineTasks, model: str) -> None:
        self._tasks = tasks
        self._model = model
        self.failures = 0  # searches whose hits were not ranked

    async def rerank(self, tenant: str, queries: Sequence[str], hits: Sequence[SearchHit]) -> list[SearchHit]:
        """Return the hits, best first, each with the model's score for the query that fits it best."""
        if not hits:
            return []
        try:
            async with asyncio.timeout(_SECONDS):
                lists = [await self._score(tenant, query, [hit.text for hit in hits]) for query in queries]
        except (AntiphonError, TimeoutError) as error:
            self.failures += 1
            reason = error.message if isinstance(error, AntiphonError) else f"no reply within {_SECONDS:.0f} s"
            log.warning("hits were not ranked by %s: %s", self._model, reason)
            return [*hits]
        scored = [replace(hit, score=max(scores)) for hit, scores in zip(hits, zip(*lists, strict=True), strict=True)]
        return sorted(scored, key=lambda hit: -hit.score)

    async def _score(self, tenant: str, query: str, texts: Sequence[str]) -> list[float]:
        """Return the scores of texts. A text that exceeds the model's context is scored by its best part."""
        context = (await self._tasks.find(self._model, "rerank")).capabilities.context
        windows = [[text] for text in texts]
        if context is not None:
            room = max(context - estimate_tokens(query) - _SPECIAL_TOKENS, context // 4)
            windows = [await split_windows(text, room, _estimate) for text in texts]
        joined = [window for parts in windows for window in parts]
        scores = iter(_to_unit(await self._tasks.rank(tenant, self._model, query, joined)))
        return [max([next(scores) for _ in parts]) for parts in windows]


async def _estimate(text: str) -> int:
    return estimate_tokens(text)


def _to_unit(scores: Sequence[float]) -> Iterable[float]:
    """Return scores from 0 to 1. Some engines return logits: llama.cpp does for most models, but not for all."""
    if all(0.0 <= score <= 1.0 for score in scores):
        return scores
    return [(1.0 + math.tanh(score / 2.0)) / 2.0 for score in scores]  # the logistic function, without overflow

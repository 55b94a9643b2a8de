"""Adapter for OpenVINO Model Server: its OpenAI endpoints are below /v3, its version is reported through KServe's /v2.

Each of its models supports one task. The error for a request without any fields reveals which.
"""

from collections.abc import Sequence
from typing import ClassVar

from antiphon.core.prompt import Json, Segment
from antiphon.engines.base import Task
from antiphon.engines.http.base import HttpEngine
from antiphon.engines.http.health_monitor import ProbedCapabilities
from antiphon.engines.http.readers import wire


class Ovms(HttpEngine):
    name = "ovms"
    port = 8000
    api = "/v3"
    version_path = "/v2"
    includes_stop = True
    raw_levels = frozenset({"text"})
    task_paths: ClassVar[dict[Task, str]] = {
        "embed": "/v3/embeddings",
        "rerank": "/v3/rerank",
        "tokenize": "/v3/tokenize",
        "transcribe": "/v3/audio/transcriptions",
        "translate": "/v3/audio/translations",
    }
    embeds_tokens = False

    async def probe_capabilities(self, cards: Sequence[wire.ModelCard]) -> ProbedCapabilities:
        return ProbedCapabilities(tasks={card.id: await self._probe_model_tasks(card.id) for card in cards})

    async def _probe_model_tasks(self, model: str) -> frozenset[Task]:
        error_text = (
            await self._probe_client.fetch_error_text(self.task_paths["embed"], {"model": model}) or ""
        ).lower()
        if "query" in error_text or "documents" in error_text:
            return frozenset({"rerank", "tokenize"})
        if "input" in error_text and "endpoint" not in error_text:
            return frozenset({"embed", "tokenize"})
        return frozenset({"generate", "tokenize"})

    async def _tokenize_text(self, model: str, segments: Sequence[Segment], special: bool) -> tuple[int, ...]:
        text = "".join([segment.text for segment in segments])
        body: Json = {"model": model, "text": text, "add_special_tokens": special}
        return tuple((await self._post_quick(model, self._task_path("tokenize"), body, wire.TOKENIZE_REPLY)).tokens)

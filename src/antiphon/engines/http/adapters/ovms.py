"""OpenVINO Model Server, whose OpenAI endpoints are below /v3 and whose own version KServe's protocol tells.

Each of its models does one thing. Which, its words about a request tell in which everything is missing.
"""

from collections.abc import Sequence
from typing import ClassVar

from antiphon.core.prompt import Json, Segment
from antiphon.engines.base import Deed
from antiphon.engines.http.base import HttpEngine
from antiphon.engines.http.health_monitor import Abilities
from antiphon.engines.http.readers import wire


class Ovms(HttpEngine):
    name = "ovms"
    port = 8000
    api = "/v3"
    version_path = "/v2"
    includes_stop = True
    takes = frozenset({"text"})
    deeds: ClassVar[dict[Deed, str]] = {
        "embed": "/v3/embeddings",
        "rerank": "/v3/rerank",
        "tokenize": "/v3/tokenize",
        "transcribe": "/v3/audio/transcriptions",
        "translate": "/v3/audio/translations",
    }
    embeds_tokens = False

    async def learn(self, cards: Sequence[wire.ModelCard]) -> Abilities:
        return Abilities(does={card.id: await self._deeds(card.id) for card in cards})

    async def _deeds(self, model: str) -> frozenset[Deed]:
        words = (await self._asking.refusal(self.deeds["embed"], {"model": model}) or "").lower()
        if "query" in words or "documents" in words:
            return frozenset({"rerank", "tokenize"})
        if "input" in words and "endpoint" not in words:
            return frozenset({"embed", "tokenize"})
        return frozenset({"generate", "tokenize"})

    async def _text_tokens(self, model: str, segments: Sequence[Segment], special: bool) -> tuple[int, ...]:
        text = "".join([segment.text for segment in segments])
        body: Json = {"model": model, "text": text, "add_special_tokens": special}
        return tuple((await self._asked(model, self._path("tokenize"), body, wire.TOKENIZED)).tokens)

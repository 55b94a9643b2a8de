"""OpenAI, and any server that speaks its chat completions."""

from collections.abc import Sequence
from typing import ClassVar

from antiphon.engines.base import Deed
from antiphon.engines.http.base import HttpEngine
from antiphon.engines.http.health_monitor import Abilities
from antiphon.engines.http.readers import wire


class OpenAI(HttpEngine):
    """The path of its URL is that of the whole API, as in the `base_url` of OpenAI's own client."""

    name = "openai"
    port = 80
    api = ""
    deeds: ClassVar[dict[Deed, str]] = {
        "embed": "/embeddings",
        "transcribe": "/audio/transcriptions",
        "translate": "/audio/translations",
    }
    embedding_fields = frozenset({"dimensions"})
    gullible = False  # the API tells control tokens from text itself

    async def learn(self, cards: Sequence[wire.ModelCard]) -> Abilities:
        """Which model is good for what is told nowhere; only which paths there are."""
        does: frozenset[Deed] = await self._found() | {"generate"}
        completes = await self._asking.has("/completions")
        return Abilities(
            takes=frozenset({"text", "tokens"}) if completes else frozenset(),
            does={card.id: does for card in cards},
        )

    def _prefix(self, path: str) -> str:
        return path or "/v1"

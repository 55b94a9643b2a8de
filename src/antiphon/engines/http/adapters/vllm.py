"""vLLM's OpenAI server.

It has no page that says what it was started with, so it is asked for things that it refuses before it works on them,
and its words tell: whether it parses tool calls, and whether the model sees.
"""

import asyncio
from collections.abc import Sequence
from typing import ClassVar

from antiphon.core.prompt import Json
from antiphon.engines.base import Deed
from antiphon.engines.http.adapters.tokenization import Tokenizing
from antiphon.engines.http.health_monitor import Abilities
from antiphon.engines.http.readers import wire
from antiphon.engines.http.tasks import HELLO, LOOK

# 32 × 32 grey points.
_PICTURE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAACAAAAAgCAAAAABWESUoAAAAFklEQVR42mNoIAAYRhWMKhhVMFIVAABC"
    "AAAfN5c2AAAAAABJRU5ErkJggg=="
)
_SEEN: Json = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": _PICTURE}}]}


class Vllm(Tokenizing):
    name = "vllm"
    port = 8000
    version_path = "/version"
    deeds: ClassVar[dict[Deed, str]] = {
        "generate": "/v1/chat/completions",
        "embed": "/v1/embeddings",
        "tokenize": "/tokenize",
        "detokenize": "/detokenize",
        "score": "/score",
        "rerank": "/rerank",
        "classify": "/classify",
        "pooling": "/pooling",
        "transcribe": "/v1/audio/transcriptions",
        "translate": "/v1/audio/translations",
    }
    embedding_fields = frozenset({"dimensions", "truncate_prompt_tokens"})

    async def learn(self, cards: Sequence[wire.ModelCard]) -> Abilities:
        if not cards:
            return Abilities()
        model, does = cards[0].id, await self._found()
        if "generate" not in does:
            return Abilities(does={card.id: does for card in cards})
        parses, sees = await asyncio.gather(self._parses_tools(model), self._sees(model))
        lacks = {} if sees else {"input_image": "The model sees no images."}
        if not parses:
            lacks["tools"] = "It was started without --enable-auto-tool-choice and --tool-call-parser."
        return Abilities(
            counts=await self._can_count(model),
            does={card.id: does for card in cards},
            lacks=lacks,
            parsers={"tools": "yes"} if parses else {},
            openers=await self._openers(model),
            knows_tools=await self._knows_tools(model),
        )

    async def _parses_tools(self, model: str) -> bool:
        """It looks at the tools first, and then refuses the template."""
        body: Json = {"model": model, "messages": [HELLO], "tools": [LOOK], "tool_choice": "auto"}
        body |= {"chat_template": "-", "max_completion_tokens": 1}
        return "--tool-call-parser" not in (await self._asking.refusal("/v1/chat/completions", body) or "")

    async def _sees(self, model: str) -> bool:
        words = await self._asking.refusal("/tokenize", {"model": model, "messages": [_SEEN]})
        return "multimodal" not in (words or "")

"""llama.cpp's own server.

It looks for a client that hung up only when it has something to send: progress on the prompt makes it look.
It cannot be told to forget what waits in its queue, so no more is sent than it has slots for.
Where a template knows no tools it tells of them itself, in words that only it reads: so the template is looked at.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import ClassVar

from msgspec import Struct, field
from msgspec.json import Decoder
from msgspec.structs import replace

from antiphon.core.prompt import ChatPrompt, Json, Segment
from antiphon.engines.base import Deed
from antiphon.engines.client import Refused
from antiphon.engines.http.base import HttpEngine
from antiphon.engines.http.body import RawBody, Words
from antiphon.engines.http.endpoints import CompletionWay, Way
from antiphon.engines.http.health_monitor import Abilities, Probe
from antiphon.engines.http.readers import wire
from antiphon.engines.llamacpp.wire import FIELDS


class Modalities(Struct):
    vision: bool = False


class Props(Struct):
    total_slots: int | None = None
    build_info: str | None = None
    modalities: Modalities = field(default_factory=Modalities)
    chat_template: str = ""


class Applied(Struct):
    prompt: str


PROPS = Decoder(Props)
APPLIED = Decoder(Applied)
_ALWAYS: frozenset[Deed] = frozenset({"tokenize", "detokenize"})
_STARTED_FOR: tuple[Deed, ...] = ("embed", "rerank")


class _Body(RawBody):
    shows = "preserved_tokens"


class LlamaCppServer(HttpEngine):
    name = "llamacpp-server"
    port = 8080
    counting_path = "/v1/chat/completions/input_tokens"
    fixed: ClassVar[Json] = {"return_progress": True}
    goes_on = True  # unless it was started with --no-prefill-assistant, which it does not tell
    levels = frozenset({"chat", "tokens"})
    takes = frozenset({"text", "tokens"})
    splits_text = True
    deeds: ClassVar[dict[Deed, str]] = {
        "embed": "/v1/embeddings",
        "tokenize": "/tokenize",
        "detokenize": "/detokenize",
        "rerank": "/v1/rerank",
    }

    async def probe(self) -> Probe:
        found, props = await super().probe(), await self._props()
        slots = props.total_slots if props.total_slots and props.total_slots > 0 else None
        abilities = found.abilities
        if not props.modalities.vision:
            abilities = replace(abilities, lacks={"input_image": "The model sees no images."})
        abilities = replace(
            abilities,
            knows_tools=not self._by_tokens or "tools" in props.chat_template,
            wording=props.chat_template if self._by_tokens else "",
        )
        return replace(found, version=props.build_info, slots=slots, abilities=abilities)

    async def learn(self, cards: Sequence[wire.ModelCard]) -> Abilities:
        if not cards:
            return Abilities()
        does = _ALWAYS | frozenset([deed for deed in _STARTED_FOR if await self._asking.has(self.deeds[deed])])
        if does == _ALWAYS or await self._generates():
            does |= {"generate"}
        model = cards[0].id
        return Abilities(
            counts=await self._can_count(model),
            does={card.id: does for card in cards},
            openers=await self._openers(model),
        )

    async def _generates(self) -> bool:
        """Who was started for vectors or ranks may do so too: for a model that cannot, this is refused."""
        words = await self._asking.refusal("/completion", {"prompt": "a", "n_predict": 0, "stream": False})
        return "does not support logits" not in (words or "")

    def _raw_way(self, words: Words) -> Way:
        fixed = {"return_tokens": True, "return_progress": True, "cache_prompt": True, "response_fields": FIELDS}
        return CompletionWay(self._who, f"{self._root}/completion", _Body(words, fixed))

    async def _text_tokens(self, model: str, segments: Sequence[Segment], special: bool) -> tuple[int, ...]:
        """Only in control segments is text taken for control tokens."""
        tokens: list[int] = []
        for control, run in groupby(segments, key=lambda segment: segment.control):
            text = "".join([segment.text for segment in run])
            tokens += await self._tokens(model, text, special and not tokens, control)
        return tuple(tokens)

    async def _chat_tokens(self, model: str, prompt: ChatPrompt, effort: str | None) -> tuple[int, ...]:
        body = self._conversation(model, prompt)
        if prompt.tools:
            body["tools"] = prompt.tools
        rendered = (await self._asked(model, f"{self._root}/apply-template", body, APPLIED)).prompt
        return tuple(await self._tokens(model, rendered, True, True))

    async def _tokens(self, model: str, text: str, special: bool, control: bool) -> list[int]:
        body: Json = {"content": text, "add_special": special, "parse_special": control}
        return (await self._asked(model, self._path("tokenize"), body, wire.TOKENIZED)).tokens

    async def _props(self) -> Props:
        try:
            return await self._asking.get("/props", PROPS)
        except Refused:
            return Props()

"""SGLang's server. What it was started with is on two pages of its own.

It does not look at the ids of tokens that it is sent: one that is not in the vocabulary ends the whole server. How many
there are is said by its words about a bias on a token that cannot be.

SGLang's ranking, told as others tell it: it answers with a bare list, and calls what is relevant a score.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.json import Decoder, encode

from antiphon.core.prompt import Json
from antiphon.engines.base import Deed, Relayed, believed
from antiphon.engines.http.adapters.tokenization import Tokenizing
from antiphon.engines.http.body import RawBody, Words
from antiphon.engines.http.endpoints import GenerateWay, Way
from antiphon.engines.http.health_monitor import Abilities
from antiphon.engines.http.readers import wire
from antiphon.errors import EngineFailed


class _Meta(Struct):
    prompt_tokens: int | None = None


class _Ranked(Struct):
    index: int
    score: float
    document: str | UnsetType | None = UNSET
    meta_info: _Meta | None = None


class _Document(Struct):
    text: str


class _Result(Struct, omit_defaults=True):
    index: int
    relevance_score: float
    document: _Document | UnsetType = UNSET


_LIST = Decoder(list[_Ranked])


def ranked(answer: Relayed, model: str, who: str) -> Relayed:
    """`who` begins the sentence about what is no ranking."""
    try:
        found = _LIST.decode(answer.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise EngineFailed(f"{who} sent a ranking that cannot be read.") from None
    tokens = sum([believed(one.meta_info.prompt_tokens) for one in found if one.meta_info])
    results = [_Result(one.index, one.score, _document(one)) for one in found]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return Relayed(encode({"model": model, "usage": usage, "results": results}))


def _document(one: _Ranked) -> "_Document | UnsetType":
    return _Document(one.document) if isinstance(one.document, str) else UNSET


_TOKENS: frozenset[Deed] = frozenset({"tokenize", "detokenize"})
_FOR: dict[str, frozenset[Deed]] = {"embed": frozenset({"embed"}), "classify": frozenset({"rerank", "classify"})}


class Vectors(Struct, frozen=True):
    """What a model that does not generate makes of a text. An older version tells nothing of it."""

    task: str = ""
    supports_dimensions: bool = True


class ModelInfo(Struct):
    """What an older version does not tell is taken for granted."""

    is_generation: bool = True
    has_image_understanding: bool = True
    tool_call_parser: str | UnsetType | None = UNSET
    reasoning_parser: str | UnsetType | None = UNSET
    model_type: str | None = None
    embedding: Vectors = Vectors()


class ServerInfo(Struct):
    """The same."""

    incremental_streaming_output: bool = False
    stream_output: bool = False  # its name in older versions
    enable_deterministic_inference: bool = True


MODEL_INFO = Decoder(ModelInfo)
SERVER_INFO = Decoder(ServerInfo)


class Sglang(Tokenizing):
    name = "sglang"
    port = 30000
    version_path = "/server_info"
    tells_all = True
    deeds: ClassVar[dict[Deed, str]] = {
        "embed": "/v1/embeddings",
        "tokenize": "/tokenize",
        "detokenize": "/detokenize",
        "score": "/v1/score",
        "rerank": "/v1/rerank",
        "classify": "/v1/classify",
        "transcribe": "/v1/audio/transcriptions",
    }
    embedding_fields = frozenset({"dimensions"})

    async def learn(self, cards: Sequence[wire.ModelCard]) -> Abilities:
        if not cards:
            return Abilities()
        info, server = await self._page("/model_info", MODEL_INFO), await self._page("/server_info", SERVER_INFO)
        self._generate.whole = not (server.incremental_streaming_output or server.stream_output)
        counts = await self._can_count(cards[0].id)
        does = await self._deeds(info)
        return Abilities(
            counts=counts,
            does={card.id: does for card in cards},
            lacks=_lacks(info, server),
            parsers=_parsers(info),
            openers=await self._openers(cards[0].id),
            architecture=info.model_type,
            knows_tools=await self._knows_tools(cards[0].id),
            vocabulary=await self._vocabulary(),
        )

    def _retold(self, model: str, deed: Deed, answer: Relayed) -> Relayed:
        return ranked(answer, model, self._who) if deed == "rerank" else super()._retold(model, deed, answer)

    def _raw_way(self, words: Words) -> Way:
        self._generate = GenerateWay(
            self._who, f"{self._root}/generate", RawBody(words, {}, text="text", ids="input_ids", named=False)
        )
        return self._generate

    async def _deeds(self, info: ModelInfo) -> frozenset[Deed]:
        """The paths are there for every model: which of them it is good for is told."""
        tokens = frozenset([deed for deed in _TOKENS if await self._asking.has(self.deeds[deed])])
        if info.is_generation:
            return tokens | {"generate", "score"}
        return tokens | _FOR.get(info.embedding.task, frozenset({"embed", "rerank", "classify"}))

    async def _vocabulary(self) -> int | None:
        body: Json = {"input_ids": [0], "sampling_params": {"max_new_tokens": 1, "logit_bias": {"-1": 0}}}
        last = (await self._asking.refusal("/generate", body) or "").partition(" keys in [0, ")[2].partition("]")[0]
        return int(last) + 1 if last.isascii() and last.isdigit() else None

    async def _page(self, path: str, decoder: Decoder[Any]) -> Any:
        try:
            return await self._asking.get(path, decoder)
        except EngineFailed:
            return decoder.decode(b"{}")


def _lacks(info: ModelInfo, server: ServerInfo) -> dict[str, str]:
    lacks: dict[str, str] = {}
    if info.tool_call_parser is None:
        lacks["tools"] = "It was started without --tool-call-parser."
    if not info.has_image_understanding:
        lacks["input_image"] = "The model sees no images."
    if not info.is_generation and not info.embedding.supports_dimensions:
        lacks["dimensions"] = "The model's vectors have one size."
    if not server.enable_deterministic_inference:
        lacks["seed"] = "It was started without --enable-deterministic-inference, and would not keep to it."
    return lacks


def _parsers(info: ModelInfo) -> dict[str, str]:
    told = {"tools": info.tool_call_parser, "reasoning": info.reasoning_parser}
    return {what: name for what, name in told.items() if isinstance(name, str)}

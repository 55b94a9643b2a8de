"""What the fake engine does beside generating: embeddings, tokens, and the shapes of those who score, rank and hear.

Tokens with numbers are those of the token level, one for each character; at the other levels it has none to tell.

Embeddings without a model: the words of a text, each a direction of its own, so that like texts are near.

The same text always gives the same vector, in every process. A vector that is cut and made long again is a vector too.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Annotated, Any

from msgspec import Meta, MsgspecError, Struct
from msgspec.json import Decoder, Encoder

from antiphon.core.prompt import ChatPrompt, Prompt, Segment, TextPrompt, TokenPrompt
from antiphon.engines.base import JSON, Deed, Embedded, GeneratesOnly, Relayed
from antiphon.engines.fake.harmony_loader import harmony
from antiphon.engines.fake.prompt_reader import Reading, read
from antiphon.engines.fake.tokens import Level, decode, encode
from antiphon.errors import ContextTooLong, InvalidValue

DIMENSIONS = 64

_WORDS = re.compile(r"\w+")


def vector(text: str, dimensions: int = DIMENSIONS) -> list[float]:
    """Of length 1."""
    words = Counter(_WORDS.findall(text.lower())) or Counter([text])
    sums = [0.0] * dimensions
    for word, times in sorted(words.items()):
        for place, sign in enumerate(_direction(word)[:dimensions]):
            sums[place] += sign * times
    if not any(sums):
        sums[0] = 1.0
    length = math.sqrt(math.fsum([number * number for number in sums]))
    return [number / length for number in sums]


def likeness(one: Sequence[float], other: Sequence[float]) -> float:
    """The cosine of the angle between two vectors of length 1."""
    return math.fsum(_products(one, other))


def _products(one: Sequence[float], other: Sequence[float]) -> Iterable[float]:
    return (left * right for left, right in zip(one, other, strict=True))


@lru_cache(maxsize=4096)
def _direction(word: str) -> tuple[int, ...]:
    digest = blake2b(word.encode("utf-8", "surrogatepass"), digest_size=DIMENSIONS // 8).digest()
    return tuple(1 if byte >> bit & 1 else -1 for byte in digest for bit in range(8))


_encode = Encoder().encode

Texts = str | list[str]


class _Score(Struct):
    text_1: Texts
    text_2: Texts
    model: str = "fake"


class _Rerank(Struct):
    query: str
    documents: list[str]
    model: str = "fake"
    top_n: Annotated[int, Meta(ge=0)] = 0


_SCORE = Decoder(_Score)
_RERANK = Decoder(_Rerank)


def does(level: Level) -> frozenset[Deed]:
    always: frozenset[Deed] = frozenset({"generate", "embed", "score", "rerank", "transcribe"})
    return always | {"tokenize", "detokenize"} if level in ("tokens", "harmony") else always


class FakeDeeds(GeneratesOnly):
    """For the engine to inherit."""

    level: Level
    context: int | None

    async def embed(
        self,
        model: str,
        inputs: Sequence[str | Sequence[int]],
        dimensions: int | None = None,
        truncate: int | None = None,
    ) -> Embedded:
        wide = DIMENSIONS if dimensions is None else dimensions
        if not 1 <= wide <= DIMENSIONS:
            raise InvalidValue(f"A vector of this model has 1 to {DIMENSIONS} dimensions.", param="dimensions")
        read = [self._read(given, truncate) for given in inputs]
        vectors = [vector(text, wide) for text, _ in read]
        return Embedded(vectors=vectors, tokens=sum([tokens for _, tokens in read]))

    async def tokenize(self, model: str, prompt: Prompt, special: bool = True) -> tuple[int, ...]:
        match prompt:
            case TextPrompt(segments) if self.level == "tokens":
                return encode(segments)
            case TextPrompt(segments) if self.level == "harmony":
                return harmony().encode(segments)
            case TokenPrompt(tokens):
                return tokens
            case _:
                raise self._undone("has no numbers for its tokens at this level")

    async def detokenize(self, model: str, tokens: Sequence[int]) -> str:
        if self.level == "harmony":
            return harmony().decode(tokens)
        return "".join([segment.text for segment in decode(tokens, "tokens")])

    async def relay(self, model: str, deed: Deed, body: bytes, media_type: str = JSON) -> Relayed:
        match deed:
            case "score":
                return Relayed(_encode(_scored(_asked(_SCORE, body))))
            case "rerank":
                return Relayed(_encode(_ranked(_asked(_RERANK, body))))
            case "transcribe":
                return Relayed(_encode({"text": f"You sent {len(body)} bytes of {media_type.partition(';')[0]}."}))
            case _:
                raise self._undone(f"does not {deed}")

    def reading(self, prompt: Prompt) -> Reading:
        if self.level == "harmony" and not isinstance(prompt, ChatPrompt):
            return harmony().read(prompt)
        return read(prompt, self.level)

    def _read(self, given: str | Sequence[int], truncate: int | None) -> tuple[str, int]:
        """The text, and how many tokens of it."""
        prompt: Prompt = TextPrompt((Segment(given, False),)) if isinstance(given, str) else TokenPrompt(tuple(given))
        reading = self.reading(prompt)
        most = self.context if truncate in (None, -1) else truncate
        if most is None or reading.tokens <= most:
            return reading.text, reading.tokens
        if truncate is None:
            raise ContextTooLong(f"An input has {reading.tokens} tokens; this model takes {most}.", param="input")
        return reading.text[: most * reading.width], most


def _asked(decoder: Decoder[Any], body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except MsgspecError as error:
        raise InvalidValue(f"The fake engine cannot read this: {error}.") from None


def _scored(asked: _Score) -> dict[str, Any]:
    lefts = [asked.text_1] if isinstance(asked.text_1, str) else asked.text_1
    rights = [asked.text_2] if isinstance(asked.text_2, str) else asked.text_2
    lefts = lefts * len(rights) if len(lefts) == 1 else lefts
    if len(lefts) != len(rights):
        raise InvalidValue("text_1 and text_2 are not of the same length.", param="text_2")
    scores = [likeness(vector(left), vector(right)) for left, right in zip(lefts, rights, strict=True)]
    data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)]
    return {"object": "list", "model": asked.model, "data": data}


def _ranked(asked: _Rerank) -> dict[str, Any]:
    query = vector(asked.query)
    scores = [(likeness(query, vector(text)), index) for index, text in enumerate(asked.documents)]
    best = sorted(scores, key=lambda scored: (-scored[0], scored[1]))[: asked.top_n or None]
    results = [
        {"index": index, "document": {"text": asked.documents[index]}, "relevance_score": score}
        for score, index in best
    ]
    return {"model": asked.model, "results": results}

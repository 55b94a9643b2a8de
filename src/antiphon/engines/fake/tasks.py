"""Tasks of the fake engine beside generation: embeddings, tokenization, speech, and the reply formats of score, rerank,
transcribe and moderate.

Token ids exist at token level (one per character) and at Harmony level; the other levels have none.

Embeddings need no model: every word of a text contributes a direction of its own, so similar texts are close. The same
text gives the same vector in every process, and a shortened vector is normalised again.

A text is flagged for every moderation category whose name it contains; images are never flagged. Speech is
silence, a tenth of a second for each word.
"""

import asyncio
import math
import re
import struct
from base64 import b64encode
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct, ValidationError

from antiphon.core.prompt import ChatPrompt, Prompt, Segment, TextPrompt, TokenPrompt
from antiphon.engines import base
from antiphon.engines.fake.harmony import decode_tokens, encode_segments, parse_harmony_prompt
from antiphon.engines.fake.prompt_reader import ParsedPrompt, parse_prompt
from antiphon.engines.fake.tokens import Level, decode, encode
from antiphon.errors import ContextTooLong, InvalidValue, UnsupportedParameter
from antiphon.protocol.bodies.moderations import CATEGORIES, CreateModeration, ModerationText, list_inputs
from antiphon.protocol.bodies.speech import CreateSpeech
from antiphon.protocol.decoding.error_messages import explain

DIMENSIONS = 64

_WORD_PATTERN = re.compile(r"\w+")
_SILENCE = b"\x80" * 800  # unsigned samples of 8 bits at 8 kHz


def embed_text(text: str, dimensions: int = DIMENSIONS) -> list[float]:
    """Return an embedding of length 1."""
    counts = Counter(_WORD_PATTERN.findall(text.lower())) or Counter([text])
    sums = [0.0] * dimensions
    for token, count in sorted(counts.items()):
        for index, sign in enumerate(_direction(token)[:dimensions]):
            sums[index] += sign * count
    if not any(sums):
        sums[0] = 1.0
    length = math.sqrt(math.fsum([number * number for number in sums]))
    return [number / length for number in sums]


def cosine_similarity(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the cosine of the angle between two vectors of length 1."""
    return math.fsum([x * y for x, y in zip(one, other, strict=True)])


@lru_cache(maxsize=4096)
def _direction(token: str) -> tuple[int, ...]:
    digest = blake2b(token.encode("utf-8", "surrogatepass"), digest_size=DIMENSIONS // 8).digest()
    return tuple(1 if byte >> bit & 1 else -1 for byte in digest for bit in range(8))


T = TypeVar("T", bound=Struct)
Texts = str | list[str]


class _ScoreBody(Struct):
    text_1: Texts
    text_2: Texts
    model: str = "fake"


class _RerankBody(Struct):
    query: str
    documents: list[str]
    model: str = "fake"
    top_n: Annotated[int, Meta(ge=0)] = 0


class FakeTasks(base.Engine):
    """Base class of `FakeEngine`."""

    level: Level
    context: int | None

    async def embed(
        self, model: str, inputs: base.EmbeddingInputs, dimensions: int | None = None, truncate: int | None = None
    ) -> base.EmbeddingResult:
        size = DIMENSIONS if dimensions is None else dimensions
        if not 1 <= size <= DIMENSIONS:
            raise InvalidValue(f"A vector of this model has 1 to {DIMENSIONS} dimensions.", param="dimensions")
        texts = [self._input_text(value, truncate) for value in inputs]
        vectors = [embed_text(text, size) for text, _ in texts]
        return base.EmbeddingResult(vectors=vectors, tokens=sum([tokens for _, tokens in texts]))

    async def tokenize(self, model: str, prompt: Prompt, special: bool = True) -> tuple[int, ...]:
        match prompt:
            case TextPrompt(segments) if self.level == "tokens":
                return encode(segments)
            case TextPrompt(segments) if self.level == "harmony":
                return encode_segments(segments)
            case TokenPrompt(tokens):
                return tokens
            case _:
                raise base.unsupported_task(self, "has no token ids at this level")

    async def detokenize(self, model: str, tokens: Sequence[int]) -> str:
        if self.level == "harmony":
            return decode_tokens(tokens)
        return "".join([segment.text for segment in decode(tokens, "tokens")])

    async def pass_through(
        self, model: str, task: base.Task, body: bytes, media_type: str = base.JSON_MEDIA_TYPE
    ) -> base.PassthroughReply:
        match task:
            case "score":
                reply = _score_pairs(_decode_body(_ScoreBody, body))
            case "rerank":
                reply = _rank_documents(_decode_body(_RerankBody, body))
            case "moderate":
                reply = _moderate(_decode_body(CreateModeration, body))
            case "transcribe":
                reply = {"text": f"You sent {len(body)} bytes of {media_type.partition(';')[0]}."}
            case _:
                raise base.unsupported_task(self, f"does not {task}")
        return base.PassthroughReply(msgspec.json.encode(reply))

    async def speak(self, model: str, body: bytes, as_events: bool = False) -> AsyncGenerator[bytes, None]:
        request = _decode_body(CreateSpeech, body)
        if request.response_format not in ("wav", "pcm"):
            raise UnsupportedParameter("The fake engine speaks wav and pcm only.", param="response_format")
        pieces = [_SILENCE] * len(_WORD_PATTERN.findall(request.input))
        if request.response_format == "wav":
            pieces.insert(0, _wav_header(len(pieces) * len(_SILENCE)))
        for piece in pieces:
            await asyncio.sleep(0)
            yield _to_event({"type": "speech.audio.delta", "audio": b64encode(piece).decode()}) if as_events else piece
        if as_events:
            usage = {"input_tokens": len(pieces), "output_tokens": len(pieces), "total_tokens": 2 * len(pieces)}
            yield _to_event({"type": "speech.audio.done", "usage": usage})

    def parse_prompt(self, prompt: Prompt) -> ParsedPrompt:
        if self.level == "harmony" and not isinstance(prompt, ChatPrompt):
            return parse_harmony_prompt(prompt)
        return parse_prompt(prompt, self.level)

    def _input_text(self, value: str | Sequence[int], truncate: int | None) -> tuple[str, int]:
        """Return the text of an input, truncated if requested, and its number of tokens."""
        prompt: Prompt = TextPrompt((Segment(value, False),)) if isinstance(value, str) else TokenPrompt(tuple(value))
        parsed = self.parse_prompt(prompt)
        limit = self.context if truncate in (None, -1) else truncate
        if limit is None or parsed.tokens <= limit:
            return parsed.text, parsed.tokens
        if truncate is None:
            raise ContextTooLong(f"An input has {parsed.tokens} tokens; this model takes {limit}.", param="input")
        return parsed.text[: limit * parsed.width], limit


def _decode_body(kind: type[T], body: bytes) -> T:
    raw = msgspec.json.decode(body)
    try:
        return msgspec.convert(raw, kind)
    except ValidationError as error:
        raise explain(error, raw, kind) from None


def _wav_header(size: int) -> bytes:
    """Return the header of a WAV file with so many bytes of samples, each of 8 bits, at 8 kHz."""
    return struct.pack("<4sI8sIHHIIHH4sI", b"RIFF", 36 + size, b"WAVEfmt ", 16, 1, 1, 8000, 8000, 1, 8, b"data", size)


def _to_event(event: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % msgspec.json.encode(event)


def _moderate(body: CreateModeration) -> dict[str, Any]:
    texts = [
        one if isinstance(one, str) else " ".join([part.text for part in one if isinstance(part, ModerationText)])
        for one in list_inputs(body)
    ]
    flags = [{name: name in text for name in CATEGORIES} for text in texts]
    results = [
        {
            "flagged": any(each.values()),
            "categories": each,
            "category_scores": {name: 0.99 if flag else 0.01 for name, flag in each.items()},
        }
        for each in flags
    ]
    return {"id": "modr-fake", "model": body.model, "results": results}


def _score_pairs(body: _ScoreBody) -> dict[str, Any]:
    first_texts = [body.text_1] if isinstance(body.text_1, str) else body.text_1
    second_texts = [body.text_2] if isinstance(body.text_2, str) else body.text_2
    first_texts = first_texts * len(second_texts) if len(first_texts) == 1 else first_texts
    if len(first_texts) != len(second_texts):
        raise InvalidValue("text_1 and text_2 must have the same length.", param="text_2")
    scores = [
        cosine_similarity(embed_text(first), embed_text(second))
        for first, second in zip(first_texts, second_texts, strict=True)
    ]
    data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)]
    return {"object": "list", "model": body.model, "data": data}


def _rank_documents(body: _RerankBody) -> dict[str, Any]:
    query = embed_text(body.query)
    scores = [(cosine_similarity(query, embed_text(text)), index) for index, text in enumerate(body.documents)]
    best = sorted(scores, key=lambda scored: (-scored[0], scored[1]))[: body.top_n or None]
    results = [
        {"index": index, "document": {"text": body.documents[index]}, "relevance_score": score} for score, index in best
    ]
    return {"model": body.model, "results": results}

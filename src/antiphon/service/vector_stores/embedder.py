"""Embeds texts for vector stores with a model of a configured engine, and counts their tokens with its tokenizer.

The model is the one of the settings; without one, a store keeps the model that embedded it, and a new store gets the
first model that embeds. So an engine that is unreachable for a while never changes the model of a store.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from struct import pack, unpack

from msgspec import Struct

from antiphon.core.prompt import Segment, TextPrompt
from antiphon.errors import ContextTooLong, EngineFailed, NotFound
from antiphon.protocol.bodies.embeddings import CreateEmbedding
from antiphon.service.engine_tasks import EngineTasks, TaskTarget
from antiphon.service.vector_stores.chunker import find_cut

_DEFAULT_WINDOW = 512  # tokens, for engines that do not report a context
_SPECIAL_TOKENS = 4  # of a window, for those that the model adds to a text
_BYTES_PER_TOKEN = 3  # estimate for engines that cannot tokenize; English has more than 4
NUMBER_BYTES = 2  # of a dimension: 16 bits change a cosine in the fourth digit
_MIN_LENGTH = 1e-12  # of a vector that has a direction


class EmbeddingTarget(Struct, frozen=True):
    model: str  # name at its engine
    window: int  # tokens that it embeds at a time, without special tokens


class Embedder:
    def __init__(self, tasks: EngineTasks, model: str | None) -> None:
        """`model`: the model of the settings."""
        self._tasks = tasks
        self.model = model

    async def choose(self, stored: str) -> EmbeddingTarget:
        """Return the model for a store which `stored` has embedded so far. Raises NotFound, Unavailable."""
        use_stored = stored and self.model is None
        target = await self._find(stored) if use_stored else await self._tasks.find(self.model, "embed")
        context = target.capabilities.context or _DEFAULT_WINDOW
        return EmbeddingTarget(target.served.model, max(context - _SPECIAL_TOKENS, 1))

    async def count(self, model: str, text: str) -> int:
        """Return the number of tokens of a text, or an estimate if the engine cannot tokenize."""
        target = await self._find(model)
        if "tokenize" not in target.capabilities.tasks:
            return estimate_tokens(text)
        prompt = TextPrompt((Segment(text, control=False),))
        return len(await target.served.engine.tokenize(target.served.model, prompt, special=False))

    async def embed(self, tenant: str, model: str, texts: Sequence[str]) -> list[bytes]:
        """Return a vector for each text: of length 1, in little-endian 16-bit floats. A text that is too long for the
        model gets the mean of the vectors of its parts.

        Raises NotFound, Unavailable, Busy and EngineFailed.
        """
        vectors = [vector for vector in await self.embed_each(tenant, model, texts) if vector is not None]
        if len(vectors) < len(texts):
            raise EngineFailed(f"The model '{model}' returned a vector that is zero or not finite.")
        return vectors

    async def embed_each(self, tenant: str, model: str, texts: Sequence[str]) -> list[bytes | None]:
        """Like `embed`, with None for a text whose vector is zero or not finite."""
        await self._find(model)
        try:
            result = await self._tasks.embed(tenant, CreateEmbedding(model=model, input=[*texts]))
        except ContextTooLong:
            if len(texts) > 1:
                return [vector for text in texts for vector in await self.embed_each(tenant, model, [text])]
            return [await self._embed_halves(tenant, model, texts[0])]
        return [*map(_pack, result.vectors)]

    async def _embed_halves(self, tenant: str, model: str, text: str) -> bytes | None:
        """Embed a text that is longer than its estimated number of tokens."""
        if len(text) < 2:
            raise EngineFailed(f"The model '{model}' does not accept a text of one character.")
        middle = find_cut(text, 0, (len(text) + 1) // 2)
        halves = await self.embed(tenant, model, [text[:middle], text[middle:]])
        return _pack([sum(numbers) for numbers in zip(*map(_unpack, halves), strict=True)])

    async def _find(self, model: str) -> TaskTarget:
        """Find a model by its name at its engine. Another one that serves this name would give other vectors."""
        with suppress(NotFound):
            target = await self._tasks.find(model, "embed")
            if target.served.model == model:
                return target
        raise NotFound(
            f"The model '{model}', which embedded the vector store, is not served any more: serve it, or name another "
            "one with --embedding-model, which indexes the store again."
        )


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of a text, for engines that cannot tokenize."""
    return len(text.encode()) // _BYTES_PER_TOKEN + 1


def _pack(vector: Sequence[float]) -> bytes | None:
    length = math.sqrt(math.fsum([number * number for number in vector]))
    if not math.isfinite(length) or length < _MIN_LENGTH:
        return None
    return pack(f"<{len(vector)}e", *[number / length for number in vector])


def _unpack(vector: bytes) -> tuple[float, ...]:
    return unpack(f"<{len(vector) // NUMBER_BYTES}e", vector)

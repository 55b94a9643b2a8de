"""A GGUF file that makes vectors of texts: one child process, as for models that generate, in another mode.

A request's inputs are tokenised first, so that what is too long is refused before anything is computed, and what a
user wrote never becomes a control token. They are computed so many tokens at a time, which llama.cpp packs into its
batches: whoever leaves frees the engine after the batch under way.
"""

import math
from array import array
from base64 import b64decode
from collections.abc import Iterator, Sequence
from typing import NoReturn

from msgspec import Struct
from msgspec.json import Decoder

from antiphon.core.prompt import Prompt, Segment, TextPrompt, TokenPrompt, Work
from antiphon.engines.base import Capabilities, Deed, Embedded
from antiphon.engines.client import Refused
from antiphon.engines.gguf import Header
from antiphon.engines.llamacpp import wire
from antiphon.engines.llamacpp.model import LocalModel
from antiphon.errors import ContextTooLong, EngineFailed, InvalidValue, UnsupportedParameter

NO_POOLING, MEAN, RANK = 0, 1, 4
ENCODERS = frozenset({
    "bert", "eurobert", "gemma-embedding", "jina-bert-v2", "jina-bert-v3", "modern-bert", "neo-bert", "nomic-bert",
    "nomic-bert-moe",
})  # fmt: skip
# Models that were trained so that the first numbers of a vector are a vector too.
MATRYOSHKA = ("embeddinggemma", "nomic-embed-text-v1.5", "nomic-embed-text-v2", "qwen3-embedding", "jina-embeddings-v3")

INPUTS_AT_ONCE = 32
CHARACTERS_OF_A_TOKEN = 128  # more than any text has on average; a text that is longer than that is not even read
DOES: frozenset[Deed] = frozenset({"embed", "tokenize", "detokenize"})


class _Vector(Struct):
    index: int
    embedding: str  # base64


class _Vectors(Struct):
    data: list[_Vector]


_VECTORS = Decoder(_Vectors)


def pooling(header: Header) -> int | None:
    """How this file makes one vector of many; None: it makes none, it generates."""
    if header.pooling in (None, NO_POOLING):
        return MEAN if header.architecture in ENCODERS else None
    return header.pooling


def able(context: int, slots: int) -> Capabilities:
    return Capabilities(
        prompt="text",
        honours=frozenset({"dimensions", "truncate_prompt_tokens"}),
        does=DOES,
        context=context,
        slots=slots,
        counts=True,
    )


class EmbeddingModel(LocalModel):
    _around: tuple[list[int], list[int]] | None = None  # what the model wants before and after every text

    def capabilities(self) -> Capabilities:
        return able(self._launch.context, self._launch.slots)

    def answering(self, work: Work) -> NoReturn:
        raise UnsupportedParameter(f"The model {self.id} makes embeddings; it does not generate.", param="model")

    async def tokens(self, prompt: Prompt, special: bool = True) -> Sequence[int]:
        tokens = await super().tokens(prompt, special=False)
        if not special or isinstance(prompt, TokenPrompt):
            return tokens
        before, after = await self._wanted()
        return [*before, *tokens, *after]

    async def embed(
        self, inputs: Sequence[str | Sequence[int]], dimensions: int | None, truncate: int | None
    ) -> Embedded:
        wide = self._dimensions(dimensions)
        most = self._launch.context
        if truncate is not None and not 1 <= truncate <= most:
            truncate = self._truncation(truncate)
        rows = [await self._row(number, given, truncate) for number, given in enumerate(inputs)]
        vectors: list[list[float]] = []
        async with self._slots:
            for batch in _batches(rows, most):
                vectors += [_narrowed(vector, wide) for vector in await self._computed(batch)]
        return Embedded(vectors=vectors, tokens=sum(map(len, rows)))

    async def _row(self, number: int, given: str | Sequence[int], truncate: int | None) -> Sequence[int]:
        """The tokens of one input, as many as are wanted."""
        most = truncate or self._launch.context
        if isinstance(given, str):
            before, after = await self._wanted()
            tokens = await self._text(number, given, truncate)
            if truncate is not None:
                tokens = tokens[: max(most - len(before) - len(after), 0)]
            row: Sequence[int] = [*before, *tokens, *after]
        else:
            self.check_ids(given, "input")
            row = given if truncate is None else given[:most]
        if len(row) > most and truncate is None:
            raise _too_long(number, str(len(row)), most)
        return row

    async def _text(self, number: int, text: str, truncate: int | None) -> Sequence[int]:
        longest = self._launch.context * CHARACTERS_OF_A_TOKEN
        if len(text) > longest:
            if truncate is None:
                raise _too_long(number, "far too many", self._launch.context)
            text = text[:longest]
        return await super().tokens(TextPrompt((Segment(text, control=False),)), special=False)

    async def _computed(self, batch: Sequence[Sequence[int]]) -> list[list[float]]:
        body = wire.encode({"input": batch, "encoding_format": "base64"})
        try:
            answer = await self._ask(lambda running: running.client.post("/v1/embeddings", body, _VECTORS))
        except Refused as refused:
            raise wire.explained(refused) from None
        found = {vector.index: array("f", b64decode(vector.embedding)).tolist() for vector in answer.data}
        if sorted(found) != list(range(len(batch))):
            raise EngineFailed("The engine gave other vectors than it was asked for.")
        return [found[index] for index in range(len(batch))]

    def _least(self, prompt: Prompt) -> int:
        """A word that is not known is one token, however long it is."""
        if not isinstance(prompt, TextPrompt):
            return 0
        return sum([len(segment.text) for segment in prompt.segments]) // CHARACTERS_OF_A_TOKEN

    async def _wanted(self) -> tuple[list[int], list[int]]:
        if self._around is None:
            alone = await self._tokenise("", add_special=True)
            first = 1 if len(alone) > 1 or alone[:1] == [self._header.bos_id] else 0
            self._around = alone[:first], alone[first:]
        return self._around

    def _truncation(self, truncate: int) -> int:
        if truncate == -1:
            return self._launch.context
        most = self._launch.context
        raise InvalidValue(f"'truncate_prompt_tokens' is -1 or 1 to {most} here.", param="truncate_prompt_tokens")

    def _dimensions(self, wanted: int | None) -> int | None:
        """How many numbers of a vector to keep; None: all."""
        whole = self._header.width
        if wanted is None or wanted == whole:
            return None
        if not any(name in _plain(self._header.name) for name in map(_plain, MATRYOSHKA)):
            raise UnsupportedParameter(
                f"Vectors of the model {self.id} have {whole} dimensions: it was not made to be cut.",
                param="dimensions",
            )
        if whole is not None and wanted > whole:
            raise InvalidValue(f"Vectors of the model {self.id} have {whole} dimensions.", param="dimensions")
        return wanted


def _batches(rows: Sequence[Sequence[int]], tokens: int) -> Iterator[list[Sequence[int]]]:
    """So many tokens at a time, in order."""
    batch: list[Sequence[int]] = []
    room = tokens
    for row in rows:
        if batch and (len(row) > room or len(batch) == INPUTS_AT_ONCE):
            yield batch
            batch, room = [], tokens
        batch.append(row)
        room -= len(row)
    if batch:
        yield batch


def _narrowed(vector: list[float], wide: int | None) -> list[float]:
    if wide is None:
        return vector
    kept = vector[:wide]
    length = math.sqrt(math.fsum([number * number for number in kept])) or 1.0
    return [number / length for number in kept]


def _plain(name: str) -> str:
    return name.lower().replace(" ", "-").replace("_", "-")


def _too_long(number: int, tokens: str, most: int) -> ContextTooLong:
    return ContextTooLong(
        f"Input {number} has {tokens} tokens, and this model takes {most}. Shorten it, or send truncate_prompt_tokens.",
        param="input",
    )

"""A GGUF embedding model: one child process, as for models that generate, in embedding mode.

The inputs of a request are tokenized first, so that an input that is too long is rejected before anything is computed,
and user text never becomes a control token. They are computed a limited number of tokens at a time, which llama.cpp
packs into its batches: a cancelled request frees the engine after the current batch.
"""

import math
from array import array
from base64 import b64decode
from collections.abc import Iterator, Sequence
from typing import NoReturn

from msgspec import Struct
from msgspec.json import Decoder

from antiphon.core.prompt import GenerationRequest, Prompt, Segment, TextPrompt, TokenPrompt
from antiphon.engines.base import Capabilities, EmbeddingInputs, EmbeddingResult, Task
from antiphon.engines.client import EngineHttpError
from antiphon.engines.embedded import wire
from antiphon.engines.embedded.model import LocalModel
from antiphon.engines.gguf import MEAN, NO_POOLING, GgufHeader
from antiphon.errors import ContextTooLong, EngineFailed, InvalidValue, UnsupportedParameter

ENCODERS = frozenset({
    "bert", "eurobert", "gemma-embedding", "jina-bert-v2", "jina-bert-v3", "modern-bert", "neo-bert", "nomic-bert",
    "nomic-bert-moe",
})  # fmt: skip
# Models trained so that a prefix of a vector is a vector too (Matryoshka representation learning).
MATRYOSHKA = ("embeddinggemma", "nomic-embed-text-v1.5", "nomic-embed-text-v2", "qwen3-embedding", "jina-embeddings-v3")

MAX_BATCH_INPUTS = 32
MAX_CHARS_PER_TOKEN = 128  # above the average of any text; a longer text is not even tokenized
TASKS: frozenset[Task] = frozenset({"embed", "tokenize", "detokenize"})


class _EmbeddingData(Struct):
    index: int
    embedding: str  # base64


class _EmbeddingsBody(Struct):
    data: list[_EmbeddingData]


_EMBEDDINGS_DECODER = Decoder(_EmbeddingsBody)


def pooling_type(header: GgufHeader) -> int | None:
    """Return the pooling type of an embedding model; None for a model that generates."""
    if header.pooling in (None, NO_POOLING):
        return MEAN if header.architecture in ENCODERS else None
    return header.pooling


def embedding_capabilities(context: int, slots: int) -> Capabilities:
    return Capabilities(
        level="text",
        supported_fields=frozenset({"dimensions", "truncate_prompt_tokens"}),
        tasks=TASKS,
        context=context,
        slots=slots,
        can_count_tokens=True,
    )


class EmbeddingModel(LocalModel):
    """A model that computes embeddings and does not generate."""

    _added_tokens: tuple[list[int], list[int]] | None = None  # tokens the model requires before and after every text

    def capabilities(self) -> Capabilities:
        return embedding_capabilities(self._launch.context, self._launch.slots)

    def open_completion(self, request: GenerationRequest) -> NoReturn:
        raise UnsupportedParameter(f"The model {self.id} creates embeddings; it does not generate text.", param="model")

    async def tokenize(self, prompt: Prompt, special: bool = True) -> Sequence[int]:
        tokens = await super().tokenize(prompt, special=False)
        if not special or isinstance(prompt, TokenPrompt):
            return tokens
        before, after = await self.get_added_tokens()
        return [*before, *tokens, *after]

    async def embed(self, inputs: EmbeddingInputs, dimensions: int | None, truncate: int | None) -> EmbeddingResult:
        size = self._check_dimensions(dimensions)
        limit = self._launch.context
        truncate = limit if truncate == -1 else truncate
        if truncate is not None and not 1 <= truncate <= limit:
            raise InvalidValue(f"'truncate_prompt_tokens' is -1 or 1 to {limit} here.", param="truncate_prompt_tokens")
        rows = [await self._tokenize_input(number, value, truncate) for number, value in enumerate(inputs)]
        vectors: list[list[float]] = []
        async with self._slots:
            for batch in split_batches(rows, limit):
                vectors += [_shorten_vector(vector, size) for vector in await self.compute_vectors(batch)]
        return EmbeddingResult(vectors=vectors, tokens=sum(map(len, rows)))

    async def _tokenize_input(self, number: int, value: str | Sequence[int], truncate: int | None) -> Sequence[int]:
        limit = truncate or self._launch.context
        if isinstance(value, str):
            before, after = await self.get_added_tokens()
            tokens = await self._tokenize_text(number, value, truncate)
            if truncate is not None:
                tokens = tokens[: max(limit - len(before) - len(after), 0)]
            row: Sequence[int] = [*before, *tokens, *after]
        else:
            self.check_token_ids(value, "input")
            row = value if truncate is None else value[:limit]
        if len(row) > limit and truncate is None:
            raise _too_long_error(number, str(len(row)), limit)
        return row

    async def _tokenize_text(self, number: int, text: str, truncate: int | None) -> Sequence[int]:
        max_chars = self._launch.context * MAX_CHARS_PER_TOKEN
        if len(text) > max_chars:
            if truncate is None:
                raise _too_long_error(number, "far too many", self._launch.context)
            text = text[:max_chars]
        return await super().tokenize(TextPrompt((Segment(text, control=False),)), special=False)

    async def compute_vectors(self, batch: Sequence[Sequence[int]], **fields: object) -> list[list[float]]:
        body = wire.encode({"input": batch, "encoding_format": "base64", **fields})
        try:
            reply = await self.call_child(
                lambda running: running.client.post("/v1/embeddings", body, _EMBEDDINGS_DECODER)
            )
        except EngineHttpError as error:
            raise wire.to_client_error(error) from None
        found = {vector.index: array("f", b64decode(vector.embedding)).tolist() for vector in reply.data}
        if sorted(found) != list(range(len(batch))):
            raise EngineFailed("The engine returned other vectors than requested.")
        return [found[index] for index in range(len(batch))]

    def _min_token_count(self, prompt: Prompt) -> int:
        """Return a lower bound of the number of tokens; an unknown word is one token, whatever its length."""
        if not isinstance(prompt, TextPrompt):
            return 0
        return sum([len(segment.text) for segment in prompt.segments]) // MAX_CHARS_PER_TOKEN

    async def get_added_tokens(self) -> tuple[list[int], list[int]]:
        """Return the tokens to add before and after every text, found by tokenizing the empty text."""
        if self._added_tokens is None:
            tokens = await self.tokenize_content("", add_special=True)
            split = 1 if len(tokens) > 1 or tokens[:1] == [self._header.bos_id] else 0
            self._added_tokens = tokens[:split], tokens[split:]
        return self._added_tokens

    def _check_dimensions(self, requested: int | None) -> int | None:
        """Return how many dimensions of a vector to return; None: all."""
        native = self._header.embedding_size
        if requested is None or requested == native:
            return None
        if not any(name in _normalise_name(self._header.name) for name in map(_normalise_name, MATRYOSHKA)):
            raise UnsupportedParameter(
                f"Vectors of the model {self.id} have {native} dimensions and cannot be shortened.", param="dimensions"
            )
        if native is not None and requested > native:
            raise InvalidValue(f"Vectors of the model {self.id} have {native} dimensions.", param="dimensions")
        return requested


def split_batches(rows: Sequence[Sequence[int]], max_tokens: int) -> Iterator[list[Sequence[int]]]:
    """Split the rows, in order, into batches of at most `max_tokens` tokens and `MAX_BATCH_INPUTS` rows."""
    batch: list[Sequence[int]] = []
    room = max_tokens
    for row in rows:
        if batch and (len(row) > room or len(batch) == MAX_BATCH_INPUTS):
            yield batch
            batch, room = [], max_tokens
        batch.append(row)
        room -= len(row)
    if batch:
        yield batch


def _shorten_vector(vector: list[float], size: int | None) -> list[float]:
    """Shorten a vector and normalise it to length 1; None: leave it as it is."""
    if size is None:
        return vector
    head = vector[:size]
    length = math.sqrt(math.fsum([number * number for number in head])) or 1.0
    return [number / length for number in head]


def _normalise_name(name: str) -> str:
    return name.lower().replace(" ", "-").replace("_", "-")


def _too_long_error(number: int, tokens: str, limit: int) -> ContextTooLong:
    return ContextTooLong(
        f"Input {number} has {tokens} tokens, and this model takes {limit}. "
        "Shorten it, or send truncate_prompt_tokens.",
        param="input",
    )

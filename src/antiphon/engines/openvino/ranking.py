"""A cross-encoder in OpenVINO's format: it reads a query and a document together and returns how well they match."""

import math
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import msgspec
from msgspec import Meta, Struct, ValidationError

from antiphon.core.prompt import Segment, TextPrompt
from antiphon.engines.base import Capabilities, EmbeddingInputs, PassthroughReply, Task
from antiphon.engines.embedded.embedding import EmbeddingModel, split_batches
from antiphon.engines.embedded.wire import encode
from antiphon.errors import ContextTooLong, UnsupportedParameter
from antiphon.protocol.decoding.error_messages import explain


class Document(Struct, frozen=True):
    text: str


class RankingBody(Struct):
    """Body of a rerank request, with the fields of Cohere's API."""

    query: str
    documents: Annotated[list[str | Document], Meta(min_length=1)]
    model: str = ""
    top_n: Annotated[int, Meta(ge=1)] | None = None
    return_documents: bool = False
    user: str | None = None


class RankingModel(EmbeddingModel):
    def capabilities(self) -> Capabilities:
        tasks: frozenset[Task] = frozenset({"rerank", "tokenize", "detokenize"})
        return msgspec.structs.replace(super().capabilities(), tasks=tasks, supported_fields=frozenset())

    async def embed(self, inputs: EmbeddingInputs, dimensions: int | None, truncate: int | None) -> NoReturn:
        raise UnsupportedParameter(f"The model {self.id} ranks documents; it does not embed them.", param="model")

    async def pass_through(self, task: Task, body: bytes) -> PassthroughReply:
        if task != "rerank":
            return await super().pass_through(task, body)
        request = _decode_body(body)
        texts = [document if isinstance(document, str) else document.text for document in request.documents]
        rows, first_length = await self._join_texts(request.query, texts)
        scores: list[float] = []
        async with self._slots:
            for batch in split_batches(rows, self._launch.context):
                vectors = await self.compute_vectors(batch, first_length=first_length)
                scores += [(1.0 + math.tanh(score / 2.0)) / 2.0 for [score] in vectors]  # the logistic function
        best = sorted(range(len(scores)), key=lambda index: -scores[index])[: request.top_n]
        results: list[dict[str, Any]] = [{"index": index, "relevance_score": scores[index]} for index in best]
        if request.return_documents:
            results = [{**result, "document": {"text": texts[result["index"]]}} for result in results]
        tokens = sum(map(len, rows))
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return PassthroughReply(encode({"model": self.id, "results": results, "usage": usage}))

    async def _join_texts(self, query: str, texts: Sequence[str]) -> tuple[list[list[int]], int]:
        """Return the tokens of each text behind those of the query, and the number of the latter."""
        before, after = await self.get_added_tokens()
        separator = after * (2 if "roberta" in self._header.architecture else 1)
        head = [*before, *await self._tokenize(query), *separator]
        rows = [[*head, *await self._tokenize(text), *after] for text in texts]
        limit = self._launch.context
        for number, row in enumerate(rows):
            if len(row) > limit:
                raise ContextTooLong(
                    f"Document {number} and the query have {len(row)} tokens, and this model takes {limit}.",
                    param="documents",
                )
        return rows, len(head)

    async def _tokenize(self, text: str) -> Sequence[int]:
        prompt = TextPrompt((Segment(text, control=False),))
        if (minimum := self._min_token_count(prompt)) > self._launch.context:
            raise ContextTooLong(
                f"A text has at least {minimum} tokens, and this model takes {self._launch.context}.", param="documents"
            )
        return await self.tokenize(prompt, special=False)


def _decode_body(body: bytes) -> RankingBody:
    raw = msgspec.json.decode(body)
    if unknown := sorted(raw.keys() - {*RankingBody.__struct_fields__}):
        raise UnsupportedParameter(
            f"The openvino engine does not rank with '{unknown[0][:64]}'.", param=unknown[0][:64]
        )
    try:
        return msgspec.convert(raw, RankingBody)
    except ValidationError as error:
        raise explain(error, raw, RankingBody) from None

"""POST /v1/embeddings: vectors as numbers, as base64, or as bare bytes with a header that tells where each one is."""

import asyncio
from time import time

from antiphon.ids import dashed_id
from antiphon.limits import Limits
from antiphon.protocol.bodies.embeddings import Answer, CreateEmbedding, EmbeddingList, decode_embedding, written
from antiphon.service.engine_tasks import Embeddings
from antiphon.transport.http.request import Header, Request, Route, decoded
from antiphon.transport.server.client_task import attended

_AT_ONCE = 50_000  # numbers that are written where they are asked for, at some 60 ns each
_BYTES: Header = (b"content-type", b"application/octet-stream")


class EmbeddingsEndpoint:
    def __init__(self, service: Embeddings, limits: Limits) -> None:
        self._service = service
        self._limits = limits

    def route(self, model: str) -> Route:
        """`model`: a name for the example."""
        return Route(
            method="POST",
            path="/v1/embeddings",
            endpoint=self.create,
            summary="Create embeddings",
            description="A vector for each input: a text, or the numbers of its tokens.",
            takes=CreateEmbedding,
            example={"model": model, "input": ["Hello!", "Good morning."]},
            gives=EmbeddingList,
            gives_too=("application/octet-stream",),
            new_work=True,
            errors=(400, 404, 413, 415, 429, 500, 503),
        )

    async def create(self, request: Request) -> None:
        body = await request.read_body(self._limits)
        asked, request.ignored = await decoded(body, decode_embedding, self._limits)
        made = await attended(request, self._service.create(request.tenant, asked))
        numbers = sum([len(vector) for vector in made.vectors])
        given = (asked, dashed_id("embd"), int(time()), asked.model, made.vectors, made.tokens)
        answer = written(*given) if numbers <= _AT_ONCE else await asyncio.to_thread(written, *given)
        await request.reply(200, answer.body, _headers(answer))


def _headers(answer: Answer) -> list[Header]:
    if answer.metadata is None:
        return []
    return [_BYTES, (b"metadata", answer.metadata)] if answer.metadata else [_BYTES]

"""POST /v1/embeddings: vectors as numbers, as base64, or as raw bytes with a header that contains their offsets."""

import asyncio
from time import time

from msgspec import Struct

from antiphon.ids import new_dashed_id
from antiphon.limits import Limits
from antiphon.protocol.bodies.embeddings import (
    CreateEmbedding,
    EmbeddingList,
    EmbeddingReply,
    decode_embedding,
    encode_vectors,
)
from antiphon.service.engine_tasks import EngineTasks
from antiphon.transport.http.channel import Header
from antiphon.transport.http.request import Request, decode_body, run_for_client
from antiphon.transport.http.route import Route

_INLINE_ENCODE_NUMBERS = 50_000  # larger results are encoded in a thread; a number takes some 60 ns
_BYTES: Header = (b"content-type", b"application/octet-stream")


class EmbeddingsEndpoint(Struct, frozen=True):
    service: EngineTasks
    limits: Limits

    def route(self, model: str) -> Route:
        """`model`: the model name in the example."""
        return Route(
            method="POST",
            path="/v1/embeddings",
            endpoint=self.create,
            summary="Create embeddings",
            description="Returns a vector for each input: a text, or an array of token ids.",
            takes=CreateEmbedding,
            example={"model": model, "input": ["Hello!", "Good morning."]},
            gives=EmbeddingList,
            gives_too=("application/octet-stream",),
            new_work=True,
        )

    async def create(self, request: Request) -> None:
        body = await request.read_body(self.limits)
        parsed, request.ignored = await decode_body(body, decode_embedding, self.limits)
        result = await run_for_client(request, self.service.embed(request.tenant, parsed))
        numbers = sum([len(vector) for vector in result.vectors])
        arguments = (parsed, new_dashed_id("embd"), int(time()), parsed.model, result.vectors, result.tokens)
        encoded = (
            encode_vectors(*arguments)
            if numbers <= _INLINE_ENCODE_NUMBERS
            else await asyncio.to_thread(encode_vectors, *arguments)
        )
        await request.reply(200, encoded.body, _headers(encoded))


def _headers(encoded: EmbeddingReply) -> list[Header]:
    if encoded.metadata is None:
        return []
    return [_BYTES, (b"metadata", encoded.metadata)] if encoded.metadata else [_BYTES]

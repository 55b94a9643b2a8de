"""Engine tasks other than generation: model selection, admission and timeout, embeddings, and pass-through tasks.

A model that lacks the task is a 404 whose message names models that have it.

Pass-through tasks (scores, rankings, classes, pooled vectors, transcriptions, speech) are forwarded unchanged except
for the model name. They are charged the estimated number of tokens. A transcription requested as plain text is returned
as plain text, even if the engine wraps it in JSON.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext

import msgspec
from msgspec import Struct

from antiphon.engines.base import Capabilities, EmbeddingResult, PassthroughReply, Task, clamp_token_count
from antiphon.errors import EngineFailed, NotFound
from antiphon.protocol.bodies.embeddings import CreateEmbedding, list_inputs
from antiphon.protocol.bodies.passthrough import (
    BYTES,
    JSON,
    MultipartForm,
    RankingRequest,
    replace_metadata_model,
    replace_model,
)
from antiphon.protocol.bodies.speech import CreateSpeech
from antiphon.service.access.charges import spend
from antiphon.service.model_io.models import Models
from antiphon.service.model_io.served_model import ServedModel
from antiphon.service.planning.validation import unsupported_error

TEXT_PLAIN = "text/plain"

_MAX_SUGGESTIONS = 5
_OPTIONAL = ("dimensions", "truncate_prompt_tokens")  # fields of embeddings
_MISSING_TASK = {
    "generate": "does not generate",
    "embed": "does not create embeddings",
    "tokenize": "does not support tokenize requests",
    "detokenize": "does not support detokenize requests",
    "score": "does not score texts",
    "rerank": "does not rank documents",
    "classify": "does not classify texts",
    "pooling": "does not support pooling",
    "transcribe": "does not transcribe audio",
    "translate": "does not translate audio",
    "moderate": "does not moderate",
    "speak": "does not speak",
}


class _Transcription(Struct):
    text: str


class _RankedDocument(Struct):
    index: int
    relevance_score: float


class _RankingUsage(Struct):
    total_tokens: int | None = None


class _Ranking(Struct):
    """Reply to a rerank request, in the format that all engines have in common."""

    results: list[_RankedDocument]
    usage: _RankingUsage | None = None


_TRANSCRIPT_DECODER = msgspec.json.Decoder(_Transcription)
_RANKING_DECODER = msgspec.json.Decoder(_Ranking)


class TaskTarget(Struct, frozen=True):
    served: ServedModel
    capabilities: Capabilities


class EngineTasks:
    def __init__(self, models: Models, timeout: float) -> None:
        self._models = models
        self._timeout = timeout

    async def find(self, name: str | None, task: Task) -> TaskTarget:
        """Find a model with the task; the first one if no name was sent, or an unknown one and any is accepted."""
        if name is None:
            if not (targets := await self._find_targets(task)):
                raise NotFound(f"No model of this server supports the task '{task}'.")
            return targets[0]
        served = self._models.find(name)
        capabilities = await served.capabilities()
        if task in capabilities.tasks:
            return TaskTarget(served, capabilities)
        others = await self._find_targets(task)
        if others and name not in {model.id for model in self._models.models()}:
            other = others[0]
            return TaskTarget(ServedModel(name, other.served.model, other.served.engine), other.capabilities)
        raise NotFound(f"The model '{name[:80]}' {_MISSING_TASK[task]}. {_suggest_models(others)}", param="model")

    async def embed(self, tenant: str, request: CreateEmbedding) -> EmbeddingResult:
        target = await self.find(request.model, "embed")
        for name in _OPTIONAL:
            if getattr(request, name) is not None and name not in target.capabilities.supported_fields:
                raise unsupported_error(name, target.capabilities, target.served.engine.name)
        items, served = list_inputs(request), target.served
        async with self.admit(target, tenant):
            result = await served.engine.embed(served.model, items, request.dimensions, request.truncate_prompt_tokens)
        spend(result.tokens)
        if len(result.vectors) != len(items):
            raise EngineFailed("The engine returned a wrong number of vectors.")
        return result

    async def relay_json(self, tenant: str, task: Task, request: RankingRequest) -> PassthroughReply:
        target = await self.find(request.model, task)
        served = target.served
        async with self.admit(target, tenant):
            reply = await served.engine.pass_through(served.model, task, request.encode_for_model(served.model))
        spend(None)
        if _media_type(reply) != BYTES:
            return PassthroughReply(replace_model(reply.body, served.name))
        return PassthroughReply(
            reply.body, BYTES, reply.metadata and replace_metadata_model(reply.metadata, served.name)
        )

    async def rank(self, tenant: str, model: str, query: str, documents: Sequence[str]) -> list[float]:
        """Return the relevance of each document for a query, on the scale of the model."""
        body = {"query": query, "documents": [*documents]}
        reply = await self.relay_json(tenant, "rerank", RankingRequest(model, body))
        try:
            ranking = _RANKING_DECODER.decode(reply.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise EngineFailed("The engine returned a ranking that cannot be decoded.") from None
        scores = {one.index: one.relevance_score for one in ranking.results}
        if scores.keys() != {*range(len(documents))} or not all(map(math.isfinite, scores.values())):
            raise EngineFailed("The engine returned a ranking of other documents than requested.")
        spend(clamp_token_count(ranking.usage.total_tokens) if ranking.usage else None)
        return [scores[index] for index in range(len(documents))]

    async def relay_form(self, tenant: str, task: Task, form: MultipartForm, media_type: str) -> PassthroughReply:
        target = await self.find(form.value, task)
        served, wants_text = target.served, form.has_value("response_format", b"text")
        async with self.admit(target, tenant):
            reply = await served.engine.pass_through(served.model, task, form.encode_with(served.model), media_type)
        spend(None)
        if _media_type(reply) != JSON:
            return reply
        return (
            PassthroughReply(_extract_text(reply.body), TEXT_PLAIN)
            if wants_text
            else PassthroughReply(replace_model(reply.body, served.name))
        )

    async def speak(self, tenant: str, request: CreateSpeech) -> AsyncGenerator[bytes, None]:
        """Yield the speech as the engine sends it. Closing the iterator cancels the request."""
        target = await self.find(request.model, "speak")
        served, as_events = target.served, request.stream_format == "sse"
        async with self.admit(target, tenant):
            body = request.encode_for_model(served.model)
            async with aclosing(served.engine.speak(served.model, body, as_events)) as pieces:
                async for piece in pieces:
                    yield piece
        spend(None)

    @asynccontextmanager
    async def admit(self, target: TaskTarget, tenant: str) -> AsyncIterator[None]:
        """Hold a slot of the model for the duration of the block.

        Raises Busy if the model's queue is full, and EngineFailed after the timeout.
        """
        ticket = self._models.admit(target.served, target.capabilities, tenant=tenant)
        try:
            with ticket or nullcontext():
                async with asyncio.timeout(self._timeout):
                    if ticket is not None:
                        await ticket.wait_turn()
                    yield
        except TimeoutError:
            raise EngineFailed(f"The engine did not finish within {self._timeout:.0f} seconds.") from None

    async def _find_targets(self, task: Task) -> list[TaskTarget]:
        return [
            TaskTarget(served, capabilities)
            for served, capabilities in await self._models.survey()
            if isinstance(capabilities, Capabilities) and task in capabilities.tasks
        ]


def _suggest_models(others: list[TaskTarget]) -> str:
    if not others:
        return "No model of this server does."
    return f"Models that do: {', '.join([other.served.name for other in others[:_MAX_SUGGESTIONS]])}."


def _media_type(reply: PassthroughReply) -> str:
    return reply.media_type.partition(";")[0].strip().lower()


def _extract_text(body: bytes) -> bytes:
    try:
        return _TRANSCRIPT_DECODER.decode(body).text.encode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise EngineFailed("The engine returned a transcription without text.") from None

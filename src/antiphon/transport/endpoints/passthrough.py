"""Endpoints that are passed through to engines: JSON for ranking, forms for audio. 404 for models without the task."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from antiphon.engines.base import PassthroughReply, Task
from antiphon.limits import Limits
from antiphon.protocol.bodies.multipart import MultipartForm, read_form
from antiphon.protocol.bodies.rerank import decode_ranking
from antiphon.service.engine_tasks import EngineTasks
from antiphon.transport.http.channel import Header
from antiphon.transport.http.request import Request, decode_body, run_for_client
from antiphon.transport.http.route import Endpoint, Route

_TEXT_TYPES = ("application/json", "text/plain", "text/vtt", "application/x-subrip", "text/event-stream")
_BYTES = "application/octet-stream"
_DOCUMENTS = {"query": "What is the capital of France?", "documents": ["Paris is.", "Bread is."]}
_QUERY = {"text_1": "What is the capital of France?", "text_2": ["Paris is.", "Bread is."]}
_INPUT: dict[str, Any] = {"input": "Paris is the capital of France."}

_RANKINGS: Sequence[tuple[str, Task, str, dict[str, Any]]] = (
    ("/v1/score", "score", "Score pairs of texts", _QUERY),
    ("/v1/rerank", "rerank", "Rank documents", _DOCUMENTS),
    ("/v2/rerank", "rerank", "Rank documents (Cohere's path)", _DOCUMENTS),
    ("/v1/classify", "classify", "Classify texts", _INPUT),
    ("/v1/pooling", "pooling", "Pool a model's hidden states", _INPUT),
)
_FORMS: Sequence[tuple[str, Task, str]] = (
    ("/v1/audio/transcriptions", "transcribe", "Transcribe an audio file"),
    ("/v1/audio/translations", "translate", "Translate an audio file into English text"),
)
_DESCRIPTION = "Passed through to an engine that supports it, in its format; 404 if the model's engine does not."


class AudioForm(Struct, kw_only=True):
    """The fields that the server reads; the others are passed to the engine."""

    model: str
    file: bytes


class PassthroughEndpoint(Struct, frozen=True):
    service: EngineTasks
    limits: Limits

    def routes(self, model: str) -> list[Route]:
        """`model`: the model name in the examples."""
        return [
            *[self._ranking_route(*each, model=model) for each in _RANKINGS],
            *[self._form_route(*each) for each in _FORMS],
        ]

    def _ranking_route(self, path: str, task: Task, summary: str, example: dict[str, Any], model: str) -> Route:
        return Route(
            method="POST",
            path=path,
            endpoint=self._make_json_endpoint(task),
            summary=summary,
            description=_DESCRIPTION,
            takes=dict[str, Any],
            example={"model": model, **example},
            gives=dict[str, Any],
            gives_too=(_BYTES,) if task == "pooling" else (),
            new_work=True,
        )

    def _form_route(self, path: str, task: Task, summary: str) -> Route:
        return Route(
            method="POST",
            path=path,
            endpoint=self._make_form_endpoint(task),
            summary=summary,
            description=_DESCRIPTION,
            takes=AudioForm,
            takes_media_type="multipart/form-data",
            gives=dict[str, Any],
            gives_too=(*_TEXT_TYPES[1:], _BYTES),
            new_work=True,
        )

    def _make_json_endpoint(self, task: Task) -> Endpoint:
        async def pass_on(request: Request) -> None:
            parsed = await decode_body(await request.read_body(self.limits), decode_ranking, self.limits)
            reply = await run_for_client(request, self.service.relay_json(request.tenant, task, parsed))
            await request.reply(200, reply.body, _headers(reply))

        return pass_on

    def _make_form_endpoint(self, task: Task) -> Endpoint:
        async def pass_on(request: Request) -> None:
            body, media_type = await request.read_form(self.limits.audio_bytes)
            parsed = await decode_body(body, partial(_read, media_type), self.limits)
            del body  # it may be large, and the reply takes time
            operation = self.service.relay_form(request.tenant, task, parsed, media_type.decode("latin-1"))
            reply = await run_for_client(request, operation)
            await request.reply(200, reply.body, [(b"content-type", _safe_media_type(reply.media_type))])

        return pass_on


def _read(media_type: bytes, body: bytes, limits: Limits) -> MultipartForm:
    return read_form(body, media_type, "model")


def _headers(reply: PassthroughReply) -> list[Header]:
    if reply.media_type != _BYTES:
        return []
    return [(b"content-type", _BYTES.encode()), *([(b"metadata", reply.metadata)] if reply.metadata else [])]


def _safe_media_type(media_type: str) -> bytes:
    """Return the media type of an engine's reply if it is one of plain text: nothing that a browser would execute."""
    essence = media_type.partition(";")[0].strip().lower()
    return (essence if essence in _TEXT_TYPES else _BYTES).encode()

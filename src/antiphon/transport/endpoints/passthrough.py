"""Endpoints of engines that are passed on: JSON to those that rank, forms to those that hear. Others answer 404."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from antiphon.engines.base import Deed, Relayed
from antiphon.limits import Limits
from antiphon.protocol.bodies.multipart import Form, read_form
from antiphon.protocol.bodies.rerank import decode_ranking
from antiphon.service.engine_tasks import Relays
from antiphon.transport.http.request import Endpoint, Header, Request, Route, decoded
from antiphon.transport.server.client_task import attended

_ERRORS = (400, 404, 413, 415, 429, 500, 503)
_TEXT_TYPES = ("application/json", "text/plain", "text/vtt", "application/x-subrip", "text/event-stream")
_BYTES = "application/octet-stream"
_DOCUMENTS = {"query": "What is the capital of France?", "documents": ["Paris is.", "Bread is."]}
_QUERY = {"text_1": "What is the capital of France?", "text_2": ["Paris is.", "Bread is."]}
_INPUT: dict[str, Any] = {"input": "Paris is the capital of France."}

_RANKINGS: Sequence[tuple[str, Deed, str, dict[str, Any]]] = (
    ("/v1/score", "score", "Score pairs of texts", _QUERY),
    ("/v1/rerank", "rerank", "Rank documents", _DOCUMENTS),
    ("/v2/rerank", "rerank", "Rank documents, as at Cohere's path", _DOCUMENTS),
    ("/v1/classify", "classify", "Classify texts", _INPUT),
    ("/v1/pooling", "pooling", "Pool a model's hidden states", _INPUT),
)
_FORMS: Sequence[tuple[str, Deed, str]] = (
    ("/v1/audio/transcriptions", "transcribe", "Write down what an audio file says"),
    ("/v1/audio/translations", "translate", "Write down in English what an audio file says"),
)
_PASSED_ON = "Passed to an engine that does this, in the shapes of that engine; 404 if the model's does not."


class AudioForm(Struct, kw_only=True):
    """What else there is in it is the engine's to know."""

    model: str
    file: bytes


class RelaysEndpoint:
    def __init__(self, service: Relays, limits: Limits) -> None:
        self._service = service
        self._limits = limits

    def routes(self, model: str) -> list[Route]:
        """`model`: a name for the examples."""
        return [
            *[self._ranking(*each, model=model) for each in _RANKINGS],
            *[self._form(*each) for each in _FORMS],
        ]

    def _ranking(self, path: str, deed: Deed, summary: str, example: dict[str, Any], model: str) -> Route:
        return Route(
            method="POST",
            path=path,
            endpoint=self._passing_json(deed),
            summary=summary,
            description=_PASSED_ON,
            takes=dict[str, Any],
            example={"model": model, **example},
            gives=dict[str, Any],
            gives_too=(_BYTES,) if deed == "pooling" else (),
            new_work=True,
            errors=_ERRORS,
        )

    def _form(self, path: str, deed: Deed, summary: str) -> Route:
        return Route(
            method="POST",
            path=path,
            endpoint=self._passing_form(deed),
            summary=summary,
            description=_PASSED_ON,
            takes=AudioForm,
            takes_media_type="multipart/form-data",
            gives=dict[str, Any],
            gives_too=(*_TEXT_TYPES[1:], _BYTES),
            new_work=True,
            errors=_ERRORS,
        )

    def _passing_json(self, deed: Deed) -> Endpoint:
        async def pass_on(request: Request) -> None:
            asked = await decoded(await request.read_body(self._limits), decode_ranking, self._limits)
            answer = await attended(request, self._service.json(request.tenant, deed, asked))
            await request.reply(200, answer.body, _headers(answer))

        return pass_on

    def _passing_form(self, deed: Deed) -> Endpoint:
        async def pass_on(request: Request) -> None:
            body, media_type = await request.read_form(self._limits.audio_bytes)
            asked = await decoded(body, partial(_read, media_type), self._limits)
            del body  # it may be large, and an answer takes its time
            work = self._service.form(request.tenant, deed, asked, media_type.decode("latin-1"))
            answer = await attended(request, work)
            await request.reply(200, answer.body, [(b"content-type", _safe(answer.media_type))])

        return pass_on


def _read(media_type: bytes, body: bytes, limits: Limits) -> Form:
    return read_form(body, media_type, "model")


def _headers(answer: Relayed) -> list[Header]:
    if answer.media_type != _BYTES:
        return []
    return [(b"content-type", _BYTES.encode()), *([(b"metadata", answer.metadata)] if answer.metadata else [])]


def _safe(media_type: str) -> bytes:
    """What an engine says of its answer is not to be trusted: nothing that a browser would run."""
    bare = media_type.partition(";")[0].strip().lower()
    return (bare if bare in _TEXT_TYPES else _BYTES).encode()

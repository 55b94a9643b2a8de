"""Endpoints of single engine calls: embeddings, ranking, audio, and the tokenizer.

POST /v1/embeddings returns vectors as numbers, as base64, or as raw bytes with a header that contains their offsets.
POST /tokenize and /detokenize have the formats of vLLM. The others are passed through to engines, JSON for ranking and
forms for audio, with 404 for models without the task.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from time import time
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.dialects.chat_request import read_chat
from antiphon.engines.base import Task
from antiphon.ids import new_dashed_id
from antiphon.limits import Limits
from antiphon.protocol.bodies import tokens
from antiphon.protocol.bodies.embeddings import CreateEmbedding, EmbeddingList, decode_embedding, encode_vectors
from antiphon.protocol.bodies.passthrough import MultipartForm, decode_ranking, read_form
from antiphon.protocol.bodies.speech import EVENT_STREAM, MEDIA_TYPES, CreateSpeech, decode_speech
from antiphon.service.engine_tasks import EngineTasks
from antiphon.service.tokens import Tokenization
from antiphon.transport.http.channel import Header
from antiphon.transport.http.request import Request, decode_body, log_user, read_json, run_for_client
from antiphon.transport.middleware.routing import Endpoint, Route

_INLINE_ENCODE_NUMBERS = 50_000  # larger results are encoded in a thread; a number takes some 60 ns
_TEXT_TYPES = ("application/json", "text/plain", "text/vtt", "application/x-subrip", "text/event-stream")
_BYTES = "application/octet-stream"
_FORM_REPLIES = (*_TEXT_TYPES[1:], _BYTES)
_SPEECH_TYPES = (*MEDIA_TYPES.values(), EVENT_STREAM)
_RANKINGS: Sequence[tuple[str, Task, str]] = (
    ("/v1/score", "score", "Score pairs of texts"),
    ("/v1/rerank", "rerank", "Rank documents"),
    ("/v2/rerank", "rerank", "Rank documents (Cohere's path)"),
    ("/v1/classify", "classify", "Classify texts"),
    ("/v1/pooling", "pooling", "Pool a model's hidden states"),
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


class EngineTasksEndpoint(Struct, frozen=True):
    service: EngineTasks
    tokenization: Tokenization
    limits: Limits

    @Route("POST", "/v1/embeddings", takes=CreateEmbedding, gives=EmbeddingList, gives_too=(_BYTES,), new_work=True)
    async def embed(self, request: Request) -> None:
        """Create embeddings. Returns a vector for each input: a text, or an array of token ids."""
        parsed, request.ignored = await read_json(request, decode_embedding, self.limits)
        result = await run_for_client(request, self.service.embed(request.tenant, parsed))
        log_user(request.id, parsed)
        numbers = sum([len(vector) for vector in result.vectors])
        arguments = (parsed, new_dashed_id("embd"), int(time()), parsed.model, result.vectors, result.tokens)
        encoded = (
            encode_vectors(*arguments)
            if numbers <= _INLINE_ENCODE_NUMBERS
            else await asyncio.to_thread(encode_vectors, *arguments)
        )
        headers = [] if encoded.metadata is None else _byte_headers(encoded.metadata)
        await request.reply(200, encoded.body, headers)

    @Route("POST", "/v1/tokenize", takes=tokens.Tokenize, new_work=True)
    async def tokenize(self, request: Request) -> tokens.Tokenized:
        """Tokenize a text or a chat. With `messages`, and the other fields of a chat completion, it returns the tokens
        that the model would read.
        """
        parsed = await read_json(request, tokens.decode_tokenize, self.limits)
        if parsed.chat is None:
            request.ignored = parsed.ignored
            tokenized = await run_for_client(request, self.tokenization.tokenize(request.tenant, parsed.request))
        else:
            chat = await decode_body(parsed.chat, read_chat, self.limits)
            operation = self.tokenization.tokenize_chat(request.tenant, parsed.request, chat)
            tokenized, request.ignored = await run_for_client(request, operation)
        return tokenized

    @Route("POST", "/v1/detokenize", takes=tokens.Detokenize, new_work=True)
    async def detokenize(self, request: Request) -> tokens.Detokenized:
        """Convert tokens to text."""
        parsed, request.ignored = await read_json(request, tokens.decode_detokenize, self.limits)
        text = await run_for_client(request, self.tokenization.detokenize(request.tenant, parsed))
        return tokens.Detokenized(prompt=text)

    @Route("POST", "/v1/audio/speech", takes=CreateSpeech, gives_too=_SPEECH_TYPES, new_work=True)
    async def speak(self, request: Request) -> None:
        """Generate speech. The audio is sent as the engine generates it; 404 if the model's engine does not speak."""
        parsed, request.ignored = await read_json(request, decode_speech, self.limits)
        headers = [(b"content-type", parsed.media_type.encode()), (b"x-content-type-options", b"nosniff")]
        await request.reply_in_pieces(200, headers, self.service.speak(request.tenant, parsed))

    def passthrough_routes(self) -> list[Route]:
        route = Route("POST", "", "", _DESCRIPTION, gives=dict[str, Any], new_work=True)
        ranking = replace(route, takes=dict[str, Any])
        pooling = replace(ranking, gives_too=(_BYTES,))
        form = replace(route, takes=AudioForm, takes_media_type="multipart/form-data", gives_too=_FORM_REPLIES)
        rankings = [
            replace(each, path=path, summary=summary, endpoint=self._make_json_endpoint(task))
            for path, task, summary in _RANKINGS
            for each in [pooling if task == "pooling" else ranking]
        ]
        forms = [
            replace(form, path=path, summary=summary, endpoint=self._make_form_endpoint(task))
            for path, task, summary in _FORMS
        ]
        return [*rankings, *forms]

    def _make_json_endpoint(self, task: Task) -> Endpoint:
        async def pass_on(request: Request) -> None:
            parsed = await read_json(request, decode_ranking, self.limits)
            reply = await run_for_client(request, self.service.relay_json(request.tenant, task, parsed))
            headers = _byte_headers(reply.metadata) if reply.media_type == _BYTES else []
            await request.reply(200, reply.body, headers)

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


def _byte_headers(metadata: bytes) -> list[Header]:
    """Return the headers of a reply in bytes, with the header that contains the offsets of its vectors, if any."""
    return [(b"content-type", _BYTES.encode()), *([(b"metadata", metadata)] if metadata else [])]


def _safe_media_type(media_type: str) -> bytes:
    """Return the media type of an engine's reply if it is one of plain text: nothing that a browser would execute."""
    essence = media_type.partition(";")[0].strip().lower()
    return (essence if essence in _TEXT_TYPES else _BYTES).encode()

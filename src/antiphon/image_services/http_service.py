"""The client of image services with OpenAI's images API, over pooled connections.

    JSON, or a form with images ──▶ service ──▶ JSON with all images, or a stream of previews and images

Images are always requested as base64. A service that answers with URLs nevertheless has them fetched through egress,
without redirects, from public addresses or from its own.
"""

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, suppress
from secrets import token_hex
from typing import Any, Final

import msgspec
from msgspec import Struct, convert
from msgspec.json import Decoder

from antiphon.config.image_settings import ImageServiceSpec
from antiphon.core.data_urls import UnreadableMedia, is_data_url, read_base64, read_data_url
from antiphon.core.image_generation import (
    GeneratedImage,
    ImageRequest,
    ImageResult,
    ImageUsage,
    PartialImage,
    SourceImage,
)
from antiphon.egress import EgressClient, FetchLimits
from antiphon.engines.client import DECODE_ERRORS, EngineClient, EngineHttpError, EngineTimeouts, EventSplitter
from antiphon.engines.connection import EngineConnection, HttpRequest
from antiphon.engines.http.engine_url import parse_engine_url
from antiphon.engines.http.error_mapping import error_text, map_http_error, map_stream_error
from antiphon.errors import AntiphonError, EngineFailed, FetchFailed, StartupError, UrlRefused
from antiphon.image_services.base import MAX_RESULT_BYTES, ModerationBlocked, get_operation, make_result, read_options
from antiphon.image_services.service_kinds import KINDS, ServiceTable, clean_prompt
from antiphon.offload import run_sized

_MAX_REPLY_BYTES: Final = MAX_RESULT_BYTES // 3 * 4 + 1024 * 1024  # base64, and the other fields
_MAX_STREAM_BYTES: Final = 4 * _MAX_REPLY_BYTES  # at most three previews of each image come before it
_MAX_REVISED_CHARS: Final = 32_000
_BLOCKED_CODES: Final = frozenset({"moderation_blocked", "content_policy_violation"})
# OpenAI's own models return base64 alone and reject the field that asks for it.
_BASE64_ONLY_MODELS: Final = ("gpt-image-", "chatgpt-image-")
_PROBE_SECONDS: Final = 10.0


class _ReplyImage(Struct):
    b64_json: str | None = None
    url: str | None = None
    revised_prompt: Any = None


class _ImagesReply(Struct):
    """A reply, or the event of a stream; only what is used is decoded."""

    data: list[_ReplyImage] | None = None
    quality: Any = None
    background: Any = None
    usage: Any = None
    type: Any = None
    b64_json: str | None = None
    partial_image_index: Any = None
    error: Any = None


class _TokenDetails(Struct, frozen=True):
    text_tokens: int = 0
    image_tokens: int = 0


class _Usage(Struct):
    input_tokens: int
    output_tokens: int
    input_tokens_details: _TokenDetails = _TokenDetails()


_DECODER: Final = Decoder(_ImagesReply)
_ANY_JSON: Final = Decoder[Any]()


class HttpImageService:
    """A service of one of the kinds in `service_kinds.py`."""

    def __init__(self, spec: ImageServiceSpec, egress: EgressClient) -> None:
        self.name, self.models, self.timeout, self.slots = spec.name, spec.models, spec.timeout, spec.slots
        self._table: ServiceTable = KINDS[spec.kind]
        self._defaults = spec.defaults
        self._label = f"The image service {spec.name}"
        self._egress = egress
        try:
            url = parse_engine_url(f"{spec.kind}+{spec.url}", self._table.port, spec.ca)
            if not spec.url.startswith("unix:"):
                base_url = f"{spec.url.partition('://')[0]}://{url.host}"
                self._egress = egress.allow_operator_url(base_url, "image_service")
        except (StartupError, UrlRefused) as error:
            raise StartupError(f"{self._label} cannot be used: {error}") from None
        timeouts = EngineTimeouts(first_byte=spec.timeout, idle=spec.timeout)
        path = url.path or "/v1"
        self._client = EngineClient(url.address, self._label, timeouts, host=url.host, key=spec.key, base_path=path)
        quick = EngineTimeouts(first_byte=_PROBE_SECONDS, idle=_PROBE_SECONDS)
        self._probe_client = EngineClient(url.address, self._label, quick, 0, url.host, spec.key, path)

    def check(self, request: ImageRequest, param: str) -> None:
        self._table.check(request, param, self.name)

    def list_ignored(self, request: ImageRequest) -> list[str]:
        has_model = request.model is None or self._translate_model(request.model) is not None
        has_previews = not request.partial_images or self._table.streams
        return [name for name, is_sent in (("model", has_model), ("partial_images", has_previews)) if not is_sent]

    async def probe(self) -> None:
        """Ask for the models. Any answer but a failure, a rejected key or a redirect means that the service is up."""
        try:
            await self._probe_client.get("/models", _ANY_JSON)
        except EngineHttpError as error:
            if error.status_code not in (400, 404, 405, 501):
                raise map_http_error(error, self._label, "") from None

    async def close(self) -> None:
        self._client.close()
        self._probe_client.close()

    async def generate(self, request: ImageRequest) -> AsyncGenerator[PartialImage | ImageResult, None]:
        streamed = self._table.streams and request.partial_images > 0
        try:
            reply = await self._client.send(self._build_request(request, streamed), _MAX_REPLY_BYTES)
            if isinstance(reply, EngineConnection):
                try:
                    async with aclosing(self._read_stream(reply, request)) as events:
                        async for event in events:
                            yield event
                finally:
                    self._client.release(reply)
            else:
                yield await self._read_reply(reply, request)
        except EngineHttpError as error:
            raise self._map_error(error, request) from None

    def _build_request(self, request: ImageRequest, streamed: bool) -> HttpRequest:
        fields = {**self._defaults, **self._table.list_fields(request)}
        if not request.variation:
            fields["prompt"] = clean_prompt(request.prompt)
        if (model := self._translate_model(request.model)) is not None:
            fields["model"] = model
        may_refuse = self._table.has_unknown_model and not request.variation  # no model with variations refuses it
        if not (may_refuse if model is None else model.startswith(_BASE64_ONLY_MODELS)):
            fields["response_format"] = "b64_json"
        if streamed:
            fields |= {"stream": True, "partial_images": request.partial_images}
        path = f"/images/{get_operation(request)}"
        if not request.sources:
            return self._client.build_request(path, msgspec.json.encode(fields))
        name = "image" if request.variation else "image[]"
        files = [(name, source) for source in request.sources]
        if request.mask is not None:
            files.append(("mask", request.mask))
        pieces, media_type = _encode_form(fields, files)
        return self._client.build_request(path, *pieces, media_type=media_type)

    def _translate_model(self, model: str | None) -> str | None:
        """Return the model's name at the service; None: the service has one, or chooses."""
        if model is None:
            return next(iter(self.models.values()), None)
        return self.models.get(model, None if self._table.one_model else model)

    async def _read_reply(self, body: bytes, request: ImageRequest) -> ImageResult:
        reply = await run_sized(len(body), self._decode, body)
        if reply.error is not None or reply.data is None:
            raise self._map_fault(reply.error)
        images, size, usage = [], 0, _read_usage(reply.usage)
        for image in reply.data[: (request.n or 1) + 1]:
            images.append(await self._load_image(image, MAX_RESULT_BYTES - size))
            size += len(images[-1].body)
        return await run_sized(size, make_result, images, request, reply, usage, self._label)

    async def _read_stream(
        self, connection: EngineConnection, request: ImageRequest
    ) -> AsyncGenerator[PartialImage | ImageResult, None]:
        splitter, received, next_preview, is_open = EventSplitter(_MAX_REPLY_BYTES), 0, 0, True
        images: list[GeneratedImage] = []
        last = _ImagesReply()
        while is_open:
            data = await connection.read(self.timeout)
            is_open = bool(data)
            received += len(data)
            if received > _MAX_STREAM_BYTES:
                raise EngineFailed(f"{self._label} sent a stream that exceeds the size limit.")
            for event in splitter.feed(data) if data else splitter.finish():
                reply = await run_sized(len(event), self._decode, event)
                if reply.error is not None or reply.type == "error":
                    raise self._map_fault(reply.error)
                kind = str(reply.type).rpartition(".")[2]
                if kind == "partial_image" and reply.partial_image_index in range(next_preview, request.partial_images):
                    next_preview = reply.partial_image_index + 1  # a service might repeat it without end
                    yield await self._read_partial(reply, request)
                elif kind == "completed":
                    next_preview = 0  # of the next image
                    images.append(await self._load_image(_ReplyImage(reply.b64_json)))
                    last = reply
            is_open = is_open and not splitter.done
        yield make_result(images, request, last, _read_usage(last.usage), self._label)

    async def _read_partial(self, reply: _ImagesReply, request: ImageRequest) -> PartialImage:
        body = (await self._load_image(_ReplyImage(reply.b64_json))).body
        options = read_options(body, request, reply, self._label)
        return PartialImage(index=reply.partial_image_index, body=body, options=options)

    def _decode(self, body: bytes) -> _ImagesReply:
        try:
            return _DECODER.decode(body)
        except DECODE_ERRORS:
            raise EngineFailed(f"{self._label} sent a reply that is not one of the images API.") from None

    async def _load_image(self, image: _ReplyImage, max_bytes: int = MAX_RESULT_BYTES) -> GeneratedImage:
        revised = image.revised_prompt if isinstance(image.revised_prompt, str) else ""
        body = await self._load_bytes(image, max_bytes)
        return GeneratedImage(body=body, revised_prompt=revised[:_MAX_REVISED_CHARS] or None)

    async def _load_bytes(self, image: _ReplyImage, max_bytes: int) -> bytes:
        try:
            if image.b64_json:
                return (await run_sized(len(image.b64_json), read_base64, image.b64_json, MAX_RESULT_BYTES)).body
            if image.url and is_data_url(image.url):
                return (await run_sized(len(image.url), read_data_url, image.url, MAX_RESULT_BYTES)).body
        except UnreadableMedia as error:
            raise EngineFailed(f"{self._label} returned an image that cannot be read: {error}") from None
        if not image.url:
            raise EngineFailed(f"{self._label} returned a result without an image.")
        limits = FetchLimits(bytes=max_bytes, seconds=self.timeout, first_byte_seconds=self.timeout, redirects=0)
        try:
            return (await self._egress.fetch(image.url, "image_service", limits)).body
        except (UrlRefused, FetchFailed):  # its text may name an address of the operator's network
            raise EngineFailed(f"{self._label} returned a URL from which no image can be fetched.") from None

    def _map_error(self, error: EngineHttpError, request: ImageRequest) -> AntiphonError:
        if _get_field(_decode_error(error.body), "code") in _BLOCKED_CODES:
            return ModerationBlocked(error_text(error.body) or f"{self._label} refused this request.", param="prompt")
        mapped = map_http_error(error, self._label, request.model or "")
        if mapped.param == "input":  # the prompt is too long
            mapped.param = "prompt"
        return mapped

    def _map_fault(self, error: Any) -> AntiphonError:
        """Map an error in a reply with status 200."""
        if _get_field(error, "code") in _BLOCKED_CODES:
            return ModerationBlocked(f"{self._label} refused this request.", param="prompt")
        return map_stream_error(self._label, error)


def _decode_error(body: bytes) -> Any:
    with suppress(*DECODE_ERRORS):
        return _get_field(_ANY_JSON.decode(body), "error")
    return None


def _get_field(value: Any, name: str) -> Any:
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, str | dict) or found is None else str(found)


def _read_usage(usage: Any) -> ImageUsage | None:
    try:
        counted = convert(usage, _Usage, strict=False)
    except msgspec.ValidationError:
        return None
    details = counted.input_tokens_details
    counts = (counted.input_tokens, counted.output_tokens, details.text_tokens, details.image_tokens)
    if not all(0 <= count < 2**31 for count in counts):
        return None
    return ImageUsage(
        input_tokens=counts[0], output_tokens=counts[1], input_text_tokens=counts[2], input_image_tokens=counts[3]
    )


def _encode_form(fields: dict[str, Any], files: Iterable[tuple[str, SourceImage]]) -> tuple[list[bytes], str]:
    """Return the pieces of a form (RFC 7578) and its media type. The boundary cannot be in the files: it is random."""
    boundary = f"antiphon-{token_hex(16)}"
    pieces: list[bytes] = []
    for name, value in fields.items():
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        pieces.append(f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n'.encode())
    for number, (name, file) in enumerate(files):
        suffix = file.media_type.rpartition("/")[2]
        head = f'Content-Disposition: form-data; name="{name}"; filename="{number}.{suffix}"'
        pieces += [f"--{boundary}\r\n{head}\r\nContent-Type: {file.media_type}\r\n\r\n".encode(), file.body, b"\r\n"]
    return [*pieces, f"--{boundary}--\r\n".encode()], f"multipart/form-data; boundary={boundary}"

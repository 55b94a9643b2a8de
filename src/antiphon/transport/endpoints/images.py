"""/v1/images: generations, edits and variations; service/images.py implements them. Nothing is stored."""

from collections.abc import AsyncGenerator, Awaitable, Sequence
from functools import partial
from time import time
from typing import Any, Literal

from msgspec import Struct

from antiphon.agent.model_call_run import Sink
from antiphon.core.image_generation import ImageRequest, ImageResult, PartialImage, SourceImage
from antiphon.errors import AntiphonError, InvalidValue
from antiphon.image_services.base import MAX_SOURCES
from antiphon.limits import Limits
from antiphon.offload import run_sized
from antiphon.protocol.bodies import images as wire
from antiphon.protocol.bodies.images import decode_edit, decode_form, decode_generation
from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.types.events import ErrorBody
from antiphon.service.access.charges import spend
from antiphon.service.attachments.attachments import Attachments
from antiphon.service.images import Images
from antiphon.transport.http.forms import FormFile, read_files
from antiphon.transport.http.request import Request, decode_body, log_user, read_json
from antiphon.transport.middleware.routing import Route
from antiphon.transport.streaming import sse
from antiphon.transport.streaming.delivery import Delivery
from antiphon.transport.streaming.event_writer import StreamFormat

_FORM = "multipart/form-data"
_FORMAT = StreamFormat(sse.encode_events, sse.encode_comment, done=b"")
_REPORTED_QUALITIES = ("low", "medium", "high", "xhigh", "max")
_make_route = partial(Route, "POST", gives=wire.ImagesResponse, new_work=True)
_EVENTS: dict[bool, tuple[type[Any], type[Any]]] = {
    False: (wire.ImageGenerationPartialImage, wire.ImageGenerationCompleted),
    True: (wire.ImageEditPartialImage, wire.ImageEditCompleted),
}


class ImagesEndpoint(Struct, frozen=True):
    service: Images
    attachments: Attachments
    limits: Limits
    delivery: Delivery

    @_make_route(path="/v1/images/generations", takes=wire.CreateImage, streams=wire.GenerationEvent)
    async def generate(self, request: Request) -> None:
        """Make images. One JSON body, or with `stream: true` server-sent events: up to `partial_images` previews, if
        the image service sends any, and one event for each image.
        """
        self.service.check_configured()
        parsed, request.ignored = await read_json(request, decode_generation, self.limits)
        await self._reply(request, parsed, ())

    @_make_route(path="/v1/images/edits", takes=wire.EditImageForm, takes_media_type=_FORM, streams=wire.EditEvent)
    async def edit(self, request: Request) -> None:
        """Edit images. A form with up to 16 images, `image` or `image[]`, and optionally a `mask`; or JSON with
        `images`, a list of `{image_url}` or `{file_id}`, and a `mask` of that form.
        """
        self.service.check_configured()
        if request.headers.get(b"content-type", b"").lower().startswith(_FORM.encode()):
            files, fields = await self._read_form(request)
            parsed, request.ignored = decode_form(fields, wire.EditFields)
            sources, masks = await self._read_sources(files, "image"), await self._read_sources(files, "mask")
            await self._reply(request, parsed, sources, masks[0] if masks else None)
            return
        in_json, request.ignored = await decode_body(await request.read_body(self.limits), decode_edit, self.limits)
        images = [(image.to_part(), f"images[{at}]") for at, image in enumerate(in_json.images)]
        images += [] if in_json.mask is None else [(in_json.mask.to_part(), "mask")]
        sources = await self.attachments.load_images(request.tenant, images)
        mask = None if in_json.mask is None else sources.pop()
        await self._reply(request, in_json, sources, mask)

    @_make_route(path="/v1/images/variations", takes=wire.VariationForm, takes_media_type=_FORM)
    async def vary(self, request: Request) -> None:
        """Make variations of an image, if the image service can. A form with one `image`."""
        self.service.check_configured()
        files, fields = await self._read_form(request)
        parsed, request.ignored = decode_form(fields, wire.ImageFields)
        [source, *others] = await self._read_sources(files, "image")
        if others or any(file.field == "mask" for file in files):
            raise InvalidValue("A variation is made of one image, without a mask.", param="image")
        await self._reply(request, parsed, [source])

    async def _read_form(self, request: Request) -> tuple[list[FormFile], dict[str, str]]:
        files, fields = await read_files(request, ("image", "mask"), self.limits.attached_bytes, MAX_SOURCES + 1)
        if [file.field for file in files].count("mask") > 1:
            raise InvalidValue("'mask' is given twice.", param="mask")
        return files, fields

    async def _read_sources(self, files: Sequence[FormFile], field: str) -> list[SourceImage]:
        return [await self.attachments.check_source(file.content, field) for file in files if file.field == field]

    async def _reply(
        self,
        request: Request,
        parsed: wire.ImageFields,
        sources: Sequence[SourceImage],
        mask: SourceImage | None = None,
    ) -> None:
        log_user(request.id, parsed)
        wanted = _make_image_request(parsed, sources, mask)
        request.ignored = [*request.ignored, *self.service.list_ignored(wanted)]
        run = ImageRun(self.service.generate(request.tenant, wanted), parsed, is_edit=bool(sources))
        stream = isinstance(parsed, wire.PromptFields) and parsed.stream
        await self.delivery.reply(request, run, stream_format=_FORMAT if stream else None)


def _make_image_request(
    parsed: wire.ImageFields, sources: Sequence[SourceImage], mask: SourceImage | None
) -> ImageRequest:
    values = {name: getattr(parsed, name, None) for name in ImageRequest.__struct_fields__}
    set_values = {name: value for name, value in values.items() if value is not None}
    is_variation = not isinstance(parsed, wire.PromptFields)
    return ImageRequest(
        **{"prompt": "", **set_values, "sources": tuple(sources), "mask": mask, "variation": is_variation}
    )


class ImageRun:
    """The images of one request, as events or as one body."""

    waits = True  # for the image service

    def __init__(
        self, images: AsyncGenerator[PartialImage | ImageResult, None], fields: wire.ImageFields, is_edit: bool
    ) -> None:
        self._images = images
        self._user = fields.safety_identifier or fields.user or None
        self._partial, self._completed = _EVENTS[is_edit]
        self._first: PartialImage | ImageResult | None = None
        self._error: AntiphonError | None = None

    async def begin(self) -> None:
        try:
            self._first = await anext(self._images)
        except AntiphonError as error:
            self._error = error
            raise

    async def drive(self, emit: Sink[Any]) -> None:
        try:
            if self._error is not None:
                raise self._error
            first, self._first = self._first, None
            if first is not None:
                await self._emit(first, emit)
            async for event in self._images:
                await self._emit(event, emit)
        except AntiphonError as error:
            body = ErrorBody(message=error.message, type=error.type, param=error.param, code=error.code)
            await _wait(emit([wire.ImageStreamError(error=body)]))

    async def _emit(self, event: PartialImage | ImageResult, emit: Sink[Any]) -> None:
        options, created = event.options, int(time())
        common = {
            "created_at": created,
            "size": options.size,
            "quality": options.quality if options.quality in _REPORTED_QUALITIES else "auto",
            "background": options.background,
            "output_format": options.output_format,
        }
        if isinstance(event, PartialImage):
            await _wait(emit([self._partial(b64_json=event.body, partial_image_index=event.index, **common)]))
            return
        usage = _make_usage(event) or wire.ImageTokenUsage()
        for image in event.images:
            completed = self._completed(b64_json=image.body, usage=usage, safety_identifier=self._user, **common)
            await _wait(emit([completed]))

    async def result(self) -> bytes:
        async for event in self._images:
            if isinstance(event, ImageResult):
                size = sum([len(image.body) for image in event.images])
                return await run_sized(size, encode, self._make_response(event))
        raise AssertionError("an image service yields a result or raises")

    def _make_response(self, result: ImageResult) -> wire.ImagesResponse:
        options = result.options
        quality: Any = options.quality if options.quality in _REPORTED_QUALITIES else None
        background: Literal["transparent", "opaque"] | None = None
        if options.background != "auto":
            background = options.background
        images = [wire.ImageData(b64_json=image.body, revised_prompt=image.revised_prompt) for image in result.images]
        return wire.ImagesResponse(
            created=int(time()),
            data=images,
            background=background,
            output_format=options.output_format,
            quality=quality,
            size=options.size,
            usage=_make_usage(result),
            safety_identifier=self._user,
        )

    def close(self) -> Awaitable[None]:
        return self._images.aclose()


async def _wait(pending: Awaitable[None] | None) -> None:
    if pending is not None:
        await pending


def _make_usage(result: ImageResult) -> wire.ImageTokenUsage | None:
    """Return the usage, if the service counts it; otherwise the request stays charged with the estimate."""
    usage = result.usage
    if usage is None:
        spend(None)
        return None
    details = wire.ImageTokenDetails(text_tokens=usage.input_text_tokens, image_tokens=usage.input_image_tokens)
    return wire.ImageTokenUsage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        total_tokens=usage.input_tokens + usage.output_tokens,
        input_tokens_details=details,
    )

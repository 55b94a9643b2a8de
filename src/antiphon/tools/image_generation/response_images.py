"""Images of one response: made one at a time, edited from the newest images of the conversation."""

import asyncio
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from typing import Annotated, Final, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, Struct

from antiphon.core.deltas import ImagePreview, Progress
from antiphon.core.image_generation import (
    ImageRequest,
    ImageResult,
    PartialImage,
    SourceImage,
    describe_image,
    get_generated_image,
    make_image_error,
    measure_image,
)
from antiphon.errors import AntiphonError, BadRequest, EngineFailed, InvalidValue
from antiphon.offload import run_sized
from antiphon.protocol.types import items as it
from antiphon.protocol.types.parts import InputImage
from antiphon.protocol.types.tools import ImageGenerationTool, ImageQuality
from antiphon.tools.base import DeltaSink, ImageBackend, LoadImages, ModelToolCall, ResponseTool, ToolResult
from antiphon.tools.image_generation.declaration import EDIT, NAME, SIZE_PATTERN, check_declaration, make_image_request
from antiphon.tools.untrusted_text import decode_arguments

MAX_PROMPT: Final = 32_000  # characters, as in OpenAI's API
MAX_SOURCES: Final = 16  # images of one edit
Action = Literal["generate", "edit"]
_MAX_SOURCE_CHARACTERS: Final = 32 * 1024 * 1024  # of all images of an edit, in base64; older ones are left out
_MAX_SECONDS: Final = 1800.0  # of a call that waits for others of its turn; each service has a deadline of its own
_ANY_PROMPT, _ANY_SOURCE = "-", SourceImage(b"", "image/png")  # for checks before there is a call
_FIELDS: Final = {"mask": "input_image_mask", "image": "action"}  # names in the images API → names in the declaration
_ContextImage = InputImage | it.ImageGenerationCall


class ImageArguments(Struct, frozen=True, kw_only=True):
    prompt: Annotated[str, Meta(min_length=1, max_length=MAX_PROMPT)]
    size: Annotated[str, Meta(pattern=SIZE_PATTERN)] = "auto"
    action: Action | None = None


_decoder: Final = msgspec.json.Decoder(ImageArguments)


class ResponseImages(ResponseTool):
    """The image_generation tool within one response; see `ResponseTool`."""

    max_seconds = _MAX_SECONDS

    def __init__(
        self, backend: ImageBackend, load_images: LoadImages, declared: ImageGenerationTool, tenant: str
    ) -> None:
        self._backend = backend
        self._load_images = load_images
        self._declared = declared
        self._tenant = tenant
        self._param = "tools"
        self._context: list[_ContextImage] = []  # the newest images, oldest first
        self._mask: SourceImage | None = None
        self._in_order = asyncio.Lock()

    async def prepare(self, param: str, history: Sequence[it.InputItem]) -> None:
        self._param = param
        self._add_images(history)
        check_declaration(self._declared, param)
        if self._declared.action == "edit" and not self._context:
            raise InvalidValue("The input has no image that could be edited.", param=f"{param}.action")
        self._mask = await self._load_mask()
        try:
            self._check_services(param)
        except BadRequest as error:
            field = str(error.param).removeprefix(f"{param}.")
            error.param = f"{param}.{_FIELDS.get(field, field)}"
            raise

    def _check_services(self, param: str) -> None:
        """Check what the declaration asks of the image services: for new images, edits, or both."""
        declared, check = self._declared, self._backend.check
        if declared.action != "edit":
            check(make_image_request(declared, _ANY_PROMPT), param)
        if declared.action == "edit" or self._mask or (declared.input_fidelity and declared.action != "generate"):
            check(make_image_request(declared, _ANY_PROMPT, sources=(_ANY_SOURCE,), mask=self._mask), param)

    def start_item(self, call: ModelToolCall) -> it.ImageGenerationCall:
        return it.ImageGenerationCall(status="in_progress", result=UNSET)

    async def run(self, call: ModelToolCall, emit: DeltaSink) -> ToolResult:
        try:
            return await self._run(call, emit)
        except AntiphonError as error:  # with its code, which distinguishes invalid arguments, refusals, failures
            return _make_failed(error)

    async def _run(self, call: ModelToolCall, emit: DeltaSink) -> ToolResult:
        if call.name not in (NAME, EDIT):
            raise InvalidValue(f"There is no function {call.name!r} here.", param="name")
        arguments = decode_arguments(_decoder, NAME, call.arguments)
        async with self._in_order:
            action = self._choose_action(call.name, arguments)
            sources, mask = await self._load_edited() if action == "edit" else ((), None)
            request = make_image_request(self._declared, arguments.prompt, arguments.size, sources, mask)
            self._backend.check(request, NAME)
            await emit(Progress(call.key, "generating"))
            result = await self._generate(call.key, request, emit)
            item = await _to_item(result, arguments.prompt, action)
            await self._check_usable(item)
            self._add_images([item])
        return ToolResult(item=item, model_output=describe_image(item))

    async def _generate(self, key: int, request: ImageRequest, emit: DeltaSink) -> ImageResult:
        async with aclosing(self._backend.generate(self._tenant, request)) as images:
            async for image in images:
                if isinstance(image, ImageResult):
                    return image
                await emit(await _to_preview(key, image))
        raise EngineFailed("The image service sent no image.")

    async def _check_usable(self, item: it.ImageGenerationCall) -> None:
        """Check the image by the limits of those that clients send: later prompts and edits take it as one of them."""
        image = get_generated_image(item)
        assert image is not None
        try:
            await self._load_images(self._tenant, [(image, "result")])
        except BadRequest as error:
            raise EngineFailed(f"The image service returned an image that cannot be used: {error.message}") from None

    def _choose_action(self, name: str, arguments: ImageArguments) -> Action:
        """Return what the declaration demands, or else the model; a mask without a choice means an edit."""
        declared = self._declared.action
        if declared is not UNSET and declared != "auto":
            return declared
        is_edit = name == EDIT or self._declared.input_image_mask is not UNSET
        return arguments.action or ("edit" if is_edit else "generate")

    async def _load_edited(self) -> tuple[tuple[SourceImage, ...], SourceImage | None]:
        """Return the images to edit, and the mask."""
        if not (images := _select_newest(self._context)):
            raise InvalidValue("There is no image in this conversation that could be edited.", param="action")
        loaded = await self._load_images(self._tenant, [(image, "input") for image in images])
        return (*loaded,), await self._load_mask()

    async def _load_mask(self) -> SourceImage | None:
        if self._mask is not None or (mask := self._declared.input_image_mask) is UNSET:
            return self._mask
        image = InputImage(image_url=mask.image_url, file_id=mask.file_id)
        field = "file_id" if mask.image_url is UNSET else "image_url"
        (loaded,) = await self._load_images(self._tenant, [(image, f"{self._param}.input_image_mask.{field}")])
        return loaded

    def _add_images(self, items: Sequence[it.InputItem]) -> None:
        self._context = [*self._context, *_list_images(items)][-MAX_SOURCES:]

    def make_failed_result(self, call: ModelToolCall, failure: AntiphonError) -> ToolResult:
        return _make_failed(failure)

    async def recover(self, output: Sequence[it.OutputItem]) -> str:
        self._add_images(output)
        return ""

    async def close(self) -> None:
        self._context, self._mask = [], None


def _make_failed(error: AntiphonError) -> ToolResult:
    item = it.ImageGenerationCall(status="failed", result=None, error=make_image_error(error))
    return ToolResult(item=item, model_output=describe_image(item))


def _select_newest(context: Sequence[_ContextImage]) -> list[InputImage]:
    """Return the newest images, in their order, up to a total length."""
    selected: list[InputImage] = []
    characters = _MAX_SOURCE_CHARACTERS
    for one in reversed(context):
        image = get_generated_image(one) if isinstance(one, it.ImageGenerationCall) else one
        if image is None:
            continue
        characters -= measure_image(image)
        if characters < 0 and selected:
            break
        selected.append(image)
    return selected[::-1]


def _list_images(items: Sequence[it.InputItem]) -> Iterator[_ContextImage]:
    """Yield the images of items: those that were sent, those that tools of the client returned, and those made here."""
    for item in items:
        match item:
            case it.ImageGenerationCall(result=str()):
                yield item
            case (
                it.Message(content=parts)
                | it.FunctionCallOutput(output=list(parts))
                | it.CustomToolCallOutput(output=list(parts))
            ):
                yield from [part for part in parts if isinstance(part, InputImage)]


async def _to_preview(key: int, image: PartialImage) -> ImagePreview:
    options = image.options
    data = await run_sized(len(image.body), _to_base64, image.body)
    return ImagePreview(
        key, image.index, data, options.size, options.quality, options.background, options.output_format
    )


async def _to_item(result: ImageResult, prompt: str, action: Action) -> it.ImageGenerationCall:
    image, options = result.images[0], result.options
    return it.ImageGenerationCall(
        status="completed",
        result=await run_sized(len(image.body), _to_base64, image.body),
        revised_prompt=image.revised_prompt or prompt,
        action=action,
        background=options.background,
        output_format=options.output_format,
        quality=options.quality if options.quality in get_args(ImageQuality) else "auto",  # no other is valid
        size=options.size,
    )


def _to_base64(body: bytes) -> str:
    return b64encode(body).decode("ascii")

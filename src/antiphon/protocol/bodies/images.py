"""The images API: its requests, in JSON and in forms, its replies and its events. Bytes are base64 in JSON."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from msgspec import UNSET, Meta, Struct

from antiphon.errors import InvalidValue, UnsupportedParameter, missing_parameter
from antiphon.limits import Limits
from antiphon.protocol.bodies.forms import convert_fields
from antiphon.protocol.decoding.codec import RequestDecoder
from antiphon.protocol.types.events import ErrorBody
from antiphon.protocol.types.parts import InputImage

Quality = Literal["low", "medium", "high", "xhigh", "max", "auto", "standard", "hd"]
Background = Literal["transparent", "opaque", "auto"]
OutputFormat = Literal["png", "webp", "jpeg", "gif", "svg"]
ShortText = Annotated[str, Meta(max_length=512)]
Percent = Annotated[int, Meta(ge=0, le=100)]


class ImageFields(Struct, kw_only=True):
    """The fields that all requests for images have."""

    model: ShortText | None = None
    n: Annotated[int, Meta(ge=1, le=10)] | None = None
    size: ShortText | None = None
    response_format: Literal["url", "b64_json"] | None = None
    user: ShortText | None = None
    safety_identifier: ShortText | None = None


class PromptFields(ImageFields, kw_only=True):
    """The fields of generations and edits."""

    prompt: Annotated[str, Meta(min_length=1, max_length=32_000)]
    quality: Quality | None = None
    background: Background | None = None
    output_format: OutputFormat | None = None
    output_compression: Percent | None = None
    moderation: Literal["auto", "low"] | None = None
    partial_images: Annotated[int, Meta(ge=0, le=3)] | None = None
    stream: bool = False
    complexity: Any = None
    frame_count: Any = None
    frame_duration_ms: Any = None
    svg: Any = None


class CreateImage(PromptFields, kw_only=True):
    """A request for images."""

    style: Literal["vivid", "natural"] | None = None


class EditFields(PromptFields, kw_only=True):
    input_fidelity: Literal["high", "low"] | None = None
    markup: Any = None


class ImageReference(Struct, kw_only=True):
    """An image by its URL, which may be a data URL, or by the id of a file."""

    image_url: str | None = None
    file_id: str | None = None

    def to_part(self) -> InputImage:
        url, file_id = (UNSET if value is None else value for value in (self.image_url, self.file_id))
        return InputImage(image_url=url, file_id=file_id)


class EditImage(EditFields, kw_only=True):
    """A request in JSON to edit images."""

    images: Annotated[list[ImageReference], Meta(min_length=1, max_length=16)]
    mask: ImageReference | None = None


class EditImageForm(EditFields, kw_only=True):
    """The form of an edit, for the description of the API. `image` may be repeated, also as `image[]`."""

    image: bytes
    mask: bytes | None = None


class VariationForm(ImageFields, kw_only=True):
    """The form of a variation, for the description of the API."""

    image: bytes


class ImageTokenDetails(Struct, frozen=True, kw_only=True):
    image_tokens: int = 0
    text_tokens: int = 0


class ImageTokenUsage(Struct, kw_only=True):
    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    input_tokens_details: ImageTokenDetails = ImageTokenDetails()


class ImageData(Struct, kw_only=True, omit_defaults=True):
    b64_json: bytes
    revised_prompt: str | None = None


class ImagesResponse(Struct, kw_only=True, omit_defaults=True):
    created: int
    data: list[ImageData]
    background: Literal["transparent", "opaque"] | None = None
    output_format: OutputFormat | None = None
    quality: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    size: str | None = None
    usage: ImageTokenUsage | None = None
    safety_identifier: str | None = None


class ImageEvent(Struct, kw_only=True, omit_defaults=True, tag_field="type"):
    """The fields of all events with an image."""

    b64_json: bytes
    created_at: int
    size: str
    quality: str
    background: Background
    output_format: OutputFormat


class ImageGenerationPartialImage(ImageEvent, kw_only=True, tag="image_generation.partial_image"):
    partial_image_index: int


class ImageEditPartialImage(ImageEvent, kw_only=True, tag="image_edit.partial_image"):
    partial_image_index: int


class ImageGenerationCompleted(ImageEvent, kw_only=True, tag="image_generation.completed"):
    usage: ImageTokenUsage
    safety_identifier: str | None = None


class ImageEditCompleted(ImageEvent, kw_only=True, tag="image_edit.completed"):
    usage: ImageTokenUsage
    safety_identifier: str | None = None


class ImageStreamError(Struct, kw_only=True, tag_field="type", tag="error"):
    """A failure after the stream has begun."""

    error: ErrorBody


GenerationEvent = ImageGenerationPartialImage | ImageGenerationCompleted | ImageStreamError
EditEvent = ImageEditPartialImage | ImageEditCompleted | ImageStreamError


T = TypeVar("T", bound=ImageFields)

# Fields of SVG and animated images, and of drawings that are not a mask.
_UNSUPPORTED = ("complexity", "frame_count", "frame_duration_ms", "svg", "markup")

_generation_decoder = RequestDecoder(CreateImage)
_edit_decoder = RequestDecoder(EditImage)


def decode_generation(body: bytes, limits: Limits) -> tuple[CreateImage, list[str]]:
    """Return the request and the names of unknown fields."""
    request, ignored = _generation_decoder.decode_body(body, limits)
    return _check(request), ignored


def decode_edit(body: bytes, limits: Limits) -> tuple[EditImage, list[str]]:
    request, ignored = _edit_decoder.decode_body(body, limits)
    for param, image in [(f"images[{at}]", image) for at, image in enumerate(request.images)] + [
        ("mask", request.mask)
    ]:
        if image is not None and (image.image_url is None) == (image.file_id is None):
            raise InvalidValue(f"'{param}' needs either image_url or file_id.", param=param)
    return _check(request), ignored


def decode_form(fields: Mapping[str, str], kind: type[T]) -> tuple[T, list[str]]:
    """Decode the fields of a form that are not files. Also returns the names of unknown fields."""
    values: dict[str, Any] = dict(fields)
    if "prompt" in kind.__struct_fields__ and "prompt" not in values:
        raise missing_parameter("prompt")
    request, ignored = convert_fields(values, kind)
    return _check(request), ignored


def _check(request: T) -> T:
    for name in _UNSUPPORTED:
        if getattr(request, name, None) is not None:
            raise UnsupportedParameter(f"'{name}' is not supported by this server.", param=name)
    if request.response_format == "url":
        raise UnsupportedParameter(
            "This server keeps no images under URLs: leave response_format out, or use b64_json.",
            param="response_format",
        )
    if isinstance(request, PromptFields) and request.partial_images and not request.stream:
        raise InvalidValue("'partial_images' needs stream: true.", param="partial_images")
    return request

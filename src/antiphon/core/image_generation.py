"""A request for images and its results, as the image_generation tool and the images API state them.

And images that the tool has made, as items of a response: as models read about them, and as parts that they see.
"""

from typing import Any, Final, Literal

from msgspec import UNSET, Struct

from antiphon.errors import AntiphonError
from antiphon.protocol.types.items import ImageGenerationCall
from antiphon.protocol.types.parts import InputImage

ImageBackground = Literal["transparent", "opaque", "auto"]
ImageFormat = Literal["png", "webp", "jpeg", "gif", "svg"]


class SourceImage(Struct, frozen=True):
    """An image that is edited, or the mask of an edit. Its type is detected from the bytes."""

    body: bytes
    media_type: str


class ImageRequest(Struct, frozen=True, kw_only=True):
    """None in a field means that the image service decides."""

    prompt: str
    model: str | None = None
    n: int | None = None
    size: str | None = None
    quality: str | None = None
    background: ImageBackground | None = None
    output_format: ImageFormat | None = None
    output_compression: int | None = None
    moderation: Literal["auto", "low"] | None = None
    style: Literal["vivid", "natural"] | None = None
    input_fidelity: Literal["high", "low"] | None = None
    partial_images: int = 0
    sources: tuple[SourceImage, ...] = ()  # not empty: they are edited
    mask: SourceImage | None = None
    variation: bool = False  # the source is varied, without a prompt


class ImageOptions(Struct, frozen=True, kw_only=True):
    """The options with which an image was really made."""

    size: str
    quality: str
    background: ImageBackground
    output_format: ImageFormat


class PartialImage(Struct, frozen=True, kw_only=True):
    """A preview of an image that is being made."""

    index: int
    body: bytes
    options: ImageOptions


class GeneratedImage(Struct, frozen=True, kw_only=True):
    body: bytes
    revised_prompt: str | None = None


class ImageUsage(Struct, frozen=True, kw_only=True):
    """The tokens that a service counted."""

    input_tokens: int
    output_tokens: int
    input_text_tokens: int = 0
    input_image_tokens: int = 0


class ImageResult(Struct, frozen=True, kw_only=True):
    images: tuple[GeneratedImage, ...]
    options: ImageOptions
    usage: ImageUsage | None = None


_NOT_VISIBLE: Final = "svg"  # models see pixels


def describe_image(item: ImageGenerationCall) -> str:
    """Return what a model reads of an image that was made, or why there is none."""
    if not item.result:
        reason = item.error.get("message", "") if isinstance(item.error, dict) else ""
        return f"Error: {reason}" if reason else "No image was made."
    size = "" if item.size in (UNSET, "auto") else f" of {item.size} pixels"
    return f"An image was made{size} and shown to the user."


def get_generated_image(item: ImageGenerationCall) -> InputImage | None:
    """Return the image of an item as the part of a message; None if there is none, or none with pixels."""
    if not item.result or item.output_format == _NOT_VISIBLE:
        return None
    kind = "png" if item.output_format is UNSET else item.output_format
    return InputImage(image_url=f"data:image/{kind};base64,{item.result}")


def make_image_error(error: AntiphonError) -> dict[str, Any]:
    """Return the error of an item whose image was not made."""
    return {"code": error.code, "message": error.message, "param": error.param, "type": error.type}

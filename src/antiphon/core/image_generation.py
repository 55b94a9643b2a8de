"""A request for images and its results, as the image_generation tool and the images API state them."""

from typing import Literal

from msgspec import Struct

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

"""A request for images and its results, as the image_generation tool and the images API state them.

And images that the tool has made, as items of a response: as models read about them, and as parts that they see. The
stored JSON of an item has a reference in place of the image, which is in the content store:

    "result": "antiphon-image:file-…:3145728"           key and size in bytes
"""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, Literal, TypeVar

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


T = TypeVar("T")

MAX_SHOWN_IMAGES: Final = 32  # in one prompt, of those that tools and computers have made
MAX_SHOWN_CHARACTERS: Final = 16 * 1024 * 1024  # total length of their data
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
    if parse_image_reference(item.result) is not None:
        return InputImage(image_url=item.result)
    kind = "png" if item.output_format is UNSET else item.output_format
    return InputImage(image_url=f"data:image/{kind};base64,{item.result}")


class StoredImage(Struct, frozen=True):
    """An image in the content store."""

    key: str
    size: int  # in bytes

    def __str__(self) -> str:
        return f"antiphon-image:{self.key}:{self.size}"


_REFERENCE: Final = r"antiphon-image:(file-[0-9a-f]{32}):(\d{1,10})"
IMAGE_MARK: Final = b'"antiphon-image:'  # in documents with references
_REFERENCE_TEXT: Final = re.compile(_REFERENCE)
_QUOTED: Final = re.compile(f'"{_REFERENCE}"'.encode())
RESULT_FIELD: Final = re.compile(f'(?<="result":)"{_REFERENCE}"'.encode())  # within a text the quotes are escaped


def parse_image_reference(text: str) -> StoredImage | None:
    found = _REFERENCE_TEXT.fullmatch(text) if len(text) < 128 else None
    return None if found is None else StoredImage(found[1], int(found[2]))


def take_latest(images: Iterable[T], measure: Callable[[T], int]) -> Iterator[T]:
    """Yield images, newest first, as many as a prompt shows. `measure` returns the characters of one."""
    characters = MAX_SHOWN_CHARACTERS
    for image in islice(images, MAX_SHOWN_IMAGES):
        characters -= measure(image)
        if characters < 0:
            return
        yield image


def measure_image(image: InputImage) -> int:
    """Return the characters that an image takes in a prompt; 0 if it has to be loaded first."""
    if image.image_url is UNSET:
        return 0
    reference = parse_image_reference(image.image_url)
    return len(image.image_url) if reference is None else reference.size * 4 // 3


def find_image_keys(*documents: bytes) -> list[str]:
    """Return the keys of the images to which JSON documents refer."""
    marked = [document for document in documents if IMAGE_MARK in document]  # 20 times as fast as the pattern
    return [*dict.fromkeys([found[1].decode() for document in marked for found in _QUOTED.finditer(document)])]


def make_image_error(error: AntiphonError) -> dict[str, Any]:
    """Return the error of an item whose image was not made."""
    return {"code": error.code, "message": error.message, "param": error.param, "type": error.type}

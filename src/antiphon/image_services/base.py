"""The interface of image services, and the checks of requests and results that all of them share.

An image service is configured by the operator; what it returns is untrusted. A result is accepted only if every image
is of the requested type, complete, and within the limits below.
"""

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Final, Literal, Protocol

from antiphon.core.data_urls import UnreadableMedia
from antiphon.core.image_generation import (
    GeneratedImage,
    ImageBackground,
    ImageFormat,
    ImageOptions,
    ImageRequest,
    ImageResult,
    ImageUsage,
    PartialImage,
)
from antiphon.core.images import ImageInfo, read_image_info
from antiphon.errors import BadRequest, EngineFailed, UnsupportedParameter, invalid_value

Operation = Literal["generations", "edits", "variations"]

MAX_RESULT_BYTES: Final = 32 * 1024 * 1024  # all images of one result together, decoded
MAX_PIXELS: Final = 64_000_000
MAX_PROMPT_CHARS: Final = 32_000
MAX_IMAGES: Final = 10
MAX_SOURCES: Final = 16
MAX_MASK_BYTES: Final = 4 * 1024 * 1024
MAX_SIDE, MAX_SIZE_PIXELS, MAX_RATIO, SIDE_STEP = 3840, 3840 * 2160, 3, 16
FORMATS: Final[Mapping[str, ImageFormat]] = {"image/png": "png", "image/jpeg": "jpeg", "image/webp": "webp"}
_SIZE: Final = re.compile(r"([1-9][0-9]{0,3})x([1-9][0-9]{0,3})")


class ModerationBlocked(BadRequest, code="moderation_blocked"):
    """An image service refuses to draw this; the code is OpenAI's."""


class ImageService(Protocol):
    """A service that makes images. All methods raise AntiphonError, within the service's timeout."""

    name: str
    models: Mapping[str, str]  # names that clients use → names at the service; empty: it takes any name
    timeout: float
    slots: int

    def check(self, request: ImageRequest, param: str) -> None:
        """Raise UnsupportedParameter if the service cannot honour a field of the request, which is below `param`."""

    def list_ignored(self, request: ImageRequest) -> list[str]:
        """Return the fields that have no effect, because the service has one model or sends no previews."""
        return []

    def generate(self, request: ImageRequest) -> AsyncGenerator[PartialImage | ImageResult, None]:
        """Yield previews, if the service sends any, and the result last; closing it cancels the work."""

    async def probe(self) -> None:
        """Raise AntiphonError if the service does not respond."""
        return

    async def close(self) -> None:
        return


def get_operation(request: ImageRequest) -> Operation:
    if request.variation:
        return "variations"
    return "edits" if request.sources else "generations"


def check_request(request: ImageRequest, param: str) -> None:
    """Check what no image service may receive. `param`: the prefix of the fields in error messages, such as
    `tools[0].`.
    """
    if not request.variation and not 0 < len(request.prompt) <= MAX_PROMPT_CHARS:
        raise invalid_value(f"{param}prompt", f"it has 1 to {MAX_PROMPT_CHARS:,} characters")
    if request.n is not None and not 1 <= request.n <= MAX_IMAGES:
        raise invalid_value(f"{param}n", f"it is between 1 and {MAX_IMAGES}")
    if len(request.sources) > MAX_SOURCES:
        raise invalid_value(f"{param}image", f"at most {MAX_SOURCES} images can be edited at once")
    if request.mask is not None:
        _check_mask(request, f"{param}mask")
    if request.output_format is not None and request.output_format not in FORMATS.values():
        raise UnsupportedParameter(
            "'output_format' is png, jpeg or webp on this server.", param=f"{param}output_format"
        )
    if request.background == "transparent" and request.output_format == "jpeg":
        raise invalid_value(f"{param}background", "a JPEG cannot be transparent")
    if request.size not in (None, "auto"):
        check_size(request.size, f"{param}size")


def _check_mask(request: ImageRequest, param: str) -> None:
    assert request.mask is not None
    if not request.sources:
        raise invalid_value(param, "a mask needs an image")
    if request.mask.media_type != "image/png" or len(request.mask.body) > MAX_MASK_BYTES:
        raise invalid_value(param, f"a mask is a PNG of at most {MAX_MASK_BYTES:,} bytes")


def check_size(size: str, param: str) -> None:
    """Check WIDTHxHEIGHT by the rules of OpenAI's API."""
    found = _SIZE.fullmatch(size)
    if found is None:
        raise invalid_value(param, "it is WIDTHxHEIGHT, such as 1024x1024, or auto")
    short, long = sorted(map(int, found.groups()))
    if short % SIDE_STEP or long % SIDE_STEP:
        raise invalid_value(param, f"width and height are multiples of {SIDE_STEP}")
    if long > short * MAX_RATIO:
        raise invalid_value(param, f"no side is longer than {MAX_RATIO} times the other")
    if long > MAX_SIDE or short * long > MAX_SIZE_PIXELS:
        raise invalid_value(param, "it is at most 3840x2160")


class ResultOptions(Protocol):
    """The options that a service reports in its reply or event; they may be missing or nonsense."""

    quality: object
    background: object


def read_options(body: bytes, request: ImageRequest, reported: ResultOptions | None, label: str) -> ImageOptions:
    """Check an image of a service, and return its options. Raises EngineFailed."""
    info = _read_image(body, label)
    output_format = FORMATS[info.media_type]
    if output_format != (request.output_format or output_format):
        raise EngineFailed(f"{label} returned {output_format} instead of {request.output_format}.")
    quality = None if reported is None else reported.quality
    return ImageOptions(
        size=f"{info.width}x{info.height}",
        quality=quality if isinstance(quality, str) and len(quality) < 16 else request.quality or "auto",
        background=_read_background(None if reported is None else reported.background) or request.background or "auto",
        output_format=output_format,
    )


def _read_background(reported: object) -> ImageBackground | None:
    match reported:
        case "transparent" | "opaque" | "auto":
            return reported
    return None


def _read_image(body: bytes, label: str) -> ImageInfo:
    try:
        info = read_image_info(body)
    except UnreadableMedia:
        raise EngineFailed(f"{label} returned something that is not an image.") from None
    if info.media_type not in FORMATS:
        raise EngineFailed(f"{label} returned {info.media_type}, which is neither PNG, JPEG nor WebP.")
    if not _is_complete(body, info.media_type):
        raise EngineFailed(f"{label} returned an image that is truncated.")
    if info.pixels > MAX_PIXELS:
        raise EngineFailed(f"{label} returned an image of more than {MAX_PIXELS:,} pixels.")
    return info


def _is_complete(body: bytes, media_type: str) -> bool:
    """Return whether the end is there: the chunk IEND, the marker EOI after the last scan, or the size of the RIFF."""
    match media_type:
        case "image/png":
            return b"\0\0\0\0IEND" in body[-1024:]
        case "image/jpeg":
            return body.rfind(b"\xff\xd9") > body.rfind(b"\xff\xda")
    return int.from_bytes(body[4:8], "little") + 8 <= len(body)


def make_result(
    images: Sequence[GeneratedImage],
    request: ImageRequest,
    reported: ResultOptions | None,
    usage: ImageUsage | None,
    label: str,
) -> ImageResult:
    """Check all images of a result. Raises EngineFailed."""
    if len(images) != (request.n or 1):
        raise EngineFailed(f"{label} returned {len(images)} images instead of {request.n or 1}.")
    if sum([len(image.body) for image in images]) > MAX_RESULT_BYTES:
        raise EngineFailed(f"{label} returned more than {MAX_RESULT_BYTES:,} bytes of images.")
    options = [read_options(image.body, request, reported, label) for image in images]
    return ImageResult(images=tuple(images), options=options[0], usage=usage)

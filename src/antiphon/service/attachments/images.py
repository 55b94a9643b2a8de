"""Image sent or referenced by a client → data URL with the actual media type, within the limits.

No pixel is decoded here: the headers suffice to detect images that are too large for an engine.
"""

from antiphon.core.media.data_urls import UnreadableMedia, read_data_url, to_data_url
from antiphon.core.media.images import ImageInfo, read_image_info
from antiphon.errors import InvalidImage
from antiphon.limits import Limits


def image_from_url(url: str, limits: Limits, param: str) -> str:
    """Check a data URL; it is returned unchanged if its media type is correct."""
    try:
        data = read_data_url(url, limits.image_bytes)
        image = read_image_info(data.body)
    except UnreadableMedia as reason:
        raise InvalidImage(str(reason), param=param)
    _check_image(image, limits, param)
    if data.is_canonical and url.startswith(f"data:{image.media_type};base64,"):
        return url
    return to_data_url(image.media_type, data.body)


def image_from_bytes(body: bytes, limits: Limits, param: str) -> str:
    try:
        image = read_image_info(body)
    except UnreadableMedia as reason:
        raise InvalidImage(str(reason), param=param)
    _check_image(image, limits, param)
    return to_data_url(image.media_type, body)


def _check_image(image: ImageInfo, limits: Limits, param: str) -> None:
    size = f"{image.width}×{image.height}"
    if min(image.width, image.height) < limits.image_side:
        raise InvalidImage(f"The image has {size} pixels; each side needs at least {limits.image_side}.", param=param)
    if image.frames > limits.image_frames:
        raise InvalidImage(
            f"The image has {image.frames} frames; at most {limits.image_frames} are allowed.", param=param
        )
    if image.pixels > limits.image_pixels:
        frames = f" in {image.frames} frames" if image.frames > 1 else ""
        raise InvalidImage(
            f"The image has {size} pixels{frames}; at most {limits.image_pixels:,} are allowed.", param=param
        )

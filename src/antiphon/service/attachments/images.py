"""A picture that a client sent or named → a data URL that says what it really is, if it keeps within the limits.

No pixel is decoded here: what could blow up in an engine is told by the headers.
"""

from antiphon.core.media.data_urls import Unreadable, data_url, read_data_url
from antiphon.core.media.images import Picture, look
from antiphon.errors import InvalidImage
from antiphon.limits import Limits


def picture_from_url(url: str, limits: Limits, param: str) -> str:
    """Of a data URL; the very same one, if it says what it holds."""
    try:
        data = read_data_url(url, limits.image_bytes)
        picture = look(data.body)
    except Unreadable as reason:
        raise InvalidImage(str(reason), param=param)
    _vet(picture, limits, param)
    if data.usual and url.startswith(f"data:{picture.media_type};base64,"):
        return url
    return data_url(picture.media_type, data.body)


def picture_from_bytes(body: bytes, limits: Limits, param: str) -> str:
    try:
        picture = look(body)
    except Unreadable as reason:
        raise InvalidImage(str(reason), param=param)
    _vet(picture, limits, param)
    return data_url(picture.media_type, body)


def _vet(picture: Picture, limits: Limits, param: str) -> None:
    size = f"{picture.width}×{picture.height}"
    if min(picture.width, picture.height) < limits.image_side:
        raise InvalidImage(f"The picture has {size} pixels; each side needs at least {limits.image_side}.", param=param)
    if picture.frames > limits.image_frames:
        raise InvalidImage(
            f"The picture has {picture.frames} frames; at most {limits.image_frames} are allowed.", param=param
        )
    if picture.pixels > limits.image_pixels:
        frames = f" in {picture.frames} frames" if picture.frames > 1 else ""
        raise InvalidImage(
            f"The picture has {size} pixels{frames}; at most {limits.image_pixels:,} are allowed.", param=param
        )

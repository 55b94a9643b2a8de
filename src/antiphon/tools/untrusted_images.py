"""Images that tools return. One that cannot be shown must not make the next prompt invalid."""

from antiphon.core.data_urls import UnreadableMedia, to_data_url
from antiphon.core.images import read_image_info
from antiphon.limits import Limits
from antiphon.protocol.types.parts import InputImage


def make_input_image(body: bytes, limits: Limits) -> InputImage | None:
    """Return the image if it can be shown to models. Its type is detected from the data."""
    try:
        image = read_image_info(body)
    except UnreadableMedia:
        return None
    if len(body) > limits.image_bytes or image.pixels > limits.image_pixels or image.frames > limits.image_frames:
        return None
    if min(image.width, image.height) < limits.image_side:
        return None
    return InputImage(image_url=to_data_url(image.media_type, body))

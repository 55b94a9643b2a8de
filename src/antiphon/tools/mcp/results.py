"""Convert the result of a call to the output of its item and the output for the model.

Text is passed on unchanged. Every other block becomes one line of JSON in the item; images are shown to the model.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from antiphon.core.deltas import ToolOutputContent
from antiphon.core.media.data_urls import UnreadableMedia, read_base64, to_data_url
from antiphon.core.media.images import read_image_info
from antiphon.limits import Limits
from antiphon.protocol.types.items import InputImage, InputText

Json = dict[str, Any]

_TRUNCATED: Final = "\n[The output is cut off here: it has {size:,} bytes, and at most {most:,} are passed on.]"
_OMITTED: Final = "left out: {size:,} characters"
_MAX_INLINE_DATA: Final = 256  # characters of data that are always included


def render_output(result: Json, limit: int) -> str:
    """Return the output of the item. A result with structured content but no text is rendered as JSON."""
    blocks: Sequence[Json] = result.get("content") or ()
    lines = [_render_block(block, limit) for block in blocks]
    if "structuredContent" in result and not any(block["type"] == "text" for block in blocks):
        lines.append(_encode_json(result["structuredContent"]))
    return truncate("\n".join(lines), limit)


def render_model_output(result: Json, limit: int, limits: Limits) -> ToolOutputContent:
    """Return the output for the model if it contains images; "" if the item's output suffices."""
    parts: list[InputText | InputImage] = []
    remaining = limit
    for block in result.get("content") or ():
        image = _to_image(block, limits)
        text = "" if image else truncate(_render_block(block, 0), max(0, remaining))
        remaining -= len(text)
        parts.append(image or InputText(text=text))
    return parts if any(isinstance(part, InputImage) for part in parts) else ""


def trim_content(result: Json, limit: int) -> list[Json]:
    """Return the content of an error, with the same size limit."""
    blocks: Sequence[Json] = result.get("content") or ()
    trimmed: list[Json] = []
    for block in blocks:
        bounded = _omit_data(block, max(0, limit))
        if bounded.get("type") == "text":
            bounded["text"] = truncate(bounded["text"], max(0, limit))
        limit -= len(_encode_json(bounded))
        if limit < 0 and trimmed:
            break
        trimmed.append(bounded)
    return trimmed


def truncate(text: str, limit: int) -> str:
    if len(text) <= limit // 4:  # fits regardless of its characters: UTF-8 takes at most 4 bytes each
        return text
    encoded = text.encode("utf-8", "surrogatepass")
    if len(encoded) <= limit:
        return text
    prefix = encoded[:limit].decode("utf-8", "ignore")
    return prefix + _TRUNCATED.format(size=len(encoded), most=limit)


def _render_block(block: Json, limit: int) -> str:
    text = block.get("text")
    return text if block["type"] == "text" and isinstance(text, str) else _encode_json(_omit_data(block, limit))


def _omit_data(block: Json, limit: int) -> Json:
    """Copy the block, without binary data that is larger than the limit."""
    result = dict(block)
    if isinstance(data := result.get("data"), str) and len(data) > max(limit, _MAX_INLINE_DATA):
        result["data"] = _OMITTED.format(size=len(data))
    resource = result.get("resource")
    if (
        isinstance(resource, dict)
        and isinstance(blob := resource.get("blob"), str)
        and len(blob) > max(limit, _MAX_INLINE_DATA)
    ):
        result["resource"] = {**resource, "blob": _OMITTED.format(size=len(blob))}
    return result


def _to_image(block: Json, limits: Limits) -> InputImage | None:
    """Return the image if it can be shown. Its type is detected from the data; the declared type is ignored."""
    if block["type"] != "image":
        return None
    try:
        body = read_base64(block["data"], limits.image_bytes).body
        image = read_image_info(body)
    except UnreadableMedia:
        return None
    if image.pixels > limits.image_pixels or image.frames > limits.image_frames:
        return None
    if min(image.width, image.height) < limits.image_side:
        return None
    return InputImage(image_url=to_data_url(image.media_type, body))


def _encode_json(value: object) -> str:
    return msgspec.json.encode(value).decode("utf-8", "replace")

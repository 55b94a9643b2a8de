"""What a call gave → what its item shows and what the model is told.

Text is told as it is. Everything else is one line of JSON each in the item; pictures the model is shown.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from antiphon.core.deltas import Said
from antiphon.core.media.data_urls import Unreadable, data_url, read_base64
from antiphon.core.media.images import look
from antiphon.limits import Limits
from antiphon.protocol.types.items import InputImage, InputText

Json = dict[str, Any]

_CUT: Final = "\n[The output is cut off here: it has {size:,} bytes, and at most {most:,} are passed on.]"
_LEFT_OUT: Final = "left out: {size:,} characters"
_SMALL: Final = 256  # characters of data that stand beside others without being in the way


def output_of(result: Json, most: int) -> str:
    """Of an item. What was said in structure alone is told as JSON."""
    blocks: Sequence[Json] = result.get("content") or ()
    lines = [_line(block, most) for block in blocks]
    if "structuredContent" in result and not any(block["type"] == "text" for block in blocks):
        lines.append(_json(result["structuredContent"]))
    return cut("\n".join(lines), most)


def said_of(result: Json, most: int, limits: Limits) -> Said:
    """For the model, if there are pictures to show it; "" if the output says it all."""
    parts: list[InputText | InputImage] = []
    left = most
    for block in result.get("content") or ():
        shown = _picture(block, limits)
        text = "" if shown else cut(_line(block, 0), max(0, left))
        left -= len(text)
        parts.append(shown or InputText(text=text))
    return parts if any(isinstance(part, InputImage) for part in parts) else ""


def content_of(result: Json, most: int) -> list[Json]:
    """Of an error, bounded likewise."""
    blocks: Sequence[Json] = result.get("content") or ()
    kept: list[Json] = []
    for block in blocks:
        whole = _without_data(block, max(0, most))
        if whole.get("type") == "text":
            whole["text"] = cut(whole["text"], max(0, most))
        most -= len(_json(whole))
        if most < 0 and kept:
            break
        kept.append(whole)
    return kept


def cut(text: str, most: int) -> str:
    if len(text) <= most // 4:  # whatever its characters are
        return text
    encoded = text.encode("utf-8", "surrogatepass")
    if len(encoded) <= most:
        return text
    kept = encoded[:most].decode("utf-8", "ignore")
    return kept + _CUT.format(size=len(encoded), most=most)


def _line(block: Json, most: int) -> str:
    text = block.get("text")
    return text if block["type"] == "text" and isinstance(text, str) else _json(_without_data(block, most))


def _without_data(block: Json, most: int) -> Json:
    """As it is, or, if it is larger than that, without what is no text anyway."""
    whole = dict(block)
    if isinstance(data := whole.get("data"), str) and len(data) > max(most, _SMALL):
        whole["data"] = _LEFT_OUT.format(size=len(data))
    resource = whole.get("resource")
    if isinstance(resource, dict) and isinstance(blob := resource.get("blob"), str) and len(blob) > max(most, _SMALL):
        whole["resource"] = {**resource, "blob": _LEFT_OUT.format(size=len(blob))}
    return whole


def _picture(block: Json, limits: Limits) -> InputImage | None:
    """One that can be shown: what it is called does not count."""
    if block["type"] != "image":
        return None
    try:
        body = read_base64(block["data"], limits.image_bytes).body
        picture = look(body)
    except Unreadable:
        return None
    if picture.pixels > limits.image_pixels or picture.frames > limits.image_frames:
        return None
    if min(picture.width, picture.height) < limits.image_side:
        return None
    return InputImage(image_url=data_url(picture.media_type, body))


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode("utf-8", "replace")

"""Outputs of tools that the server ran and outcomes of MCP approvals, as a model sees them.

Images are shown to models that accept them, never as text. Only the images of the latest calls are shown, within a
limit, so that a tool that returns hundreds of images does not make the prompt impossible.

Calls that needed approval are shown as ordinary calls with their outcome: a model that reads its requests as text would
write further requests as text.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET

from antiphon.core.code_approvals import list_run_requests
from antiphon.core.deltas import ToolOutputContent
from antiphon.core.image_generation import describe_image, get_generated_image, measure_image, take_latest
from antiphon.protocol.types import items as it
from antiphon.protocol.types.parts import InputImage, InputText, MessagePart

_MIN_DATA_LENGTH: Final = 256  # characters; shorter data is left in place


class VisibleImages:
    """Selects the tool images that a model is shown: the latest ones, if it accepts images."""

    def __init__(self, outputs: Mapping[str, ToolOutputContent], accepts_images: bool) -> None:
        self._accepts_images = accepts_images
        parts = [part for output in outputs.values() if not isinstance(output, str) for part in output]
        images = [part for part in reversed(parts) if accepts_images and isinstance(part, InputImage)]
        self._visible = {id(image) for image in take_latest(images, measure_image)}

    def replace_hidden(self, parts: Sequence[MessagePart]) -> list[MessagePart]:
        """Replace images that are not shown by a note."""
        return [self._replace_part(part) for part in parts]

    def _replace_part(self, part: MessagePart) -> MessagePart:
        if not isinstance(part, InputImage) or id(part) in self._visible:
            return part
        reason = "is not shown again" if self._accepts_images else "this model cannot see"
        return InputText(text=f"[A picture, which {reason}.]")


def show_generated_images(items: Sequence[it.InputItem]) -> dict[int, list[MessagePart]]:
    """Return what a model that sees is shown of the images that were made: the latest ones, by identity of the item."""
    calls = (item for item in reversed(items) if isinstance(item, it.ImageGenerationCall))
    made = ((item, image) for item in calls if (image := get_generated_image(item)) is not None)
    latest = take_latest(made, lambda pair: measure_image(pair[1]))
    return {id(item): [InputText(text=describe_image(item)), image] for item, image in latest}


def strip_binary_data(output: str) -> str:
    """Remove image and audio data from a stored output: such a line of JSON is long and useless to a model."""
    if len(output) < _MIN_DATA_LENGTH or ('"data":' not in output and '"blob":' not in output):
        return output
    return "\n".join([_strip_line(line) for line in output.split("\n")])


def _strip_line(line: str) -> str:
    if len(line) < _MIN_DATA_LENGTH or not line.startswith("{"):
        return line
    try:
        block = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return line
    if block.get("type") not in ("image", "audio", "resource"):
        return line
    resource = block.get("resource")
    if isinstance(resource, dict):
        block["resource"] = _shorten_field(resource, "blob")
    return msgspec.json.encode(_shorten_field(block, "data")).decode()


def _shorten_field(block: dict[str, Any], field: str) -> dict[str, Any]:
    data = block.get(field)
    if not isinstance(data, str) or len(data) < _MIN_DATA_LENGTH:
        return block
    return {**block, field: f"left out: {len(data):,} characters"}


APPROVAL_PENDING: Final = "[This call was not run: nobody has allowed it yet.]"
APPROVAL_GRANTED: Final = "[The user has allowed this call. What came of it is not known.]"


class ApprovalHistory:
    """Approval requests of a history and what became of them."""

    def __init__(self, items: Sequence[it.InputItem]) -> None:
        self._responses: dict[str, it.McpApprovalResponse] = {}
        self._executed = list_run_requests(items)
        for item in items:
            if type(item) is it.McpApprovalResponse:
                self._responses[item.approval_request_id] = item
            elif type(item) is it.McpCall and item.approval_request_id:
                self._executed.add(item.approval_request_id)

    def describe_outcome(self, request: it.McpApprovalRequest) -> str | None:
        """Return the outcome as text for the model; None if the call was run and is rendered as its own item."""
        request_id = "" if request.id is UNSET else request.id
        if request_id in self._executed:
            return None
        if (response := self._responses.get(request_id)) is None:
            return APPROVAL_PENDING
        if response.approve:
            return APPROVAL_GRANTED
        return f"[The user did not allow this call{f': {response.reason}' if response.reason else '.'}]"

"""What tools that the server ran have given, as a model is told it: pictures where it can see them, never as text.

Pictures of the last calls are shown, within a bound: a tool that gives hundreds does not make a prompt impossible.

Calls that a client was asked about, as a model is told of them: as calls like any other, and what came of them.

A model that reads how it asked in words would ask in words again.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET

from antiphon.core.deltas import Said
from antiphon.protocol.types.items import (
    InputImage,
    InputItem,
    InputText,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    MessagePart,
)

MOST_PICTURES: Final = 32
MOST_CHARACTERS: Final = 16 * 1024 * 1024  # of their data
_LONG: Final = 256  # characters of data that are in the way


class Shown:
    """Which of the pictures that tools gave a model is shown: the last ones, if it sees any."""

    def __init__(self, said: Mapping[str, Said], sees: bool) -> None:
        self._sees = sees
        self._shown: set[int] = set()
        pictures, characters = MOST_PICTURES if sees else 0, MOST_CHARACTERS
        parts = [part for told in said.values() if not isinstance(told, str) for part in told]
        for part in reversed(parts):
            if isinstance(part, InputImage):
                pictures, characters = pictures - 1, characters - _size(part)
                if pictures < 0 or characters < 0:
                    break
                self._shown.add(id(part))

    def parts(self, told: Sequence[MessagePart]) -> list[MessagePart]:
        return [self._part(part) for part in told]

    def _part(self, part: MessagePart) -> MessagePart:
        if not isinstance(part, InputImage) or id(part) in self._shown:
            return part
        why = "is not shown again" if self._sees else "this model cannot see"
        return InputText(text=f"[A picture, which {why}.]")


def without_data(output: str) -> str:
    """Of an item that was kept: a line of JSON that holds a picture or a sound is long, and nobody reads it."""
    if len(output) < _LONG or ('"data":' not in output and '"blob":' not in output):
        return output
    return "\n".join([_without_data(line) for line in output.split("\n")])


def _without_data(line: str) -> str:
    if len(line) < _LONG or not line.startswith("{"):
        return line
    try:
        block = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return line
    if block.get("type") not in ("image", "audio", "resource"):
        return line
    resource = block.get("resource")
    if isinstance(resource, dict):
        block["resource"] = _short(resource, "blob")
    return msgspec.json.encode(_short(block, "data")).decode()


def _short(block: dict[str, Any], field: str) -> dict[str, Any]:
    data = block.get(field)
    if not isinstance(data, str) or len(data) < _LONG:
        return block
    return {**block, field: f"left out: {len(data):,} characters"}


def _size(picture: InputImage) -> int:
    return 0 if picture.image_url is UNSET or picture.image_url is None else len(picture.image_url)


UNDECIDED: Final = "[This call was not run: nobody has allowed it yet.]"
ALLOWED: Final = "[The user has allowed this call. What came of it is not known.]"


class Asked:
    """What a history says about all of them."""

    def __init__(self, items: Iterable[InputItem]) -> None:
        self._answers: dict[str, McpApprovalResponse] = {}
        self._ran: set[str] = set()
        for item in items:
            if type(item) is McpApprovalResponse:
                self._answers[item.approval_request_id] = item
            elif type(item) is McpCall and item.approval_request_id:
                self._ran.add(item.approval_request_id)

    def outcome(self, request: McpApprovalRequest) -> str | None:
        """None: it was run, and is told where that is told."""
        name = "" if request.id is UNSET else request.id
        if name in self._ran:
            return None
        answer = self._answers.get(name)
        if answer is None:
            return UNDECIDED
        if answer.approve:
            return ALLOWED
        return f"[The user did not allow this call{f': {answer.reason}' if answer.reason else '.'}]"

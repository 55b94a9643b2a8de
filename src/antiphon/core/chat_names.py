"""What a client of chat completions calls what an error speaks of: the shared path names fields of a CreateResponse."""

import re
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Final

from msgspec import Struct

from antiphon.errors import AntiphonError

_ITEM = re.compile(r"input\[(\d+)\](?:\.(?:content|output)\[(\d+)\])?(.*)", re.DOTALL)
_TOOL = re.compile(r"tools\[(\d+)\]\.(.*)", re.DOTALL)
_FIELDS: Final = {
    "input": "messages",
    "text.verbosity": "verbosity",
    "reasoning.effort": "reasoning_effort",
    "include": "logprobs",
    "tool_choice.tools": "tool_choice.allowed_tools.tools",
    "max_output_tokens": "max_completion_tokens",
    "text.format": "response_format",
}
_ENDINGS: Final = {".image_url": "", ".call_id": ".tool_call_id"}
_WORDS: Final = {"input_image": "image_url", "input_file": "file", "call_id": "tool_call_id"}


class Place(Struct, frozen=True):
    """Where an item came from, and where each of its parts did."""

    at: str
    parts: Sequence[str] = ()


class ChatNames:
    """`fields`: what is named differently from request to request, the more special first; `tools`: where each stood,
    as `tools[0].function`."""

    def __init__(
        self, places: Sequence[Place] = (), fields: Mapping[str, str] | None = None, tools: Sequence[str] = ()
    ) -> None:
        self._places = places
        given = fields or {}
        self._fields = {**given, **{ours: theirs for ours, theirs in _FIELDS.items() if ours not in given}}
        self._tools = tools

    def reword(self, error: AntiphonError) -> AntiphonError:
        """The same error, and another object: others may share the one that was raised."""
        if error.param is None or (name := self.param(error.param)) == error.param:
            return error
        told = copy(error)
        told.param = name
        told.message = error.message.replace(f"'{error.param}'", f"'{name}'")
        for ours, theirs in _WORDS.items():
            told.message = re.sub(rf"\b{ours}\b", theirs, told.message)
        return told

    def param(self, name: str) -> str:
        if found := _ITEM.fullmatch(name):
            return self._item(int(found[1]), found[2], found[3])
        if (found := _TOOL.fullmatch(name)) and int(found[1]) < len(self._tools):
            ending = found[2].replace("format.definition", "format.grammar.definition")
            return f"{self._tools[int(found[1])]}.{ending}"
        for ours, theirs in self._fields.items():
            if name == ours or name.startswith((f"{ours}.", f"{ours}[")):
                return theirs + name[len(ours) :]
        return name

    def _item(self, index: int, part: str | None, ending: str) -> str:
        if index >= len(self._places):
            return "messages"
        place = self._places[index]
        at = place.at if part is None or int(part) >= len(place.parts) else place.parts[int(part)]
        return at + _ENDINGS.get(ending, ending)

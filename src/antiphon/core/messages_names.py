"""What Anthropic's API calls what an error speaks of: the shared path names fields of a CreateResponse."""

import re
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Final

from msgspec import Struct

from antiphon.errors import AntiphonError

_ITEM = re.compile(r"input\[(\d+)\](?:\.(?:content|output)\[(\d+)\])?(.*)", re.DOTALL)
_SCHEMA = re.compile(r"(tools\[\d+\])\.parameters(.*)", re.DOTALL)
_FIELDS: Final = {
    "input": "messages",
    "instructions": "system",
    "max_output_tokens": "max_tokens",
    "stop": "stop_sequences",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "user": "metadata.user_id",
}
_ENDINGS: Final = {
    ".image_url": ".source",
    ".file_data": ".source",
    ".file_url": ".source",
    ".file_id": ".source.file_id",
}
_WORDS: Final = {
    "input_image part": "image block",
    "input_file part": "document block",
    "input_image": "image block",
    "input_file": "document block",
    " Shorten the input, or send truncation: 'auto'.": "",
}


class Place(Struct, frozen=True):
    """Where an item came from, and where each of its parts did."""

    at: str
    parts: Sequence[str] = ()
    call_id: str = ".tool_use_id"  # what the id of its call is named


class Names:
    """`fields`: what is named differently from request to request."""

    def __init__(self, places: Sequence[Place], fields: Mapping[str, str]) -> None:
        self._places = places
        self._fields = {**_FIELDS, **fields}

    def told(self, error: AntiphonError) -> AntiphonError:
        """The error as a client of this API is told it. One that others share stays as it is."""
        if error.param is None:
            return error
        name = self.param(error.param)
        sentence = error.message.replace(f"'{error.param}'", f"'{name}'")
        for theirs, ours in _WORDS.items():
            sentence = sentence.replace(theirs, ours)
        told = copy(error)
        told.param = name
        told.message = sentence
        return told

    def param(self, name: str) -> str:
        if found := _ITEM.fullmatch(name):
            return self._item(int(found[1]), found[2], found[3])
        if found := _SCHEMA.fullmatch(name):
            return f"{found[1]}.input_schema{found[2]}"
        for ours, theirs in self._fields.items():
            if name == ours or name.startswith((f"{ours}.", f"{ours}[")):
                return theirs + name[len(ours) :]
        return name

    def _item(self, index: int, part: str | None, ending: str) -> str:
        if index >= len(self._places):
            return "messages"
        place = self._places[index]
        at = place.at if part is None or int(part) >= len(place.parts) else place.parts[int(part)]
        return at + (place.call_id if ending == ".call_id" else _ENDINGS.get(ending, ending))

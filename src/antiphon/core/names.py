"""What clients of another API call what an error speaks of: the shared path names fields of a CreateResponse.

An API has its words (chat_names.py, messages_names.py); a request knows where its items and tools stood.
"""

import re
from collections.abc import Mapping, Sequence
from copy import copy
from typing import ClassVar

from msgspec import Struct

from antiphon.errors import AntiphonError

_ITEM = re.compile(r"input\[(\d+)\](?:\.(?:content|output)\[(\d+)\])?(.*)", re.DOTALL)
_TOOL = re.compile(r"tools\[(\d+)\]\.(.*)", re.DOTALL)


class Place(Struct, frozen=True):
    """Where an item came from, and where each of its parts did."""

    at: str
    parts: Sequence[str] = ()
    call_id: str | None = None  # what the id of its call is named, if not as everywhere else


class Names:
    """`given`: what is named differently from request to request, the more special first."""

    fields: ClassVar[Mapping[str, str]]
    endings: ClassVar[Mapping[str, str]]  # of what is within an item
    words: ClassVar[Mapping[str, str]]  # in sentences: regular expressions, and what is said instead

    def __init__(self, places: Sequence[Place] = (), given: Mapping[str, str] | None = None) -> None:
        self._places = places
        given = given or {}
        self._fields = {**given, **{ours: theirs for ours, theirs in self.fields.items() if ours not in given}}

    def told(self, error: AntiphonError) -> AntiphonError:
        """The error as a client of this API is told it; another object, since others may share the one raised."""
        if error.param is None:
            return error
        told = copy(error)
        told.param = self.param(error.param)
        told.message = error.message.replace(f"'{error.param}'", f"'{told.param}'")
        for ours, theirs in self.words.items():
            told.message = re.sub(ours, theirs, told.message)
        return told

    def param(self, name: str) -> str:
        if found := _ITEM.fullmatch(name):
            return self._item(int(found[1]), found[2], found[3])
        if found := _TOOL.fullmatch(name):
            return self.tool(int(found[1]), found[2])
        for ours, theirs in self._fields.items():
            if name == ours or name.startswith((f"{ours}.", f"{ours}[")):
                return theirs + name[len(ours) :]
        return name

    def tool(self, index: int, ending: str) -> str:
        """`ending`: what is within the tool."""
        raise NotImplementedError

    def _item(self, index: int, part: str | None, ending: str) -> str:
        if index >= len(self._places):
            return "messages"
        place = self._places[index]
        at = place.at if part is None or int(part) >= len(place.parts) else place.parts[int(part)]
        if ending == ".call_id" and place.call_id is not None:
            return at + place.call_id
        return at + self.endings.get(ending, ending)

"""What clients of another API call what an error speaks of: the shared path names fields of a CreateResponse.

An API has its words (chat_names.py, messages_names.py); a request knows where its items and tools stood.

The names of chat completions.

The names of Anthropic's API.
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


class ChatNames(Names):
    """`tools`: where each stood, as `tools[0].function`."""

    fields: ClassVar = {
        "input": "messages",
        "text.verbosity": "verbosity",
        "reasoning.effort": "reasoning_effort",
        "include": "logprobs",
        "tool_choice.tools": "tool_choice.allowed_tools.tools",
        "max_output_tokens": "max_completion_tokens",
        "text.format": "response_format",
    }
    endings: ClassVar = {".image_url": "", ".call_id": ".tool_call_id"}
    words: ClassVar = {r"\binput_image\b": "image_url", r"\binput_file\b": "file", r"\bcall_id\b": "tool_call_id"}

    def __init__(
        self, places: Sequence[Place] = (), given: Mapping[str, str] | None = None, tools: Sequence[str] = ()
    ) -> None:
        super().__init__(places, given)
        self._tools = tools

    def tool(self, index: int, ending: str) -> str:
        if index >= len(self._tools):
            return f"tools[{index}].{ending}"
        return f"{self._tools[index]}.{ending.replace('format.definition', 'format.grammar.definition')}"


class MessageNames(Names):
    fields: ClassVar = {
        "input": "messages",
        "instructions": "system",
        "max_output_tokens": "max_tokens",
        "stop": "stop_sequences",
        "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
        "user": "metadata.user_id",
    }
    endings: ClassVar = {
        ".image_url": ".source",
        ".file_data": ".source",
        ".file_url": ".source",
        ".file_id": ".source.file_id",
        ".call_id": ".tool_use_id",
        ".encrypted_content": ".signature",
    }
    words: ClassVar = {
        r"\binput_image( part)?": "image block",
        r"\binput_file( part)?": "document block",
        r"\bas (image_url|file_data)\b": "as base64",
        r"\bcall_id\b": "id",
        r" Shorten the input, or send truncation: 'auto'\.": "",
    }

    def tool(self, index: int, ending: str) -> str:
        if ending == "parameters" or ending.startswith(("parameters.", "parameters[")):
            ending = f"input_schema{ending.removeprefix('parameters')}"
        return f"tools[{index}].{ending}"

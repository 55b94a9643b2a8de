"""Requests of other APIs as a CreateResponse, and the translation of parameter names in errors to those of the API.

The shared code names fields of a CreateResponse. Each API has its own names (`ChatParamNames`, `AnthropicParamNames`),
and a request records the positions from which its items and tools came.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import ClassVar, TypeVar

from msgspec import Struct

from antiphon.errors import AntiphonError
from antiphon.limits import Limits
from antiphon.protocol.decoding.checks import ToolChecks, check_request
from antiphon.protocol.decoding.codec import DecodedRequest
from antiphon.protocol.types.items import InputItem
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.shared_list import SharedList, derive
from antiphon.protocol.types.tools import Json, Tool

D = TypeVar("D")

_ITEM = re.compile(r"input\[(\d+)\](?:\.(?:content|output)\[(\d+)\])?(.*)", re.DOTALL)
_TOOL = re.compile(r"tools\[(\d+)\]\.(.*)", re.DOTALL)


class SourcePosition(Struct, frozen=True):
    """Position of an item and of each of its parts in the client's request."""

    path: str
    part_paths: Sequence[str] = ()
    call_id_suffix: str | None = None  # field of the call id, if not the usual one


class TranslatedItems:
    """Collects the items of a request and their positions."""

    def __init__(self) -> None:
        self.items: list[InputItem] = []
        self.positions: list[SourcePosition] = []
        self.ignored: list[str] = []  # names of fields and paths of blocks without effect

    def add(self, item: InputItem, position: SourcePosition) -> None:
        self.items.append(item)
        self.positions.append(position)


class ParamNames:
    """Names of one API. `overrides` are the field names that depend on the request, more specific ones first."""

    fields: ClassVar[Mapping[str, str]]
    suffixes: ClassVar[Mapping[str, str]]  # of fields within an item
    message_terms: ClassVar[Mapping[str, str]]  # terms in error messages: regular expression → replacement

    def __init__(
        self,
        positions: Sequence[SourcePosition] = (),
        overrides: Mapping[str, str] | None = None,
        tools: Sequence[str] = (),
    ) -> None:
        """`tools` is the position of each tool, such as `tools[0].function`."""
        self._positions = positions
        self._tools = tools
        overrides = overrides or {}
        self._fields = {**overrides, **self.fields, **overrides}  # the order is that of the first occurrences

    def translate_error(self, error: AntiphonError) -> AntiphonError:
        """Return the error with the names of this API. It is a copy, since the original may be shared."""
        if error.param is None:
            return error
        translated = copy(error)
        translated.param = self.translate_param(error.param)
        translated.message = error.message.replace(f"'{error.param}'", f"'{translated.param}'")
        for pattern, replacement in self.message_terms.items():
            translated.message = re.sub(pattern, replacement, translated.message)
        return translated

    def translate_ignored(self, ignored: Sequence[str], sent: Sequence[str]) -> list[str]:
        """Return the names of fields without effect. Those of `sent` are already the client's."""
        return [name if name in sent else self.translate_param(name) for name in ignored]

    def translate_param(self, name: str) -> str:
        if found := _ITEM.fullmatch(name):
            return self._item_param(int(found[1]), found[2], found[3])
        if found := _TOOL.fullmatch(name):
            return self.tool_param(int(found[1]), found[2])
        for field, client_field in self._fields.items():
            if name == field or name.startswith((f"{field}.", f"{field}[")):
                return client_field + name[len(field) :]
        return name

    def tool_param(self, index: int, suffix: str) -> str:
        """Return the name of a field of a tool; `suffix` is the path within the tool."""
        raise NotImplementedError

    def _item_param(self, index: int, part: str | None, suffix: str) -> str:
        if index >= len(self._positions):
            return "messages"
        position = self._positions[index]
        path = (
            position.path if part is None or int(part) >= len(position.part_paths) else position.part_paths[int(part)]
        )
        if suffix == ".call_id" and position.call_id_suffix is not None:
            return path + position.call_id_suffix
        return path + self.suffixes.get(suffix, suffix)


class ChatParamNames(ParamNames):
    fields: ClassVar = {
        "input": "messages",
        "text.verbosity": "verbosity",
        "reasoning.effort": "reasoning_effort",
        "include": "logprobs",
        "tool_choice.tools": "tool_choice.allowed_tools.tools",
        "max_output_tokens": "max_completion_tokens",
        "text.format": "response_format",
    }
    suffixes: ClassVar = {".image_url": "", ".call_id": ".tool_call_id"}
    message_terms: ClassVar = {
        r"\binput_image\b": "image_url",
        r"\binput_file\b": "file",
        r"\bcall_id\b": "tool_call_id",
    }

    def tool_param(self, index: int, suffix: str) -> str:
        if index >= len(self._tools):
            return f"tools[{index}].{suffix}"
        return f"{self._tools[index]}.{suffix.replace('format.definition', 'format.grammar.definition')}"


class AnthropicParamNames(ParamNames):
    fields: ClassVar = {
        "input": "messages",
        "instructions": "system",
        "reasoning.effort": "output_config.effort",
        "max_output_tokens": "max_tokens",
        "stop": "stop_sequences",
        "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
        "user": "metadata.user_id",
    }
    suffixes: ClassVar = {
        ".image_url": ".source",
        ".file_data": ".source",
        ".file_url": ".source",
        ".file_id": ".source.file_id",
        ".call_id": ".tool_use_id",
        ".encrypted_content": ".signature",
    }
    message_terms: ClassVar = {
        r"\binput_image( part)?": "image block",
        r"\binput_file( part)?": "document block",
        r"\bas (image_url|file_data)\b": "as base64",
        r"\bcall_id\b": "id",
        r" Shorten the input, or send truncation: 'auto'\.": "",
    }

    def tool_param(self, index: int, suffix: str) -> str:
        if suffix == "parameters" or suffix.startswith(("parameters.", "parameters[")):
            suffix = f"input_schema{suffix.removeprefix('parameters')}"
        return f"tools[{index}].{suffix}"


def build_request(
    fields: Json,
    ignored: list[str],
    names: ParamNames,
    limits: Limits,
    declared: Sequence[D] = (),
    to_tool: Callable[[D, str], Tool] | None = None,
) -> DecodedRequest:
    """Build and check the CreateResponse with these fields. Errors have the names of the API.

    `to_tool` translates a declared tool; its second argument is the position of the tool. All of them are translated
    and checked once for all requests that share the declarations.
    """

    def make_tools() -> list[Tool]:
        assert to_tool is not None
        tools = [to_tool(each, f"tools[{index}]") for index, each in enumerate(declared)]
        ToolChecks(limits).check(tools, "tools")
        return SharedList(tools)

    try:
        tools = derive(declared, limits, make_tools) if declared else []
        request = CreateResponse(**fields, tools=tools)
        check_request(request, fields, limits)
    except AntiphonError as error:
        raise names.translate_error(error) from None
    return DecodedRequest(request, frozenset((*fields, "tools") if tools else fields), ignored)

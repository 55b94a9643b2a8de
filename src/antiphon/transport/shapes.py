"""What /openapi.json has to say beyond the types: where requests may be written shorter, and what they need besides.

The types are the one shape that requests are brought to (protocol/decoding/normalise.py), so they know nothing of a
string that stands for more, or of a null that stands for nothing. Bounds that the operator sets are told as they are.
"""

from typing import Any, get_args

from antiphon.limits import Limits
from antiphon.protocol.bodies.embeddings import CreateEmbedding
from antiphon.protocol.decoding.codec import MOST_ITEMS
from antiphon.protocol.decoding.normalise import STRINGS_TOO
from antiphon.protocol.types.anthropic.request import (
    CountTokens,
    CreateMessage,
    InputBlock,
    MessageMetadata,
    MessageTool,
    MessageToolChoice,
    OutputConfig,
    Thinking,
)
from antiphon.protocol.types.builtin_items import McpListedTool
from antiphon.protocol.types.conversation import CreateConversation
from antiphon.protocol.types.items import InputItem
from antiphon.protocol.types.parts import MessagePart, ToolOutputPart
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import Format, ReasoningConfig, TextConfig
from antiphon.protocol.types.tool_choice import ToolChoice
from antiphon.protocol.types.tools import Tool

Json = dict[str, Any]

# Where a null is the same as nothing at all.
_NULLS_TOO: frozenset[str] = frozenset(
    kind.__name__
    for kind in (
        *(CreateResponse, CreateConversation, CreateEmbedding, CreateMessage, CountTokens, TextConfig, ReasoningConfig),
        *(McpListedTool, MessageTool, MessageMetadata, OutputConfig),
        *(MessageToolChoice.__subclasses__() + Thinking.__subclasses__()),
        *(get_args(InputItem) + get_args(MessagePart) + get_args(ToolOutputPart) + get_args(InputBlock)),
        *(get_args(Tool) + get_args(ToolChoice) + get_args(Format)),
    )
    if isinstance(kind, type)
)
# What their types leave open: it may come from elsewhere in other places, or another field stands in for it.
_NEEDED: dict[str, tuple[str, ...]] = {
    "ItemReference": ("id",),
    "CreateChat": ("messages",),
    "CreateCompletion": ("prompt",),
    "MessageTool": ("input_schema",),
}
# Not of pictures: what is listed leaves their URLs out, unless they are asked for.
_NEEDED_ONE_OF: dict[str, tuple[str, ...]] = {
    "InputFile": ("file_data", "file_id", "file_url"),
    "SubmitToolOutput": ("tool_call_id", "call_id"),
}
_TOLD_BY_ITSELF = {"Message", "SummaryText", "AutoContainer"}  # by what is in it, or where it is
_ANYTHING = ("array", "boolean", "number", "object", "string")
_NAME = {"pattern": "^[A-Za-z0-9_-]{1,128}$"}
_SOME = {"minLength": 1}


def complete(components: dict[str, Json], limits: Limits) -> None:
    """The schemas of all types that have a name, in place."""
    _allow_strings(components)
    for name in _NULLS_TOO & components.keys():
        _allow_nulls(components[name])
    for name, fields in _NEEDED.items():
        if name in components:
            _need(components[name], fields)
    for name, fields in _NEEDED_ONE_OF.items():
        if name in components:
            components[name]["anyOf"] = [_with(field) for field in fields]
    for name in _TOLD_BY_ITSELF & components.keys():
        components[name]["required"].remove("type")
    for name, bounds in _bounds(limits).items():
        properties = components.get(name, {}).get("properties", {})
        for field in properties.keys() & bounds.keys():
            _bound(properties[field], bounds[field])


def _allow_strings(components: dict[str, Json]) -> None:
    for name, fields in STRINGS_TOO.items():
        properties = components.get(name, {}).get("properties", {})
        for field in properties.keys() & fields:
            shape = properties[field]
            default = {"default": shape.pop("default")} if "default" in shape else {}
            properties[field] = {"anyOf": [{"type": "string"}, *shape.get("anyOf", [shape])], **default}


def _allow_nulls(component: Json) -> None:
    """In whatever is not required; and nowhere else, since a null is what is missing then."""
    required = component.get("required", ())
    for name, shape in component.get("properties", {}).items():
        if name in required:
            if not shape:
                shape["type"] = list(_ANYTHING)
        elif not _takes_null(shape):
            component["properties"][name] = _or_null(shape)


def _takes_null(shape: Json) -> bool:
    return not shape.keys() - {"default", "description"} or {"type": "null"} in shape.get("anyOf", ())


def _or_null(shape: Json) -> Json:
    default = {"default": shape.pop("default")} if "default" in shape else {}
    return {"anyOf": [*(shape["anyOf"] if shape.keys() == {"anyOf"} else [shape]), {"type": "null"}], **default}


def _need(component: Json, fields: tuple[str, ...]) -> None:
    component["required"] = [*component.get("required", ()), *fields]
    for field in fields:
        shape = component["properties"][field]
        shape.pop("default", None)
        if "anyOf" in shape:
            shape["anyOf"] = [one for one in shape["anyOf"] if one != {"type": "null"}]


def _with(field: str) -> Json:
    """It is there, and no null."""
    return {"required": [field], "properties": {field: {"type": "string"}}}


def _bounds(limits: Limits) -> dict[str, dict[str, Json]]:
    key = {"minLength": 1, "maxLength": limits.metadata_key, "pattern": r"^[^\x00]*$"}
    metadata = {"maxProperties": limits.metadata_pairs, "propertyNames": key}
    stops = {"maxItems": limits.stop_strings}
    return {
        "CreateResponse": {"metadata": metadata, "prompt_cache_key": _SOME},
        "CreateConversation": {"metadata": metadata, "items": {"maxItems": MOST_ITEMS}},
        "UpdateConversation": {"metadata": metadata},
        "CreateItems": {"items": {"maxItems": MOST_ITEMS}},
        "CreateMessage": {"stop_sequences": stops, "messages": {"minItems": 1}},
        "CountTokens": {"messages": {"minItems": 1}},
        "MessageTool": {"name": _NAME},
        "FunctionTool": {"name": _NAME},
        "AudioForm": {"model": _SOME},
    }


def _bound(shape: Json, bounds: Json) -> None:
    """The one of its forms that is no null."""
    forms = [one for one in shape.get("anyOf", [shape]) if one.get("type") != "null"]
    forms[0].update(bounds)

"""Completes the schemas of /openapi.json, which are generated from the types of requests and replies.

The types describe requests after normalisation (protocol/decoding/normalise.py), so their schemas are completed here:
with the short forms that requests may use, such as a string for a list or a null for a missing field, with fields that
are required although their type has a default, and with the operator's limits.
"""

from typing import Any, get_args

from antiphon.limits import Limits
from antiphon.protocol.bodies.embeddings import CreateEmbedding
from antiphon.protocol.decoding.codec import MAX_NEW_ITEMS
from antiphon.protocol.decoding.normalise import STRING_SHORTHANDS
from antiphon.protocol.types import vector_stores as vectors
from antiphon.protocol.types.anthropic.request import (
    AnthropicToolChoice,
    CountTokens,
    CreateMessage,
    InputBlock,
    MessageMetadata,
    MessageTool,
    OutputConfig,
    ThinkingConfig,
)
from antiphon.protocol.types.containers import CreateContainer
from antiphon.protocol.types.conversation import CreateConversation
from antiphon.protocol.types.filters import Comparison
from antiphon.protocol.types.items import InputItem, McpListedTool
from antiphon.protocol.types.parts import MessagePart, ToolOutputPart
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import Format, ReasoningConfig, TextConfig
from antiphon.protocol.types.tool_choice import ToolChoice
from antiphon.protocol.types.tools import Tool

Json = dict[str, Any]

# Types in which a null is equal to a missing field.
_NULLABLE: frozenset[str] = frozenset(
    kind.__name__
    for kind in (
        *(CreateResponse, CreateConversation, CreateEmbedding, CreateMessage, CountTokens, TextConfig, ReasoningConfig),
        *(CreateContainer, McpListedTool, MessageTool, MessageMetadata, OutputConfig),
        *(vectors.CreateVectorStore, vectors.AddVectorStoreFile, vectors.CreateFileBatch, vectors.SearchVectorStore),
        *(AnthropicToolChoice.__subclasses__() + ThinkingConfig.__subclasses__()),
        *(get_args(InputItem) + get_args(MessagePart) + get_args(ToolOutputPart) + get_args(InputBlock)),
        *(get_args(Tool) + get_args(ToolChoice) + get_args(Format)),
    )
    if isinstance(kind, type)
)
# Required fields that their types leave optional: there the value may also come from another source or field.
_REQUIRED: dict[str, tuple[str, ...]] = {
    "ItemReference": ("id",),
    "CreateChat": ("messages",),
    "CreateCompletion": ("prompt",),
    "MessageTool": ("input_schema",),
}
# Not images: listed items omit their URLs unless they are included.
_REQUIRED_ONE_OF: dict[str, tuple[str, ...]] = {
    "InputFile": ("file_data", "file_id", "file_url"),
    "FileContent": ("file_data", "file_id"),
    "SubmitToolOutput": ("tool_call_id", "call_id"),
    **{kind.__name__: ("key", "property") for kind in Comparison.__subclasses__()},
}
_TYPE_OPTIONAL = {"Message", "SummaryText", "AutoContainer"}  # recognised by their content or position
_NON_NULL_TYPES = ("array", "boolean", "number", "object", "string")
_TOOL_NAME = {"pattern": "^[A-Za-z0-9_-]{1,128}$"}
_NON_EMPTY = {"minLength": 1}


def complete_schemas(components: dict[str, Json], limits: Limits) -> None:
    """Complete the schemas of all named types, in place."""
    _allow_strings(components)
    for name in _NULLABLE & components.keys():
        _allow_nulls(components[name])
    for name, fields in _REQUIRED.items():
        if name in components:
            _require_fields(components[name], fields)
    for name, fields in _REQUIRED_ONE_OF.items():
        if name in components:
            # one of the fields has to be present and not null
            components[name]["anyOf"] = [
                {"required": [field], "properties": {field: {"type": "string"}}} for field in fields
            ]
    for name in _TYPE_OPTIONAL & components.keys():
        components[name]["required"].remove("type")
    for name, bounds in _make_bounds(limits).items():
        properties = components.get(name, {}).get("properties", {})
        for field in properties.keys() & bounds.keys():
            shape = properties[field]
            forms = [one for one in shape.get("anyOf", [shape]) if one.get("type") != "null"]
            forms[0].update(bounds[field])


def _allow_strings(components: dict[str, Json]) -> None:
    for name, fields in STRING_SHORTHANDS.items():
        properties = components.get(name, {}).get("properties", {})
        for field in properties.keys() & fields:
            shape = properties[field]
            default = {"default": shape.pop("default")} if "default" in shape else {}
            properties[field] = {"anyOf": [{"type": "string"}, *shape.get("anyOf", [shape])], **default}


def _allow_nulls(component: Json) -> None:
    """Allow null for every field that is not required, and for no other: a null counts as missing."""
    required = component.get("required", ())
    for name, shape in component.get("properties", {}).items():
        if name in required:
            if not shape:
                shape["type"] = list(_NON_NULL_TYPES)
        elif not _is_nullable(shape):
            component["properties"][name] = _make_nullable(shape)


def _is_nullable(shape: Json) -> bool:
    return not shape.keys() - {"default", "description"} or {"type": "null"} in shape.get("anyOf", ())


def _make_nullable(shape: Json) -> Json:
    default = {"default": shape.pop("default")} if "default" in shape else {}
    return {"anyOf": [*(shape["anyOf"] if shape.keys() == {"anyOf"} else [shape]), {"type": "null"}], **default}


def _require_fields(component: Json, fields: tuple[str, ...]) -> None:
    component["required"] = [*component.get("required", ()), *fields]
    for field in fields:
        shape = component["properties"][field]
        shape.pop("default", None)
        if "anyOf" in shape:
            shape["anyOf"] = [one for one in shape["anyOf"] if one != {"type": "null"}]


def _make_bounds(limits: Limits) -> dict[str, dict[str, Json]]:
    key = {"minLength": 1, "maxLength": limits.metadata_key, "pattern": r"^[^\x00]*$"}
    metadata = {"maxProperties": limits.metadata_pairs, "propertyNames": key}
    stops = {"maxItems": limits.stop_strings}
    return {
        "CreateResponse": {"metadata": metadata, "prompt_cache_key": _NON_EMPTY},
        "CreateConversation": {"metadata": metadata, "items": {"maxItems": MAX_NEW_ITEMS}},
        "UpdateConversation": {"metadata": metadata},
        "CreateVectorStore": {"metadata": metadata},
        "UpdateVectorStore": {"metadata": metadata},
        "CreateItems": {"items": {"maxItems": MAX_NEW_ITEMS}},
        "CreateMessage": {"stop_sequences": stops, "messages": {"minItems": 1}},
        "CountTokens": {"messages": {"minItems": 1}},
        "MessageTool": {"name": _TOOL_NAME},
        "FunctionTool": {"name": _TOOL_NAME},
        "AudioForm": {"model": _NON_EMPTY},
        "CreateUpload": {"bytes": {"maximum": limits.stored_file_bytes}},
    }

"""Converts short and alternative forms that clients may send to the one form of the types.

Works in place on decoded JSON, before types are checked. Values of unexpected types are left unchanged, so that the
type check names them. Null is equivalent to omitting the field.
"""

from typing import Any

from antiphon.errors import InvalidValue
from antiphon.protocol.types.tools import Json

# Fields that also accept a plain string. The types do not express that; /openapi.json adds it.
STRING_SHORTHANDS = {
    "CreateResponse": ("input", "conversation"),
    "CompactResponse": ("input",),
    "Message": ("content",),
    "CreateMessage": ("system",),
    "CountTokens": ("system",),
    "InputMessage": ("content",),
    "McpCall": ("error",),
}
_TOOL_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})
_TOOL_LISTS = frozenset({"additional_tools", "tool_search_output"})


def normalise(body: Json) -> None:
    drop_nulls(body)
    value = body.get("input")
    if type(value) is str:
        body["input"] = [{"type": "message", "role": "user", "content": [_make_text_part("user", value)]}]
    elif type(value) is list:
        for item in value:
            normalise_item(item)
    if _REWRITES.keys().isdisjoint(body):
        return
    for name, rewrite in _REWRITES.items():
        if name in body:
            rewrite(body)


def drop_nulls(value: Json) -> None:
    if None in value.values():
        for name in [name for name, entry in value.items() if entry is None]:
            del value[name]


def filter_objects(values: Any) -> list[Json]:
    return [value for value in values if type(value) is dict] if type(values) is list else []


def normalise_item(item: Any) -> None:
    if type(item) is not dict:
        return
    drop_nulls(item)
    kind = item.get("type")
    if type(kind) is not str:
        kind = None if kind is not None else _infer_type(item)
    if kind == "message":
        _normalise_content(item)
    elif kind in _TOOL_OUTPUTS:
        normalise_output(item)
    elif kind in _TOOL_LISTS:
        _normalise_tools(item)
    elif kind == "reasoning":
        _drop_nulls_in(item.get("content"))
    elif kind == "mcp_call" and type(item.get("error")) is str:  # the older form, before it became an object
        item["error"] = {"type": "mcp_tool_execution_error", "content": item["error"]}
    elif kind == "mcp_list_tools":
        _drop_nulls_in(item.get("tools"))
    elif kind == "computer_call":
        _drop_nulls_in([item.get("action")])
        _drop_nulls_in(item.get("actions"))
    elif kind == "computer_call_output":
        _drop_nulls_in([item.get("output")])


def _infer_type(item: Json) -> str | None:
    if "role" in item:
        item["type"] = "message"
    elif item.keys() == {"id"}:
        item["type"] = "item_reference"
    return item.get("type")


def _make_text_part(role: Any, text: str) -> Json:
    return {"type": "output_text" if role == "assistant" else "input_text", "text": text}


def _normalise_content(message: Json) -> None:
    content = message.get("content")
    if type(content) is str:
        message["content"] = [_make_text_part(message.get("role"), content)]
    else:
        _drop_nulls_in(content)


def normalise_output(item: Json) -> None:
    """Normalise the `output` of a tool, in an item or any other object."""
    for part in filter_objects(item.get("output")):
        drop_nulls(part)
        if part.get("type") in ("output_text", "text"):
            part["type"] = "input_text"


def _drop_nulls_in(values: Any) -> None:
    if type(values) is list:
        for value in values:
            if type(value) is dict and None in value.values():
                drop_nulls(value)


def _normalise_tools(holder: Json) -> None:
    for tool in filter_objects(holder.get("tools")):
        drop_nulls(tool)
        kind = tool.get("type")
        if kind == "function":
            _unnest(tool, "function")
        elif kind == "namespace":
            _normalise_tools(tool)
        elif kind == "file_search":
            _drop_nulls_in([tool.get("ranking_options")])


def _unnest(value: Json, name: str) -> None:
    """Flatten `{type, function: {name, …}}`, the form of chat completions, to `{type, name, …}`."""
    nested = value.get(name)
    if type(nested) is dict:
        del value[name]
        drop_nulls(nested)
        value.update({key: entry for key, entry in nested.items() if key not in value})


def _normalise_tool_choice(body: Json) -> None:
    choice = body["tool_choice"]
    if type(choice) is dict:
        _unnest(choice, "allowed_tools")
        allowed = filter_objects(choice.get("tools"))
        for named in (choice, *allowed):
            drop_nulls(named)
            for name in ("function", "custom"):
                _unnest(named, name)
        for tool in allowed:
            tool.setdefault("type", "function")


def _normalise_conversation(body: Json) -> None:
    if type(body["conversation"]) is str:
        body["conversation"] = {"id": body["conversation"]}


def _normalise_text(body: Json) -> None:
    text = body["text"]
    if type(text) is dict:
        drop_nulls(text)
        if "format" in text:
            _normalise_format(text["format"])


def _normalise_format(text_format: Any) -> None:
    if type(text_format) is dict:
        drop_nulls(text_format)
        _unnest(text_format, "json_schema")


def _normalise_response_format(body: Json) -> None:
    """Move `response_format`, an alias, to `text.format`. Both are accepted if they are equal."""
    text_format = body.pop("response_format")
    _normalise_format(text_format)
    text = body.setdefault("text", {})
    if type(text) is dict and text.setdefault("format", text_format) != text_format:
        raise InvalidValue(
            "'response_format' and 'text.format' are different formats; send one of them.", param="response_format"
        )


def _normalise_reasoning(body: Json) -> None:
    if type(body["reasoning"]) is dict:
        drop_nulls(body["reasoning"])


def _normalise_retention(body: Json) -> None:
    if body["prompt_cache_retention"] == "in-memory":  # the name until 2026
        body["prompt_cache_retention"] = "in_memory"


_REWRITES = {
    "tools": _normalise_tools,
    "tool_choice": _normalise_tool_choice,
    "text": _normalise_text,
    "response_format": _normalise_response_format,
    "reasoning": _normalise_reasoning,
    "conversation": _normalise_conversation,
    "prompt_cache_retention": _normalise_retention,
}

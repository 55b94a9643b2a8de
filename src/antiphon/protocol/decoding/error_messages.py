"""Converts decoding errors of msgspec to API errors whose message names the field."""

import json
import math
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec.inspect as types
from msgspec import Struct, ValidationError

from antiphon.errors import BadRequest, InvalidJson, InvalidType, InvalidValue, missing_parameter

Keys = list[str | int]

_PATH = re.compile(r"(?: - at `(?:key in )?\$(?P<path>[^`]*)`)?\Z")
_WRONG_TYPE = re.compile(r"Expected `(?P<wanted>[^`]*)`, got `(?P<got>[^`]*)`")
_OUT_OF_RANGE = re.compile(r"Expected `(?P<kind>[^`]*)` (?P<bound>.*)\Z")
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]*)`")
_KEY = re.compile(r"\[(\d+)\]|\.([^.\[\]]+)")
_ANY_NAME = "[...]"  # msgspec's notation for a key of a mapping, which the client chose
_TYPE_NAMES = {
    "str": "a string", "int": "an integer", "float": "a number", "bool": "a boolean", "array": "an array",
    "object": "an object", "null": "null",
}  # fmt: skip
_MAX_SHOWN_CHARS = 64  # limit for values of the client in error messages
_MAX_SEARCHED_BYTES = 64 * 1024  # bodies up to this size are decoded again, slowly, to locate a NaN or an infinity


def explain(error: ValidationError, body: Any, root: type[Struct]) -> BadRequest:
    """Make the error for a `body` that cannot be converted to `root`."""
    message, keys = _parse_message(str(error))
    param = _format_path(keys)
    if found := _MISSING.match(message):
        return missing_parameter(_format_path([*keys, found["name"]]))
    if found := _WRONG_TYPE.match(message):
        expected = " or ".join(_type_name(kind) for kind in found["wanted"].split(" | ") if kind != "null")
        sentence = f"Invalid type for {_quote(param)}: expected {expected}, got {_type_name(found['got'])}."
        return InvalidType(sentence, param=param or None)
    return InvalidValue(
        f"Invalid value for {_quote(param)}: {_describe_reason(message, keys, body, root)}.", param=param or None
    )


def explain_json(error: Exception, body: bytes) -> BadRequest:
    """Make the error for a `body` that cannot be decoded (RFC 8259)."""
    if not body.strip():
        return InvalidJson("The request has no body; a JSON object is expected.")
    if len(body) <= _MAX_SEARCHED_BYTES and (keys := _find_non_finite(body)) is not None:
        param = _format_path(keys)
        sentence = f"Invalid value for {_quote(param)}: expected a finite number within range."
        return InvalidValue(sentence, param=param or None)
    if isinstance(error, UnicodeDecodeError):
        return InvalidJson(f"The body is not valid JSON: a string is not valid UTF-8 ({error.reason}).")
    return InvalidJson(f"The body is not valid JSON: {str(error).removeprefix('JSON is malformed: ')}.")


def _parse_message(message: str) -> tuple[str, Keys]:
    """Split a message of msgspec into the message, shortened if it quotes a long value, and the path of the value."""
    if len(message) > 2000:
        message = message[:1000] + message[-1000:]
    if (location := _PATH.search(message)) is None:
        return message, []
    path = (location["path"] or "").split(_ANY_NAME)[0]
    keys: Keys = [int(index) if index else name for index, name in _KEY.findall(path)]
    return message[: location.start()], keys


def _format_path(keys: Keys) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key[:_MAX_SHOWN_CHARS]}" for key in keys).lstrip(".")


def _quote(param: str) -> str:
    return f"'{param}'" if param else "the body"


def _type_name(kind: str) -> str:
    return _TYPE_NAMES.get(kind, kind)


def _describe_reason(message: str, keys: Keys, body: Any, root: type[Struct]) -> str:
    if message.startswith(("Invalid enum value", "Invalid value")):
        value, allowed = _resolve_path(keys, body, _load_type_info(root))
        if allowed:
            return f"{_shorten(value)} is not one of {', '.join(repr(literal) for literal in allowed)}"
    if found := _OUT_OF_RANGE.match(message):
        return f"expected {_type_name(found['kind'])} {found['bound']}"
    return message[:200].lower()


@cache
def _load_type_info(root: type[Struct]) -> types.Type:
    """Cached, since inspecting a type takes ten milliseconds, too long for every small invalid request."""
    return types.type_info(root)


def _shorten(value: Any) -> str:
    text = repr(value[:_MAX_SHOWN_CHARS] if isinstance(value, str) else value)
    return text if len(text) <= _MAX_SHOWN_CHARS + 2 else text[:_MAX_SHOWN_CHARS] + "…"


def _resolve_path(keys: Keys, value: Any, kind: types.Type) -> tuple[Any, list[str]]:
    """Return the value at the end of `keys` and the literals that are allowed there."""
    options = list(_iter_options(kind))
    for key in keys:
        if key == "type" and (tags := sorted(_list_tags(options))):
            return value.get(key), tags
        options = [found for option in options for found in _iter_children(option, key, value)]
        value = value[key]
    return value, [
        str(literal) for option in options if isinstance(option, types.LiteralType) for literal in option.values
    ]


def _list_tags(options: list[types.Type]) -> list[str]:
    return [str(option.tag) for option in options if isinstance(option, types.StructType) and option.tag is not None]


def _iter_options(kind: types.Type) -> Iterator[types.Type]:
    """Iterate over the members of a union, or yield any other type itself."""
    if isinstance(kind, types.Metadata):
        yield from _iter_options(kind.type)
    elif isinstance(kind, types.UnionType):
        for member in kind.types:
            yield from _iter_options(member)
    else:
        yield kind


def _iter_children(kind: types.Type, key: str | int, value: Any) -> Iterator[types.Type]:
    match kind:
        case types.ListType() if isinstance(key, int):
            yield from _iter_options(kind.item_type)
        case types.DictType() if isinstance(key, str):
            yield from _iter_options(kind.value_type)
        case types.StructType() if isinstance(value, dict) and kind.tag in (None, value.get("type")):
            for field in kind.fields:
                if field.encode_name == key:
                    yield from _iter_options(field.type)


def _find_non_finite(body: bytes) -> Keys | None:
    """Return the path of a NaN or an infinity in `body`, which msgspec rejected; None if there is none."""
    try:
        decoded = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return next(_iter_non_finite(decoded, []), None)


def _iter_non_finite(value: Any, path: Keys) -> Iterator[Keys]:
    if isinstance(value, float) and not math.isfinite(value):
        yield path
    elif isinstance(value, dict):
        for name, entry in value.items():
            yield from _iter_non_finite(entry, [*path, name])
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _iter_non_finite(entry, [*path, index])

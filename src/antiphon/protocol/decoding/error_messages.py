"""What is wrong with a request, in a sentence that names the field: msgspec's words become our errors."""

import json
import math
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec.inspect as types
from msgspec import Struct, ValidationError

from antiphon.errors import BadRequest, InvalidJson, InvalidType, InvalidValue, MissingParameter

Keys = list[str | int]

_AT = re.compile(r"(?: - at `(?:key in )?\$(?P<path>[^`]*)`)?\Z")
_WRONG_TYPE = re.compile(r"Expected `(?P<wanted>[^`]*)`, got `(?P<got>[^`]*)`")
_OUT_OF_RANGE = re.compile(r"Expected `(?P<kind>[^`]*)` (?P<bound>.*)\Z")
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]*)`")
_KEY = re.compile(r"\[(\d+)\]|\.([^.\[\]]+)")
_ANY_NAME = "[...]"  # a name that the client chose
_NAMES = {
    "str": "a string", "int": "an integer", "float": "a number", "bool": "a boolean", "array": "an array",
    "object": "an object", "null": "null",
}  # fmt: skip
_SHOWN = 64  # characters of what was sent
_SEARCHED = 64 * 1024  # bytes of a body that is read again, slowly, to find a number that is none


def explain(error: ValidationError, body: Any, root: type[Struct]) -> BadRequest:
    """The error for a `body` that cannot be converted to `root`."""
    said, keys = _parse(str(error))
    param = _spell(keys)
    if found := _MISSING.match(said):
        param = _spell([*keys, found["name"]])
        return MissingParameter(f"Missing required parameter: '{param}'.", param=param)
    if found := _WRONG_TYPE.match(said):
        wanted = " or ".join(_name(kind) for kind in found["wanted"].split(" | ") if kind != "null")
        sentence = f"Invalid type for {_quoted(param)}: expected {wanted}, got {_name(found['got'])}."
        return InvalidType(sentence, param=param or None)
    return InvalidValue(f"Invalid value for {_quoted(param)}: {_reason(said, keys, body, root)}.", param=param or None)


def explain_json(error: Exception, body: bytes) -> BadRequest:
    """The error for a `body` that cannot be decoded."""
    if not body.strip():
        return InvalidJson("The request has no body; a JSON object is expected.")
    if len(body) <= _SEARCHED and (keys := _not_a_number(body)) is not None:
        param = _spell(keys)
        sentence = f"Invalid value for {_quoted(param)}: expected a finite number within range."
        return InvalidValue(sentence, param=param or None)
    if isinstance(error, UnicodeDecodeError):
        return InvalidJson(f"The body is not valid JSON: a string is not valid UTF-8 ({error.reason}).")
    return InvalidJson(f"The body is not valid JSON: {str(error).removeprefix('JSON is malformed: ')}.")


def _parse(said: str) -> tuple[str, Keys]:
    """msgspec's sentence, without what was sent if that is long, and the way to what it speaks of."""
    if len(said) > 2000:
        said = said[:1000] + said[-1000:]
    at = _AT.search(said)
    if at is None:
        return said, []
    path = (at["path"] or "").split(_ANY_NAME)[0]
    keys: Keys = [int(index) if index else name for index, name in _KEY.findall(path)]
    return said[: at.start()], keys


def _spell(keys: Keys) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key[:_SHOWN]}" for key in keys).lstrip(".")


def _quoted(param: str) -> str:
    return f"'{param}'" if param else "the body"


def _name(kind: str) -> str:
    return _NAMES.get(kind, kind)


def _reason(said: str, keys: Keys, body: Any, root: type[Struct]) -> str:
    if said.startswith(("Invalid enum value", "Invalid value")):
        sent, known = _descend(keys, body, _known(root))
        if known:
            return f"{_show(sent)} is not one of {', '.join(repr(word) for word in known)}"
    if found := _OUT_OF_RANGE.match(said):
        return f"expected {_name(found['kind'])} {found['bound']}"
    return said[:200].lower()


@cache
def _known(root: type[Struct]) -> types.Type:
    """Taken apart once: that takes ten milliseconds, which nobody is to have for a small request that is refused."""
    return types.type_info(root)


def _show(sent: Any) -> str:
    text = repr(sent[:_SHOWN] if isinstance(sent, str) else sent)
    return text if len(text) <= _SHOWN + 2 else text[:_SHOWN] + "…"


def _descend(keys: Keys, value: Any, kind: types.Type) -> tuple[Any, list[str]]:
    """What stands at the end of `keys`, and the words that may stand there."""
    options = list(_options(kind))
    for key in keys:
        if key == "type" and (tags := sorted(_tags(options))):
            return value.get(key), tags
        options = [found for held in options for found in _step(held, key, value)]
        value = value[key]
    return value, [str(word) for held in options if isinstance(held, types.LiteralType) for word in held.values]


def _tags(options: list[types.Type]) -> Iterator[str]:
    for held in options:
        if isinstance(held, types.StructType) and held.tag is not None:
            yield str(held.tag)


def _options(kind: types.Type) -> Iterator[types.Type]:
    """The members of a union; any other type by itself."""
    if isinstance(kind, types.Metadata):
        yield from _options(kind.type)
    elif isinstance(kind, types.UnionType):
        for held in kind.types:
            yield from _options(held)
    else:
        yield kind


def _step(kind: types.Type, key: str | int, value: Any) -> Iterator[types.Type]:
    match kind:
        case types.ListType() if isinstance(key, int):
            yield from _options(kind.item_type)
        case types.DictType() if isinstance(key, str):
            yield from _options(kind.value_type)
        case types.StructType() if isinstance(value, dict) and kind.tag in (None, value.get("type")):
            for held in kind.fields:
                if held.encode_name == key:
                    yield from _options(held.type)


def _not_a_number(body: bytes) -> Keys | None:
    """Where `body`, which msgspec refused, has a NaN or an infinity; None if that is not what is wrong."""
    try:
        decoded = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return next(_infinite(decoded, []), None)


def _infinite(value: Any, path: Keys) -> Iterator[Keys]:
    if isinstance(value, float) and not math.isfinite(value):
        yield path
    elif isinstance(value, dict):
        for name, held in value.items():
            yield from _infinite(held, [*path, name])
    elif isinstance(value, list):
        for index, held in enumerate(value):
            yield from _infinite(held, [*path, index])

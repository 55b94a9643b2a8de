"""Bounds on JSON: its structure before it is decoded, its nesting depth and the size of its enum values afterwards.

Decoding cost grows with braces and escapes rather than with bytes: 20 MiB of small objects would block the event loop
for half a second. The first checks are a few passes of C code over slices of the bytes, so that a malicious body is
rejected at its first slice. Invalid JSON passes; the decoder reports what is wrong.
"""

from collections.abc import Iterator
from typing import Any

import msgspec.inspect as types
from msgspec import Struct

from antiphon.errors import InvalidValue
from antiphon.limits import Limits

_NOT_STRUCTURE = bytes(range(256)).translate(None, b"{}[],:")
_SLICE = 256 * 1024
# A body of up to so many bytes for each allowed structural byte is not counted: counting takes as long as decoding, and
# even the densest body of this size is decoded in 50 ms.
UNCOUNTED_SIZE = 5
_ROOM = 32  # bytes allowed for each structural byte: a number, or the whitespace before it
_QUOTE = b'"'
_BACKSLASH = b"\\"
_LARGE_BODY_BYTES = 1024 * 1024  # bodies that are searched for oversized enum values
_MAX_ENUM_CHARS = 64 * 1024


def check_bounds(body: bytes, limits: Limits) -> None:
    """Raise if `body` has more structure or escapes than `limits` allow."""
    size = len(body)
    if size > limits.escapes and body.count(_BACKSLASH) > limits.escapes:
        raise InvalidValue(f"The request has more than {limits.escapes} escaped characters.")
    if size > UNCOUNTED_SIZE * limits.structural_bytes:
        _check_structure(body, limits)


def check_depth(raw: Any, limits: Limits) -> None:
    """Raise if decoded JSON nests deeper than `limits` allow."""
    containers = [raw] if isinstance(raw, dict | list) else []
    for _ in range(limits.json_depth):
        containers = [
            value
            for container in containers
            for value in (container.values() if type(container) is dict else container)
            if type(value) is dict or type(value) is list
        ]
        if not containers:
            return
    raise make_depth_error(limits)


def _check_structure(body: bytes, limits: Limits) -> None:
    """Raise once the structure or the text around it exceeds the limits."""
    structure, remaining = 0, _ROOM * limits.structural_bytes
    for outside in _iter_outside_strings(body, limits):
        structure += len(outside.translate(None, _NOT_STRUCTURE))
        remaining -= len(outside)
        if structure > limits.structural_bytes or remaining < 0:
            raise _make_structure_error(limits)


def _iter_outside_strings(body: bytes, limits: Limits) -> Iterator[bytes]:
    """Yield the bytes of each slice of `body` that are outside of strings."""
    inside = quotes = start = 0
    while start < len(body):
        if inside:
            start = _skip_string(body, start)
        piece = _trim_split_escape(body[start : start + _SLICE])
        start += len(piece)
        if _QUOTE in piece:
            if _BACKSLASH in piece:
                piece = _remove_escapes(piece)
            pieces = piece.split(_QUOTE)
            quotes += len(pieces) - 1
            if quotes > 2 * limits.structural_bytes + 2:  # every string but a lone one has a structural byte next to it
                raise _make_structure_error(limits)
            yield b"".join(pieces[inside::2])
            inside ^= (len(pieces) - 1) & 1
        elif not inside:
            yield piece


def _skip_string(body: bytes, start: int) -> int:
    """Return where to continue inside of a possibly long string: at the next quote, unless it is escaped."""
    quote = body.find(_QUOTE, start)
    if quote < 0:
        return len(body)
    return start if body[quote - 1 : quote] == _BACKSLASH else quote


def _remove_escapes(piece: bytes) -> bytes:
    """Remove escapes. If all quotes are escaped, return nothing: counting is cheaper than removing."""
    piece = piece.replace(b"\\\\", b"")
    return b"" if piece.count(b'\\"') == piece.count(_QUOTE) else piece.replace(b'\\"', b"")


def _trim_split_escape(piece: bytes) -> bytes:
    """Leave a trailing backslash to the next slice if it escapes the first character there."""
    escaping = piece.endswith(_BACKSLASH) and len(piece) > 1 and (len(piece) - len(piece.rstrip(_BACKSLASH))) & 1
    return piece[:-1] if escaping else piece


def _make_structure_error(limits: Limits) -> InvalidValue:
    allowed = limits.structural_bytes
    return InvalidValue(
        f"The request has more than {allowed} braces, brackets, commas and colons outside of strings, "
        f"or {allowed * _ROOM} bytes of numbers and blanks."
    )


def make_depth_error(limits: Limits) -> InvalidValue:
    return InvalidValue(f"The request is nested deeper than {limits.json_depth} levels.")


class EnumBounds:
    """The fields of one type that are enums wherever their name occurs.

    Oversized enum values are rejected early: msgspec copies them several times into its error message. Only large
    bodies are searched, before their types are checked.
    """

    def __init__(self, body_type: type[Struct]) -> None:
        self._enum_fields: set[str] = set()
        self._text_fields: set[str] = set()
        self._free_fields: set[str] = set()  # free-form JSON wherever the name occurs; not searched
        self._object_fields: set[str] = set()
        self._seen: set[type] = set()
        self._collect(types.type_info(body_type), "")
        self._enum_fields -= self._text_fields
        self._free_fields -= self._object_fields

    def check(self, raw: dict[str, Any], size: int) -> None:
        """Raise if `raw`, decoded from a body of `size` bytes, has an oversized enum value."""
        pending: list[tuple[str, Any]] = [*raw.items()] if size > _LARGE_BODY_BYTES else []
        while pending:
            name, value = pending.pop()
            if name in self._free_fields:
                continue
            if type(value) is dict:
                pending.extend(value.items())
            elif type(value) is list:
                pending.extend((name, entry) for entry in value)
            elif type(value) is str and len(value) > _MAX_ENUM_CHARS and name in self._enum_fields:
                raise InvalidValue(f"Invalid value for '{name}': it is {len(value)} characters long.", param=name)

    def _collect(self, kind: types.Type, name: str) -> None:
        match kind:
            case types.Metadata():
                self._collect(kind.type, name)
            case types.UnionType():
                for member in kind.types:
                    self._collect(member, name)
            case types.ListType():
                self._collect(kind.item_type, name)
            case types.DictType():
                self._collect(kind.value_type, name)
            case types.AnyType():
                self._free_fields.add(name)
            case types.LiteralType():
                self._enum_fields.add(name)
            case types.StrType():
                self._text_fields.add(name)
            case types.StructType():
                self._object_fields.add(name)
                if kind.cls not in self._seen:
                    self._seen.add(kind.cls)
                    self._collect_fields(kind)

    def _collect_fields(self, kind: types.StructType) -> None:
        if kind.tag_field is not None:
            self._enum_fields.add(kind.tag_field)
        for field in kind.fields:
            self._collect(field.type, field.encode_name)

"""Bounds on JSON: its structure and nesting depth before it is decoded, and the size of its enum values afterwards.

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

_EVERY_BYTE = bytes(range(256))
_NOT_STRUCTURE = _EVERY_BYTE.translate(None, b"{}[],:")
_NOT_BRACKETS_OR_QUOTES = _EVERY_BYTE.translate(None, b'{}[]"')
_NOT_BRACKETS = _EVERY_BYTE.translate(None, b"{}[]")
_TO_SQUARE = bytes.maketrans(b"{}", b"[]")
_SLICE = 256 * 1024
_SHORT_BYTES = 1024  # bytes; for longer bodies, counting both kinds of bracket costs more than the complete check
_ROOM = 32  # bytes allowed for each structural byte: a number, or the whitespace before it
_QUOTE = b'"'
_BACKSLASH = b"\\"
_LARGE_BODY_BYTES = 1024 * 1024  # bodies that are searched for oversized enum values
_MAX_ENUM_CHARS = 64 * 1024


def check_bounds(body: bytes, limits: Limits, outer_depth: int = 0) -> None:
    """Raise if `body` has more structure or escapes, or nests deeper, than `limits` allow.

    `outer_depth` is the number of levels around `body`.
    """
    size, depth = len(body), limits.json_depth - outer_depth
    small = size <= limits.structural_bytes  # too small to exceed the limit of structural bytes
    if small and size <= _SHORT_BYTES and body.count(b"{") + body.count(b"[") <= depth:
        return
    if size > limits.escapes and _BACKSLASH in body and body.count(_BACKSLASH) > limits.escapes:
        raise InvalidValue(f"The request has more than {limits.escapes} escaped characters.")
    if _depth_exceeds(_extract_brackets(body) if small else _extract_brackets_bounded(body, limits), depth):
        raise make_depth_error(limits)


def _extract_brackets(body: bytes) -> bytes:
    """Return the brackets outside of strings, all as square brackets.

    Adjacent quotes are removed first: they do not change whether the bytes around them are inside of a string.
    """
    if _BACKSLASH in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    characters = body.translate(_TO_SQUARE, _NOT_BRACKETS_OR_QUOTES).replace(b'""', b"")
    return b"".join(characters.split(_QUOTE)[::2])


def _extract_brackets_bounded(body: bytes, limits: Limits) -> bytes:
    """Like `_extract_brackets`, but raise once the structure or the text around it exceeds the limits."""
    structure, remaining = bytearray(), _ROOM * limits.structural_bytes
    for outside in _iter_outside_strings(body, limits):
        structure += outside.translate(_TO_SQUARE, _NOT_STRUCTURE)
        remaining -= len(outside)
        if len(structure) > limits.structural_bytes or remaining < 0:
            raise _make_structure_error(limits)
    return bytes(structure.translate(None, _NOT_BRACKETS))


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


def _depth_exceeds(brackets: bytes, depth: int) -> bool:
    """Remove pairs of brackets from the inside out, one level per pass.

    A run of more than `depth` opening brackets is detected at once.
    """
    too_many = b"[" * (depth + 1)
    for _ in range(depth):
        if too_many in brackets:
            return True
        if b"[]" not in brackets:
            return False
        brackets = brackets.replace(b"[]", b"")
    return b"[]" in brackets


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

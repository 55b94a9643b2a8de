"""Bounds on JSON: its structure before it is decoded, and its nesting depth afterwards.

Decoding cost grows with braces and escapes rather than with bytes: 20 MiB of small objects would block the event loop
for half a second. The first checks are a few passes of C code over slices of the bytes, so that a malicious body is
rejected at its first slice. Invalid JSON passes; the decoder reports what is wrong.
"""

from collections.abc import Iterator
from typing import Any

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


def check_bounds(body: bytes, limits: Limits) -> None:
    """Raise if `body` has more structure or escapes than `limits` allow."""
    size = len(body)
    # counting takes 0.8 ms for each MiB, ten times as long as searching: an image has no escapes
    if size > limits.escapes and _BACKSLASH in body and body.count(_BACKSLASH) > limits.escapes:
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

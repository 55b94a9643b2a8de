"""Bounds on JSON before it is decoded: how much structure it has and how deep it nests.

Decoding costs by the brace and by the escape, not by the byte: 20 MiB of small objects would block
the event loop for half a second. What stands here is a few passes of C over bytes, in slices, so that
a bomb is known by its first slice. Text that is not JSON is let through: the decoder says what is wrong.
"""

from collections.abc import Iterator

from antiphon.errors import InvalidValue
from antiphon.limits import Limits

_EVERY_BYTE = bytes(range(256))
_NOT_STRUCTURE = _EVERY_BYTE.translate(None, b"{}[],:")
_NOT_MARKS = _EVERY_BYTE.translate(None, b'{}[]"')
_NOT_BRACKETS = _EVERY_BYTE.translate(None, b"{}[]")
_AS_SQUARE = bytes.maketrans(b"{}", b"[]")
_SLICE = 256 * 1024
_BRIEF = 1024  # bytes; in more of them, to count two kinds of bracket costs more than to look at all
_ROOM = 32  # bytes for each of structure: a number, or the blanks before it
_QUOTE = b'"'
_BACKSLASH = b"\\"


def check_bounds(body: bytes, limits: Limits, above: int = 0) -> None:
    """Raise if `body` has more structure or escapes, or nests deeper, than `limits` allow. `above`: levels it is in."""
    size, depth = len(body), limits.json_depth - above
    small = size <= limits.structural_bytes  # it cannot have too much of anything
    if small and size <= _BRIEF and body.count(b"{") + body.count(b"[") <= depth:
        return
    if size > limits.escapes and _BACKSLASH in body and body.count(_BACKSLASH) > limits.escapes:
        raise InvalidValue(f"The request has more than {limits.escapes} escaped characters.")
    if _depth_exceeds(_brackets(body) if small else _counted_brackets(body, limits), depth):
        raise too_deep(limits)


def _brackets(body: bytes) -> bytes:
    """What is outside of strings, all of it square. Quotes side by side change nothing for what is around them."""
    if _BACKSLASH in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = body.translate(_AS_SQUARE, _NOT_MARKS).replace(b'""', b"")
    return b"".join(marks.split(_QUOTE)[::2])


def _counted_brackets(body: bytes, limits: Limits) -> bytes:
    """The same, where there may be too much around them."""
    structure, room = bytearray(), _ROOM * limits.structural_bytes
    for outside in _outside_strings(body, limits):
        structure += outside.translate(_AS_SQUARE, _NOT_STRUCTURE)
        room -= len(outside)
        if len(structure) > limits.structural_bytes or room < 0:
            raise _too_much(limits)
    return bytes(structure.translate(None, _NOT_BRACKETS))


def _outside_strings(body: bytes, limits: Limits) -> Iterator[bytes]:
    """What of each slice of `body` is not inside a string."""
    inside = quotes = start = 0
    while start < len(body):
        if inside:
            start = _skipped(body, start)
        piece = _whole_escapes(body[start : start + _SLICE])
        start += len(piece)
        if _QUOTE in piece:
            if _BACKSLASH in piece:
                piece = _without_escapes(piece)
            pieces = piece.split(_QUOTE)
            quotes += len(pieces) - 1
            if quotes > 2 * limits.structural_bytes + 2:  # every string but a lone one has a neighbour
                raise _too_much(limits)
            yield b"".join(pieces[inside::2])
            inside ^= (len(pieces) - 1) & 1
        elif not inside:
            yield piece


def _skipped(body: bytes, start: int) -> int:
    """Where to go on inside of a string that may be long: at the next quote, unless that is escaped."""
    quote = body.find(_QUOTE, start)
    if quote < 0:
        return len(body)
    return start if body[quote - 1 : quote] == _BACKSLASH else quote


def _without_escapes(piece: bytes) -> bytes:
    """To count is cheaper than to cut out: where no quote but escaped ones is, there is nothing to be found."""
    piece = piece.replace(b"\\\\", b"")
    return b"" if piece.count(b'\\"') == piece.count(_QUOTE) else piece.replace(b'\\"', b"")


def _whole_escapes(piece: bytes) -> bytes:
    """Give the last backslash to the next slice if it escapes what stands there."""
    escaping = piece.endswith(_BACKSLASH) and len(piece) > 1 and (len(piece) - len(piece.rstrip(_BACKSLASH))) & 1
    return piece[:-1] if escaping else piece


def _depth_exceeds(brackets: bytes, depth: int) -> bool:
    """Pair by pair from the inside. So many opening ones in a row are told at once."""
    too_many = b"[" * (depth + 1)
    for _ in range(depth):
        if too_many in brackets:
            return True
        if b"[]" not in brackets:
            return False
        brackets = brackets.replace(b"[]", b"")
    return b"[]" in brackets


def _too_much(limits: Limits) -> InvalidValue:
    allowed = limits.structural_bytes
    return InvalidValue(
        f"The request has more than {allowed} braces, brackets, commas and colons outside of strings, "
        f"or {allowed * _ROOM} bytes of numbers and blanks."
    )


def too_deep(limits: Limits) -> InvalidValue:
    return InvalidValue(f"The request is nested deeper than {limits.json_depth} levels.")

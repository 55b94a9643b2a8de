"""Requests that differ in nothing but their input and what they continue are of one kind: what was decoded and checked
of the first of them holds for all.

A client sends the same model, instructions, tools and settings with every turn, and of an agent's request they are the
most by far. So a request is first cut into its fields, as they came; if all the others are known, only those two are
read. What is not known, and what is wrong in any way, goes the way that every request can go (codec.py).

Where a kind is met often, a request need not even be cut: the bytes around its input are the same each time, so what is
between them is the input, if it is one JSON value.
"""

from collections import deque
from typing import Any, Final

import msgspec
from msgspec import DecodeError, Raw, Struct
from msgspec.structs import replace

from antiphon.errors import InvalidValue
from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import Decoded, Kind, decode_create, read_create
from antiphon.protocol.decoding.json_bounds import check_bounds
from antiphon.protocol.decoding.unknown_fields import MOST_NAMED
from antiphon.protocol.types.items import InputItem, InputText, Message
from antiphon.protocol.types.tools import McpTool

MOST: Final = 256
MOST_BYTES: Final = 256 * 1024  # of all kinds; what is made of them takes up to twenty times as much
MOST_BYTES_OF_ONE: Final = 64 * 1024
MOST_USUAL: Final = 8
OFTEN: Final = 8  # times that known kinds are met, before one more is known by the bytes around its input

Key = tuple[tuple[str, ...], bytes]  # the names of the fields, and what they hold

_INPUT: Final = "input"
_BEFORE: Final = "previous_response_id"
_NOTHING: Final = Raw(b"null")
_TEXT: Final = Raw(b"?")  # stands for a string that is not looked at; it is no JSON, so nothing else is like it
_APART: Final = b"\0"  # does not occur in JSON

_fields = msgspec.json.Decoder(dict[str, Raw])
_texts = msgspec.json.Decoder(str | None)
_inputs = msgspec.json.Decoder(str | list[Any] | None)
_given = msgspec.json.Decoder(str | list[Any])
_QUOTE: Final = b'"'
_HOLE: Final = b'"\\u0000input\\u0000"'  # to find out where an input is


class Usual(Struct, frozen=True):
    """A kind, and the bytes around its input."""

    before: bytes
    after: bytes
    kind: Kind
    start: int  # where the input begins
    end: int  # bytes behind it


class Kinds:
    """Those that a server has seen last."""

    def __init__(self) -> None:
        self._known: dict[Key, Kind] = {}
        self._bytes = 0
        self._usual: deque[Usual] = deque(maxlen=MOST_USUAL)
        self._again = 0  # times that one was met which is not among them

    def decode(self, body: bytes, limits: Limits) -> Decoded:
        """What `decode_create` gives. In the event loop's thread only."""
        size = len(body)
        for usual in self._usual:
            if not body.startswith(usual.before) or not body.endswith(usual.after):
                continue
            if size > limits.structural_bytes or size > limits.escapes:
                break  # there may be too much in its input; what is around that is within bounds
            given = body[usual.start : size - usual.end]
            try:
                if given[:1] != _QUOTE:  # a string nests nothing
                    check_bounds(given, limits, above=1)
                found = _given.decode(given)
            except (DecodeError, UnicodeDecodeError, RecursionError, InvalidValue):
                continue
            return _of_kind(usual.kind, None, found, size, limits)
        return self._cut(body, limits)

    def _cut(self, body: bytes, limits: Limits) -> Decoded:
        """By its fields."""
        check_bounds(body, limits)
        try:
            fields = _fields.decode(body)
            before = _texts.decode(fields[_BEFORE]) if _BEFORE in fields else None
            raw = fields.pop(_INPUT, _NOTHING)
            given = _inputs.decode(raw)
        except (DecodeError, UnicodeDecodeError, RecursionError):
            return decode_create(body, limits)  # it says what is wrong
        if before is not None:
            fields[_BEFORE] = _TEXT
        key = _key(fields)
        kind = self._known.get(key)
        if kind is None or (before is not None and not _is_name(before, limits)):
            return self._met(key, decode_create(body, limits))
        if before is None and given is not None:
            self._met_again(key, kind, body, raw)
        return _of_kind(kind, before, given, len(body), limits)

    def _met_again(self, key: Key, kind: Kind, body: bytes, given: Raw) -> None:
        self._again += 1
        if self._again % OFTEN == 0:
            usual = _around(key, kind, body, bytes(given))
            if usual is not None and usual not in self._usual:
                self._usual.append(usual)

    def _met(self, key: Key, decoded: Decoded) -> Decoded:
        """The first of its kind. What names an MCP server may hold its secrets: that is not kept."""
        size, request = _size(key), decoded.request
        if size > MOST_BYTES_OF_ONE or len(decoded.ignored) >= MOST_NAMED or McpTool in map(type, request.tools):
            return decoded
        while self._known and (len(self._known) >= MOST or self._bytes + size > MOST_BYTES):
            oldest = next(iter(self._known))
            del self._known[oldest]
            self._bytes -= _size(oldest)
        within = [name for name in decoded.ignored if name.startswith(f"{_INPUT}[")]
        kind = self._known[key] = _kind(decoded, within)
        self._bytes += size
        return Decoded(request, decoded.sent, [*kind.ignored, *within], kind)


def _kind(decoded: Decoded, within: list[str]) -> Kind:
    """`within`: what nobody knows of its input."""
    request = replace(decoded.request, input=[], previous_response_id=None)
    ignored = [name for name in decoded.ignored if name not in within]
    return Kind(request, decoded.sent | {_INPUT}, decoded.sent - {_INPUT}, ignored)


def _of_kind(kind: Kind, before: str | None, given: str | list[Any] | None, size: int, limits: Limits) -> Decoded:
    sent, ignored = kind.sent, kind.ignored
    if type(given) is str:
        items: str | list[InputItem] = [Message(role="user", content=[InputText(text=given)])]
    elif given is None:
        items, sent = [], kind.silent
    else:
        said = read_create({_INPUT: given}, size, limits)
        items = said.request.input
        ignored = [*ignored, *said.ignored] if said.ignored else ignored
    return Decoded(replace(kind.request, input=items, previous_response_id=before), sent, ignored, kind)


def _key(fields: dict[str, Raw]) -> Key:
    return tuple(fields), _APART.join(fields.values())


def _size(key: Key) -> int:
    """A client may make names as long as what they stand for."""
    return sum(map(len, key[0])) + len(key[1])


def _around(key: Key, kind: Kind, body: bytes, given: bytes) -> Usual | None:
    """Where the input is, there anything may be put without changing the rest; None if that is not found out."""
    if len(body) - len(given) > MOST_BYTES_OF_ONE or _HOLE in body:
        return None
    for start in (body.find(given), body.rfind(given)):
        before, after = body[:start], body[start + len(given) :]
        try:
            fields = _fields.decode(before + _HOLE + after)
        except DecodeError:
            continue
        if bytes(fields.pop(_INPUT, _NOTHING)) == _HOLE and _key(fields) == key:
            return Usual(before, after, kind, start, len(after))
    return None


def _is_name(before: str, limits: Limits) -> bool:
    return len(before) <= limits.id_length and "\0" not in before

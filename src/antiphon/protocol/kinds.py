"""Requests that differ in nothing but their input and what they continue are of one kind: what was decoded and checked
of the first of them holds for all.

A client sends the same model, instructions, tools and settings with every turn, and of an agent's request they are the
most by far. So a request is first cut into its fields, as they came; if all the others are known, only those two are
read. What is not known, and what is wrong in any way, goes the way that every request can go (codec.py).
"""

from typing import Any, Final

import msgspec
from msgspec import DecodeError, Raw
from msgspec.structs import replace

from antiphon.limits import Limits
from antiphon.protocol.codec import Decoded, Kind, decode_create, read_create
from antiphon.protocol.items import InputItem, InputText, Message
from antiphon.protocol.json_bounds import check_bounds
from antiphon.protocol.survey import MOST_NAMED
from antiphon.protocol.tools import McpTool

MOST: Final = 256
MOST_BYTES: Final = 256 * 1024  # of all kinds; what is made of them takes up to twenty times as much
MOST_BYTES_OF_ONE: Final = 64 * 1024

Key = tuple[tuple[str, ...], bytes]  # the names of the fields, and what they hold

_INPUT: Final = "input"
_BEFORE: Final = "previous_response_id"
_TEXT: Final = Raw(b"?")  # stands for a string that is not looked at; it is no JSON, so nothing else is like it
_APART: Final = b"\0"  # does not occur in JSON

_fields = msgspec.json.Decoder(dict[str, Raw])
_texts = msgspec.json.Decoder(str | None)
_inputs = msgspec.json.Decoder(str | list[Any] | None)


class Kinds:
    """Those that a server has seen last."""

    def __init__(self) -> None:
        self._known: dict[Key, Kind] = {}
        self._bytes = 0

    def decode(self, body: bytes, limits: Limits) -> Decoded:
        """What `decode_create` gives. In the event loop's thread only."""
        check_bounds(body, limits)
        try:
            fields = _fields.decode(body)
            before = _texts.decode(fields[_BEFORE]) if _BEFORE in fields else None
            given = _inputs.decode(fields.pop(_INPUT)) if _INPUT in fields else None
        except (DecodeError, UnicodeDecodeError, RecursionError):
            return decode_create(body, limits)  # it says what is wrong
        if before is not None:
            fields[_BEFORE] = _TEXT
        key = tuple(fields), _APART.join(fields.values())
        kind = self._known.get(key)
        if kind is None or (before is not None and not _is_name(before, limits)):
            return self._met(key, decode_create(body, limits))
        sent, ignored = kind.sent, kind.ignored
        if type(given) is str:
            items: str | list[InputItem] = [Message(role="user", content=[InputText(text=given)])]
        elif given is None:
            items, sent = [], kind.silent
        else:
            said = read_create({_INPUT: given}, len(body), limits)
            items = said.request.input
            ignored = [*ignored, *said.ignored] if said.ignored else ignored
        return Decoded(replace(kind.request, input=items, previous_response_id=before), sent, ignored, kind)

    def _met(self, key: Key, decoded: Decoded) -> Decoded:
        """The first of its kind. What names an MCP server may hold its secrets: that is not kept."""
        size, request = len(key[1]), decoded.request
        if size > MOST_BYTES_OF_ONE or len(decoded.ignored) >= MOST_NAMED or McpTool in map(type, request.tools):
            return decoded
        while self._known and (len(self._known) >= MOST or self._bytes + size > MOST_BYTES):
            oldest = next(iter(self._known))
            del self._known[oldest]
            self._bytes -= len(oldest[1])
        within = [name for name in decoded.ignored if name.startswith(f"{_INPUT}[")]
        kind = self._known[key] = _kind(decoded, within)
        self._bytes += size
        return Decoded(request, decoded.sent, [*kind.ignored, *within], kind)


def _kind(decoded: Decoded, within: list[str]) -> Kind:
    """`within`: what nobody knows of its input."""
    request = replace(decoded.request, input=[], previous_response_id=None)
    ignored = [name for name in decoded.ignored if name not in within]
    return Kind(request, decoded.sent | {_INPUT}, decoded.sent - {_INPUT}, ignored)


def _is_name(before: str, limits: Limits) -> bool:
    return len(before) <= limits.id_length and "\0" not in before

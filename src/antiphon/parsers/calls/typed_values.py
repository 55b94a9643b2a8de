"""A value that was written as plain text, as JSON: its type is what the schema says.

Strings pass while they arrive. Anything else is read when all of it is there: it is JSON, or Python that can only mean
one thing; what is neither is a string.
"""

import json
from functools import cache
from json.encoder import encode_basestring
from typing import Final

from antiphon.parsers.calls.parameter_schemas import ANY, TEXT, type_of
from antiphon.parsers.json.repair import JsonMend

_FIRSTS: Final = {
    "object": "{",
    "array": "[",
    "number": "-0123456789",
    "integer": "-0123456789",
    "boolean": "tfTF",
    "null": "nN",
}
_LONGEST_WORD: Final = 5  # of those that are no strings: false
_ENOUGH: Final = 8
_BOOLEANS: Final = {"true": "true", "false": "false"}
_PYTHON: Final = {"True": "true", "False": "false", "None": "null"}


def quoted(text: str) -> str:
    return encode_basestring(text)


def inner(text: str) -> str:
    """Of a JSON string: the text without the quotes."""
    return encode_basestring(text)[1:-1]


class Value:
    """Fed with text, it gives JSON. `lead`, `tail`: one of each around the text is the format's, not the value's."""

    def __init__(self, types: frozenset[str], lead: str = "", tail: str = "") -> None:
        self._types = types
        self._lead = lead
        self._tail = tail
        self._held = ""
        self._streams = False  # it is a string, and its quote is open
        self._kept: list[str] = []  # as long as it may be something else
        self._begin = ""  # of that, without the space before it

    @property
    def waits(self) -> bool:
        """For the rest of it."""
        return not self._streams

    def flow(self, text: str) -> str:
        """The same as `feed`, for the middle of a string; nothing: that has to be looked at."""
        if not self._streams or self._held or (self._tail and self._tail[0] in text):
            return ""
        return inner(text)

    def feed(self, text: str) -> str:
        text = self._held + text
        if self._lead:
            if len(text) < len(self._lead) and self._lead.startswith(text):
                self._held = text
                return ""
            text = text.removeprefix(self._lead)
            self._lead = ""
        keep = overlap(text, self._tail) if self._tail else 0
        self._held = text[len(text) - keep :]
        return self._take(text[: len(text) - keep])

    def finish(self, cut: bool = False) -> str:
        """`cut`: the output ended within the value, and maybe within its tail."""
        rest = "" if cut or self._held == self._tail else self._held
        if self._streams:
            return inner(rest) + '"'
        whole = "".join(self._kept) + rest
        return quoted(whole) if self._types == TEXT else as_json(whole, self._types, cut)

    def _take(self, text: str) -> str:
        if self._streams:
            return inner(text)
        if not text:
            return ""
        self._kept.append(text)
        if len(self._begin) < _ENOUGH:
            self._begin = (self._begin + text).lstrip()[:_ENOUGH]
        if not self._is_text():
            return ""
        self._streams = True
        kept = "".join(self._kept)
        self._kept.clear()
        return '"' + inner(kept)

    def _is_text(self) -> bool:
        """Whether it can only be a string by now. What it is in the end does not depend on how early that is told."""
        types, begin = self._types, self._begin
        if types == TEXT:
            return True
        if not begin or (types is not ANY and "string" not in types):
            return False
        if begin[0] not in _firsts(types):
            return True
        return begin[0].isalpha() and len(begin.rstrip()) > _LONGEST_WORD


def whole(text: str, types: frozenset[str], lead: str = "", tail: str = "") -> str:
    """What a Value says in all if it is fed this."""
    text = text.removeprefix(lead).removesuffix(tail)
    return quoted(text) if types == TEXT else as_json(text, types)


def as_json(text: str, types: frozenset[str], cut: bool = False) -> str:
    bare = text.strip()
    if not bare:
        return "null" if "null" in types and "string" not in types else quoted(text)
    bare = _PYTHON.get(bare, bare)
    if "boolean" in types and "string" not in types and len(bare) <= _LONGEST_WORD:
        bare = _BOOLEANS.get(bare.lower(), bare)
    parsed, value = _parsed(bare)
    if types is ANY or "string" in types:
        return bare if parsed and _fits(value, types) else quoted(text)
    if parsed:
        return bare
    return _mended(bare, cut) or quoted(text)


def _fits(value: object, types: frozenset[str]) -> bool:
    if types is ANY:
        return True
    found = type_of(value)
    if found == "number" and "integer" in types and isinstance(value, int):
        return True
    return found in types and found != "string"


def _parsed(text: str) -> tuple[bool, object]:
    try:
        value, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return False, None
    return end == len(text), value


def _mended(text: str, cut: bool) -> str:
    """Lists and objects in Python's words; nothing if it is no such thing."""
    if text[0] not in "{[(":
        return ""
    mend = JsonMend()
    said, end = mend.feed(text)
    if not mend.done and not mend.broken and cut:
        said += mend.finish()
    whole = mend.done and end == len(text)
    return said if whole and _parsed(said)[0] else ""


@cache
def _firsts(types: frozenset[str]) -> frozenset[str]:
    """With what a value that is no string begins."""
    return frozenset("".join(_FIRSTS.get(name, "") for name in types or _FIRSTS) + ("" if types else '"'))


def overlap(text: str, tail: str) -> int:
    """How much of the tail the text ends with."""
    for size in range(min(len(tail), len(text)), 0, -1):
        if text.endswith(tail[:size]):
            return size
    return 0


def _no_constant(name: str) -> None:
    raise ValueError(name)


_DECODER: Final = json.JSONDecoder(parse_constant=_no_constant)


def json_object(text: str) -> str:
    """The text, if it is a JSON object and nothing else; else nothing."""
    bare = text.strip()
    return bare if bare[:1] == "{" and _parsed(bare)[0] else ""

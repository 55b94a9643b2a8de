"""Reads one string property of a JSON object while the object is still arriving, cut anywhere.

    HEAD ──{"name": "──▶ INSIDE     the value is streamed; what follows it is ignored
      ├──any other object──▶ OBJECT    it is read once it is complete
      └──anything else──▶ VERBATIM

A string alone counts as the property. Input that is not such an object is delivered unchanged, so that no tool input of
a model is lost. For tools that take plain text (`is_text`), everything that does not begin as such an object is text.
"""

import json
import re
from enum import Enum, auto
from typing import Final

from antiphon.parsers.json_repair import WHITESPACE, JsonRepair, JsonStringDecoder, JsonStringRepair, skip_whitespace

REPLACEMENT_CHARACTER = "\ufffd"
MAX_HEAD_LENGTH: Final = 256  # characters in which the property begins, if it is streamed


class PropertyState(Enum):
    HEAD = auto()
    INSIDE = auto()
    OBJECT = auto()
    VERBATIM = auto()


class StringPropertyReader:
    """Decodes the value of the property `name` incrementally."""

    def __init__(self, name: str, is_text: bool = False) -> None:
        self._name = name
        self._is_text = is_text
        optional = "" if is_text else "?"
        self._head = re.compile(rf'(?:\{{[ \t\n\r]*"{name}"[ \t\n\r]*:[ \t\n\r]*){optional}"')
        self._state = PropertyState.HEAD
        self._held: list[str] = []  # complete input until the property is found
        self._string = JsonStringRepair()
        self._string.open('"', [])
        self._decoder = JsonStringDecoder()

    def feed(self, text: str) -> str:
        """Return the text that this piece adds to the property."""
        if self._state is PropertyState.INSIDE:
            is_plain = self._string.can_pass(text) and not self._decoder.is_waiting  # the most frequent case
            return text if is_plain else self._read_value(text, 0)
        if self._state is PropertyState.VERBATIM:
            return text
        self._held.append(text)
        return self._read_head() if self._state is PropertyState.HEAD and text.strip(WHITESPACE) else ""

    def finish(self) -> str:
        """Return the remaining text: a complete object without the property as it is, a truncated one not at all."""
        if raw := "".join(self._held).lstrip(WHITESPACE):
            return "".join(self._held) if self._is_text else self._read_object(raw)
        return REPLACEMENT_CHARACTER if self._decoder.is_waiting else ""

    def _read_head(self) -> str:
        raw = "".join(self._held)
        begin = skip_whitespace(raw, 0)
        if (found := self._head.match(raw, begin)) is None and self._may_begin(raw[begin:]):
            if len(raw) - begin > MAX_HEAD_LENGTH:
                self._state = PropertyState.OBJECT
            return ""
        self._held.clear()
        self._state = PropertyState.VERBATIM if found is None else PropertyState.INSIDE
        return raw if found is None else self._read_value(raw, found.end())

    def _may_begin(self, raw: str) -> bool:
        """Return whether the property may still follow."""
        return f'{{"{self._name}":"'.startswith("".join(raw.split())) if self._is_text else raw[0] == "{"

    def _read_value(self, text: str, position: int) -> str:
        """Decode the string. Escapes that are not valid JSON are passed unchanged."""
        inside: list[str] = []
        while position < len(text) and self._string.quote:
            position = self._string.feed(text, position, inside)
            if not self._string.quote:
                inside.pop()  # the closing quote
        return self._decoder.feed("".join(inside))

    def _read_object(self, raw: str) -> str:
        repair = JsonRepair()
        output, _ = repair.feed(raw)
        is_cut = not repair.is_finished
        value = json.loads(output + repair.finish()).get(self._name)
        if isinstance(value, str):
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return "" if is_cut else raw

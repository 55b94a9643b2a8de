"""Reads one string property of a JSON object while the object is still arriving, cut anywhere.

    START ─{─▶ KEY ─(name)─▶ COLON ─:─▶ VALUE ─"─▶ INSIDE ─"─▶ AFTER
      │ "       ▲ └─}─▶ END              │ (another property, or not a string)
      ▼         └────────────────────────┘
    INSIDE      any unexpected character ─▶ VERBATIM

A string alone counts as the property. Input that is not such an object is delivered unchanged, so that no tool input of
a model is lost.
"""

import json
from enum import Enum, auto

from antiphon.parsers.json_repair import JsonRepair, JsonStringDecoder, JsonStringRepair, skip_whitespace

REPLACEMENT_CHARACTER = "\ufffd"


class PropertyState(Enum):
    START = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    INSIDE = auto()
    AFTER = auto()
    END = auto()
    VERBATIM = auto()


class StringPropertyReader:
    """Decodes the value of the property `name` incrementally."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._state = PropertyState.START
        self._raw: list[str] = []  # complete input until the property is found
        self._out: list[str] = []
        self._member: JsonRepair | None = None  # reads a name, or the value of another property
        self._member_name: list[str] = []
        self._string = JsonStringRepair()
        self._string.quote = '"'
        self._decoder = JsonStringDecoder()

    def feed(self, text: str) -> str:
        """Return the text that this piece adds to the property."""
        if self._state is PropertyState.VERBATIM:
            return text
        if self._state is not PropertyState.INSIDE:
            self._raw.append(text)
        elif self._string.can_pass(text) and not self._decoder.is_waiting:
            return text  # the most frequent case
        position = 0
        while position < len(text):
            position = self._step(text, position)
        return self._take_output()

    def finish(self) -> str:
        """Return the remaining text: a complete object without the property is delivered unchanged, a truncated one
        adds none.
        """
        if self._state is PropertyState.END:
            self._out = self._raw
        elif self._decoder.is_waiting:
            self._out = [REPLACEMENT_CHARACTER]
        return self._take_output()

    def _take_output(self) -> str:
        if self._state is PropertyState.VERBATIM:
            self._out, self._raw = self._raw, []
        text = "".join(self._out)
        self._out = []
        return text

    def _step(self, text: str, position: int) -> int:
        """Process the text of one state and return the position where the next state begins."""
        match self._state:
            case PropertyState.INSIDE:
                return self._read_value(text, position)
            case PropertyState.AFTER | PropertyState.END | PropertyState.VERBATIM:
                return len(text)
        if self._member is not None:
            return self._read_member(self._member, text, position)
        position = skip_whitespace(text, position)
        return self._read_punctuation(text[position], position) if position < len(text) else position

    def _read_punctuation(self, char: str, position: int) -> int:
        """Change the state by the punctuation character."""
        match self._state, char:
            case PropertyState.START, "{":
                self._state = PropertyState.KEY
            case PropertyState.START, '"':
                self._state = PropertyState.INSIDE
            case PropertyState.KEY, ",":
                pass
            case PropertyState.KEY, "}":
                self._state = PropertyState.END
            case PropertyState.KEY, '"':
                self._member, self._member_name = JsonRepair(), []
                return position
            case PropertyState.COLON, ":":
                self._state = PropertyState.VALUE
            case PropertyState.VALUE, '"' if json.loads("".join(self._member_name)) == self._name:
                self._state, self._raw = PropertyState.INSIDE, []
            case PropertyState.VALUE, _:
                self._member = JsonRepair()
                return position
            case _:
                self._state = PropertyState.VERBATIM
                return position
        return position + 1

    def _read_member(self, reader: JsonRepair, text: str, position: int) -> int:
        """Read a name, or skip a value."""
        piece, position = reader.feed(text, position)
        is_name = self._state is PropertyState.KEY
        if is_name:
            self._member_name.append(piece)
        if reader.is_broken:
            self._state = PropertyState.VERBATIM
        elif reader.is_done:
            self._state = PropertyState.COLON if is_name else PropertyState.KEY
            self._member = None
        return position

    def _read_value(self, text: str, position: int) -> int:
        """Decode the string. Escapes that are not valid JSON are passed unchanged."""
        inside: list[str] = []
        while position < len(text) and self._string.quote:
            position = self._string.feed(text, position, inside)
        if not self._string.quote:
            inside.pop()  # the closing quote
            self._state = PropertyState.AFTER
        self._out.append(self._decoder.feed("".join(inside)))
        return len(text)

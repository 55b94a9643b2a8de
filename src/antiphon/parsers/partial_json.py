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
from itertools import takewhile

from antiphon.parsers.json_repair import JsonRepair, skip_whitespace

HEX = frozenset("0123456789abcdefABCDEF")
ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
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
        self._escape = ""  # incomplete escape sequence
        self._high_surrogate = 0  # pending first half of a surrogate pair

    def feed(self, text: str) -> str:
        """Return the text that this piece adds to the property."""
        if self._state is PropertyState.VERBATIM:
            return text
        if self._state is not PropertyState.INSIDE:
            self._raw.append(text)
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
        elif self._high_surrogate:
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
        """Decode the string. Each quote and each backslash is searched for once, so the time stays linear."""
        quote = text.find('"', position)
        while position < len(text):
            if self._escape:
                position = self._unescape(text, position)
                continue
            if -1 < quote < position:
                quote = text.find('"', position)
            end = quote if quote >= 0 else len(text)
            slash = text.find("\\", position, end)
            if slash < 0:
                self._emit(text[position:end])
                self._state = PropertyState.AFTER if end == quote else PropertyState.INSIDE
                return len(text)
            if slash > position:
                self._emit(text[position:slash])
            unescaped = ESCAPES.get(text[slash + 1 : slash + 2])
            if unescaped is None or self._high_surrogate:
                self._escape = "\\"
                position = slash + 1
            else:
                self._out.append(unescaped)
                position = slash + 2
        return position

    def _unescape(self, text: str, position: int) -> int:
        """Read the available part of an escape sequence."""
        if self._escape == "\\":
            char = text[position]
            self._escape = "\\u" if char == "u" else ""
            if char != "u":
                self._emit(ESCAPES.get(char, "\\" + char))
            return position + 1
        digits = text[position : position + 6 - len(self._escape)]
        if not HEX.issuperset(digits):
            digits = "".join(takewhile(HEX.__contains__, digits))
            self._emit(self._escape + digits)  # not valid JSON; passed unchanged
            self._escape = ""
        elif len(self._escape + digits) == 6:
            self._emit_code_point(int(self._escape[2:] + digits, 16))
            self._escape = ""
        else:
            self._escape += digits
        return position + len(digits)

    def _emit_code_point(self, code: int) -> None:
        if self._high_surrogate and 0xDC00 <= code < 0xE000:
            code = 0x10000 + ((self._high_surrogate - 0xD800) << 10) + (code - 0xDC00)
            self._high_surrogate = 0
        if 0xD800 <= code < 0xDC00:
            if self._high_surrogate:
                self._out.append(REPLACEMENT_CHARACTER)
            self._high_surrogate = code
        else:
            self._emit(REPLACEMENT_CHARACTER if 0xDC00 <= code < 0xE000 else chr(code))

    def _emit(self, text: str) -> None:
        """Emit text; a high surrogate that no low surrogate follows becomes the replacement character."""
        if text:
            if self._high_surrogate:
                self._out.append(REPLACEMENT_CHARACTER)
                self._high_surrogate = 0
            self._out.append(text)

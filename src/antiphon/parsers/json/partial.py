"""Reads one string property of a JSON object while the object is still arriving, cut anywhere.

    START ─{─▶ KEY ─"─▶ NAME ─"─▶ COLON ─:─▶ VALUE ─"─▶ INSIDE ─"─▶ AFTER
      │ "       ▲ └─}─▶ END                   │ (another property, or no string)
      ▼         └──────────────────────────── SKIP
    INSIDE      anything that does not fit ─▶ VERBATIM

A string alone counts as the property. What is no such object is delivered as it was said,
so that nothing a model meant for a tool is lost.
"""

import json
from enum import Enum, auto
from itertools import takewhile

WHITE = " \t\n\r"
HEX = frozenset("0123456789abcdefABCDEF")
ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
REPLACEMENT = "\ufffd"


class State(Enum):
    START = auto()
    KEY = auto()
    NAME = auto()
    COLON = auto()
    VALUE = auto()
    SKIP = auto()
    INSIDE = auto()
    AFTER = auto()
    END = auto()
    VERBATIM = auto()


class StringProperty:
    def __init__(self, name: str) -> None:
        self._name = name
        self._state = State.START
        self._raw: list[str] = []  # everything, until the property is found
        self._out: list[str] = []
        self._key: list[str] = []
        self._depth = 0  # of the value that is skipped
        self._quoted = self._slashed = False  # within a string of the skipped value; after a backslash
        self._escape = ""  # an escape sequence that is not complete
        self._high = 0  # the first half of a surrogate pair

    def feed(self, text: str) -> str:
        """What this piece adds to the property."""
        if self._state is State.VERBATIM:
            return text
        if self._state is not State.INSIDE:
            self._raw.append(text)
        position = 0
        while position < len(text):
            position = self._step(text, position)
        return self._taken()

    def finish(self) -> str:
        """A whole object without the property is delivered as it is; a cut one has no more to give."""
        if self._state is State.END:
            self._out = self._raw
        elif self._high:
            self._out = [REPLACEMENT]
        return self._taken()

    def _taken(self) -> str:
        taken = "".join(self._out)
        self._out = []
        return taken

    def _step(self, text: str, position: int) -> int:
        """One state's share of the text; where the next begins."""
        match self._state:
            case State.INSIDE:
                return self._inside(text, position)
            case State.NAME:
                return self._name_of(text, position)
            case State.SKIP:
                return self._skip(text, position)
            case State.AFTER | State.END:
                return len(text)
            case State.VERBATIM:
                self._out, self._raw = self._raw, []
                return len(text)
        while position < len(text) and text[position] in WHITE:
            position += 1
        return self._between(text[position], position) if position < len(text) else position

    def _between(self, char: str, position: int) -> int:
        """Punctuation decides."""
        match self._state, char:
            case State.START, "{":
                self._state = State.KEY
            case State.START, '"':
                self._state = State.INSIDE
            case State.KEY, ",":
                pass
            case State.KEY, "}":
                self._state = State.END
            case State.KEY, '"':
                self._state, self._key = State.NAME, []
            case State.COLON, ":":
                self._state = State.VALUE
            case State.VALUE, '"' if self._is_wanted():
                self._state, self._raw = State.INSIDE, []
            case State.VALUE, _:
                self._state = State.SKIP
                return position
            case _:
                self._state = State.VERBATIM
                return position
        return position + 1

    def _is_wanted(self) -> bool:
        raw = "".join(self._key)
        try:
            return bool(json.loads(f'"{raw}"', strict=False) == self._name)
        except ValueError:
            return raw == self._name

    def _name_of(self, text: str, position: int) -> int:
        end = self._end_of_string(text, position)
        self._key.append(text[position:end])
        if end == len(text):
            return end
        self._state = State.COLON
        return end + 1

    def _end_of_string(self, text: str, position: int) -> int:
        """Where the closing quote is, or the end of the text."""
        while position < len(text):
            char = text[position]
            if char == '"' and not self._slashed:
                return position
            self._slashed = char == "\\" and not self._slashed
            position += 1
        return position

    def _skip(self, text: str, position: int) -> int:
        """Over a value that is not wanted, to the comma or brace after it."""
        while position < len(text):
            if self._quoted:
                position = self._end_of_string(text, position)
                self._quoted = position == len(text)
            elif (char := text[position]) == '"':
                self._quoted = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]" and self._depth:
                self._depth -= 1
            elif char in ",}" and not self._depth:
                self._state = State.KEY
                return position
            position += 1
        return len(text)

    def _inside(self, text: str, position: int) -> int:
        """Each quote and each backslash is looked for once, so that the time stays linear."""
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
                self._say(text[position:end])
                self._state = State.AFTER if end == quote else State.INSIDE
                return len(text)
            if slash > position:
                self._say(text[position:slash])
            short = ESCAPES.get(text[slash + 1 : slash + 2])
            if short is None or self._high:
                self._escape = "\\"
                position = slash + 1
            else:
                self._out.append(short)
                position = slash + 2
        return position

    def _unescape(self, text: str, position: int) -> int:
        """As much of an escape as there is."""
        if self._escape == "\\":
            char = text[position]
            self._escape = "\\u" if char == "u" else ""
            if char != "u":
                self._say(ESCAPES.get(char, "\\" + char))
            return position + 1
        digits = text[position : position + 6 - len(self._escape)]
        if not HEX.issuperset(digits):
            digits = "".join(takewhile(HEX.__contains__, digits))
            self._say(self._escape + digits)  # not JSON; said as it stands
            self._escape = ""
        elif len(self._escape + digits) == 6:
            self._code_point(int(self._escape[2:] + digits, 16))
            self._escape = ""
        else:
            self._escape += digits
        return position + len(digits)

    def _code_point(self, code: int) -> None:
        if self._high and 0xDC00 <= code < 0xE000:
            code = 0x10000 + ((self._high - 0xD800) << 10) + (code - 0xDC00)
            self._high = 0
        if 0xD800 <= code < 0xDC00:
            if self._high:
                self._out.append(REPLACEMENT)
            self._high = code
        else:
            self._say(REPLACEMENT if 0xDC00 <= code < 0xE000 else chr(code))

    def _say(self, text: str) -> None:
        """Half a surrogate pair that is not followed by the other half is a character that was lost."""
        if text:
            if self._high:
                self._out.append(REPLACEMENT)
                self._high = 0
            self._out.append(text)

"""Repairs a JSON string while it arrives, cut anywhere: valid text passes unchanged, invalid text is escaped.

Repairs: single quotes, line breaks and other control characters, and backslashes that escape nothing (RFC 8259 §7). An
escape is emitted once it is complete.
"""

import json
import re
from typing import Final

_SIMPLE_ESCAPES: Final = frozenset('"\\/bfnrt')
_HEX: Final = frozenset("0123456789abcdefABCDEF")
_CONTROLS: Final = {chr(code): json.dumps(chr(code))[1:-1] for code in range(32)}
# By quote: content that is valid as it is, except for control characters. Single quotes may be followed by \", which is
# excluded because double quotes are escaped in the whole stretch.
_VALID_CONTENT: Final = {
    '"': re.compile(r'(?:[^"\\]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+'),
    "'": re.compile(r"(?:[^'\\]++|\\(?:[\\/bfnrt]|u[0-9a-fA-F]{4}))*+"),
}
_LENIENT_DECODER: Final = json.JSONDecoder(strict=False)


class JsonStringRepair:
    """Repairs one string incrementally. `repairs` counts repaired escapes, because they cost time."""

    def __init__(self) -> None:
        self._escape = ""  # incomplete escape
        self.quote = ""  # empty: no string is being read
        self.repairs = 0

    def open(self, quote: str, out: list[str]) -> None:
        self.quote = quote
        out.append('"')

    @property
    def is_plain(self) -> bool:
        """Whether a double-quoted string is being read and no escape is pending."""
        return self.quote == '"' and not self._escape

    def can_pass(self, text: str) -> bool:
        """Return whether the text lies within the string and needs no change, the most frequent case."""
        return (
            self.quote == '"'
            and not self._escape
            and '"' not in text
            and "\\" not in text
            and (text.isprintable() or not any(map(_CONTROLS.__contains__, text)))
        )

    def feed(self, text: str, at: int, out: list[str]) -> int:
        """Read on and return the next position: after the string if it has ended, otherwise after some of it."""
        if self._escape:
            return self._continue_escape(text, at, out)
        end = match_end(_VALID_CONTENT[self.quote], text, at)
        if end > at:
            self._emit(text[at:end], out)
        if end == len(text):
            return end
        if text[end] == self.quote:
            self.close(out)
        else:
            self._escape = "\\"
        return end + 1

    def close(self, out: list[str]) -> None:
        """Close the string; an incomplete escape at the end of the output is dropped."""
        self._escape = self.quote = ""
        out.append('"')

    def _emit(self, part: str, out: list[str]) -> None:
        if not part.isprintable():
            part = _escape_controls(part)
        out.append(part.replace('"', '\\"') if self.quote == "'" else part)

    def _continue_escape(self, text: str, at: int, out: list[str]) -> int:
        char, escape = text[at], self._escape
        if escape == "\\":
            return self._read_escape_kind(char, at, out)
        if char not in _HEX:
            self._escape = ""
            self.repairs += 1
            out.append("\\" + escape)
            return at
        self._escape += char
        if len(self._escape) == 6:
            out.append(self._escape)
            self._escape = ""
        return at + 1

    def _read_escape_kind(self, char: str, at: int, out: list[str]) -> int:
        self._escape = ""
        if char in _SIMPLE_ESCAPES:
            out.append("\\" + char)
        elif char == "u":
            self._escape = "\\u"
        else:
            self.repairs += 1
            out.append("'" if char == "'" else "\\\\")  # any other backslash is literal
            return at + (char == "'")
        return at + 1


def _escape_controls(text: str) -> str:
    for control, escaped in _CONTROLS.items():
        if control in text:
            text = text.replace(control, escaped)
    return text


def match_end(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Return the end of the match at this position."""
    found = pattern.match(text, at)
    return at if found is None else found.end()


class JsonStringDecoder:
    """Decodes the content of a valid JSON string, fed in pieces that split no escape."""

    def __init__(self) -> None:
        self._high_surrogate = ""  # escape that may be the first half of a surrogate pair

    @property
    def is_waiting(self) -> bool:
        """Whether the second half of a surrogate pair is pending."""
        return bool(self._high_surrogate)

    def feed(self, inside: str) -> str:
        if not self._high_surrogate and "\\" not in inside:
            return inside
        inside = self._high_surrogate + inside
        at = len(inside) - 6
        self._high_surrogate = inside[at:] if at >= 0 and _is_high_surrogate(inside, at) else ""
        text = str(_LENIENT_DECODER.decode(f'"{inside[:at] if self._high_surrogate else inside}"'))
        return text if text.isprintable() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _is_high_surrogate(inside: str, at: int) -> bool:
    if inside[at : at + 2] != "\\u" or inside[at + 2] not in "dD" or inside[at + 3] not in "89abAB":
        return False
    before = inside[:at]
    return (len(before) - len(before.rstrip("\\"))) % 2 == 0

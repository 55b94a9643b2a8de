"""A JSON string while it arrives, cut anywhere: what is valid passes as it is, what is not is escaped.

Mended: 'single' quotes, line breaks and other control characters, backslashes that escape nothing. An escape is said
when it is whole.
"""

import json
from typing import Final

_ESCAPED: Final = frozenset('"\\/bfnrt')
_ASKED: Final = _ESCAPED | {"u"}
_HEX: Final = frozenset("0123456789abcdefABCDEF")
_CONTROLS: Final = {chr(code): json.dumps(chr(code))[1:-1] for code in range(32)}
_SHORT: Final = 32  # characters up to which it does not pay to ask the C parser
_STRETCH: Final = 16_384  # that it is asked about at once
_USUAL: Final = 32  # escapes in single quotes that take as long as one that is mended
_LAX: Final = json.JSONDecoder(strict=False)


class JsonString:
    """`mends` counts the escapes that were mended: they cost time."""

    def __init__(self) -> None:
        self._escape = ""  # one that is not whole
        self.quote = ""  # nothing: no string is being read
        self.mends = 0

    def open(self, quote: str, out: list[str]) -> None:
        self.quote = quote
        out.append('"')

    @property
    def is_plain(self) -> bool:
        """Whether a string in double quotes is being read, and no escape."""
        return self.quote == '"' and not self._escape

    def passes(self, text: str) -> bool:
        """Whether it is the middle of the string, as most of most arguments is."""
        return (
            self.quote == '"'
            and not self._escape
            and '"' not in text
            and "\\" not in text
            and (text.isprintable() or not any(map(_CONTROLS.__contains__, text)))
        )

    def feed(self, text: str, at: int, out: list[str]) -> int:
        """Where to go on: after the string, if it is over, or after some of it."""
        if self._escape:
            return self._go_on_escape(text, at, out)
        last = at + _STRETCH
        end = text.find(self.quote, at, last)
        slash = text.find("\\", at, last if end < 0 else end)
        if slash >= 0:
            return self._go_on_slash(text, at, slash, out)
        if end < 0:
            self._pass(text[at:last], out)
            return min(last, len(text))
        if end > at:
            self._pass(text[at:end], out)
        self.close(out)
        return end + 1

    def close(self, out: list[str]) -> None:
        """Half an escape is lost: the output ended in it."""
        self._escape = self.quote = ""
        out.append('"')

    def _pass(self, part: str, out: list[str]) -> None:
        if not part.isprintable():
            part = _without_controls(part)
        out.append(part.replace('"', '\\"') if self.quote == "'" else part)

    def _go_on_slash(self, text: str, at: int, slash: int, out: list[str]) -> int:
        if len(text) - slash > _SHORT and self.quote == '"' and text[slash + 1] in _ASKED:
            plain = _valid(text, at)
            if plain > at:
                self._pass(text[at:plain], out)
                return plain
        if slash > at:
            self._pass(text[at:slash], out)
        return self._escapes(text, slash, out)

    def _escapes(self, text: str, at: int, out: list[str]) -> int:
        """One after the other, as long as they are usual ones."""
        begin, last = at, min(at + _STRETCH, len(text)) - 1
        while at < last and text[at] == "\\" and text[at + 1] in _ESCAPED:
            at += 2
        if at > begin:
            self.mends += (at - begin) // (2 * _USUAL) if self.quote == "'" else 0
            out.append(text[begin:at])
        elif at <= last:
            self._escape = "\\"
            at += 1
        return at

    def _go_on_escape(self, text: str, at: int, out: list[str]) -> int:
        char, escape = text[at], self._escape
        if escape == "\\":
            return self._after_slash(char, at, out)
        if char not in _HEX:
            self._escape = ""
            self.mends += 1
            out.append("\\" + escape)
            return at
        self._escape += char
        if len(self._escape) == 6:
            out.append(self._escape)
            self._escape = ""
        return at + 1

    def _after_slash(self, char: str, at: int, out: list[str]) -> int:
        self._escape = ""
        if char in _ESCAPED:
            out.append("\\" + char)
        elif char == "u":
            self._escape = "\\u"
        else:
            self.mends += 1
            out.append("'" if char == "'" else "\\\\")  # any other backslash was meant as one
            return at + (char == "'")
        return at + 1


def _without_controls(text: str) -> str:
    for control, escaped in _CONTROLS.items():
        if control in text:
            text = text.replace(control, escaped)
    return text


def _valid(text: str, at: int) -> int:
    """How far it is the inside of a string, with whole and usual escapes; control characters are no matter here."""
    part = text[at : at + _STRETCH]
    slash = part.rfind("\\", -6)  # it may escape what is not here yet
    if slash >= 0 and (slash + 1 - len(part[: slash + 1].rstrip("\\"))) % 2:
        part = part[:slash]
    quoted = f'"{part}"'
    try:
        return at + _LAX.raw_decode(quoted)[1] - 2
    except json.JSONDecodeError as error:  # its place is the backslash, or what follows it
        place = error.pos if quoted[error.pos] == "\\" else quoted.rfind("\\", 0, error.pos)
        return at + place - 1


class Unquoted:
    """The text that a valid JSON string stands for, fed in pieces that cut no escape."""

    def __init__(self) -> None:
        self._high = ""  # an escape that may be the first half of a character

    @property
    def waits(self) -> bool:
        """For the other half."""
        return bool(self._high)

    def feed(self, inside: str) -> str:
        if not self._high and "\\" not in inside:
            return inside
        inside = self._high + inside
        at = len(inside) - 6
        self._high = inside[at:] if at >= 0 and _is_high(inside, at) else ""
        text = str(_LAX.decode(f'"{inside[:at] if self._high else inside}"'))
        return text if text.isprintable() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _is_high(inside: str, at: int) -> bool:
    if inside[at : at + 2] != "\\u" or inside[at + 2] not in "dD" or inside[at + 3] not in "89abAB":
        return False
    before = inside[:at]
    return (len(before) - len(before.rstrip("\\"))) % 2 == 0

"""Convert Python strings, constants and numbers to JSON, with bulk operations that run in C.

Escapes with a character code are decoded one by one, up to a limit per answer. Further ones, and escapes that Python
does not define, are kept literally.
"""

import json
from sys import maxunicode
from typing import Final

from antiphon.parsers.calls.typed_values import escape_json, to_json_string

MAX_CODE_ESCAPES: Final = 128  # escapes such as \\x41, per answer
_WINDOW: Final = 256
_MAX_ESCAPE_LENGTH: Final = 10  # \\UXXXXXXXX
_ESCAPE_LENGTHS: Final = {"x": 4, "u": 6, "U": 10}
_HEX: Final = frozenset("0123456789abcdefABCDEF")
_FIRST_MASK: Final = 0xF0000  # private-use characters replace the escapes while the other text is escaped for JSON
_MASKS: Final = [  # the double backslash must come first: the character after it begins no escape
    (escape, chr(_FIRST_MASK + number), escaped)
    for number, (escape, escaped) in enumerate(
        {
            "\\\\": "\\\\",
            "\\n": "\\n",
            "\\t": "\\t",
            "\\r": "\\r",
            "\\b": "\\b",
            "\\f": "\\f",
            '\\"': '\\"',
            "\\'": "'",
            "\\u": "\\u",
        }.items()
    )
]
_CODE_MASK: Final = _MASKS[-1][1]
_PLAIN: Final = {"\\a": "\x07", "\\v": "\x0b", "\\0": "\x00", "\\\n": ""}


def find_string_end(text: str, at: int, quote: str) -> int:
    """Return the position of the closing quote, or -1. The text must not begin within an escape."""
    position = text.find(quote, at)
    if text.find("\\", at, position if position >= 0 else len(text)) < 0:
        return position
    size = _WINDOW
    while True:  # growing windows keep the time linear in the length of the string
        hidden = text[at : at + size].replace("\\\\", "\0\0").replace("\\" + quote[0], "\0\0")
        if (found := hidden.find(quote)) >= 0:
            return at + found
        if at + size >= len(text):
            return -1
        size *= 4


def find_incomplete(text: str, at: int, quote: str) -> int:
    """Return the position of an incomplete escape or quote at the end of an open string; the end if there is none."""
    end = len(text)
    slash = text.rfind("\\", max(at, end - _MAX_ESCAPE_LENGTH))
    if slash >= 0:
        run = text[at : slash + 1]
        if (len(run) - len(run.rstrip("\\"))) % 2 and end - slash < _ESCAPE_LENGTHS.get(text[slash + 1 : slash + 2], 2):
            return slash
    for size in range(min(len(quote) - 1, end - at), 0, -1):
        if text.endswith(quote[:size]) and not _is_escaped(text, at, end - size):
            return end - size
    return end


def _is_escaped(text: str, at: int, position: int) -> bool:
    before = text[at:position]
    return (len(before) - len(before.rstrip("\\"))) % 2 == 1


class EscapeDecoder:
    """Decodes the escapes of one answer."""

    def __init__(self) -> None:
        self._remaining = MAX_CODE_ESCAPES

    def to_json(self, text: str) -> str:
        """Return the content of the JSON string. The text must not end within an escape."""
        if "\\" not in text:
            return escape_json(text)
        for escape, mask, _ in _MASKS:
            text = text.replace(escape, mask)
        if "\\" in text:
            text = self._decode_python_only(text)
        escaped = _unmask(escape_json(text))
        if _CODE_MASK not in text or _is_json_escaped(escaped):
            return escaped
        return _unmask(escape_json(self._decode_codes(text, _CODE_MASK, "u")))

    def _decode_python_only(self, text: str) -> str:
        """Decode the escapes that JSON does not have."""
        for escape, plain in _PLAIN.items():
            text = text.replace(escape, plain)
        return self._decode_codes(self._decode_codes(text, "\\x", "x"), "\\U", "U")

    def _decode_codes(self, text: str, escape: str, kind: str) -> str:
        """Decode character codes. Invalid ones, and those beyond the limit, are kept literally."""
        begin, *parts = text.split(escape, self._remaining + 1)
        digits = _ESCAPE_LENGTHS[kind] - 2
        out = [begin]
        for part in parts:
            self._remaining -= 1
            code = part[:digits]
            is_valid = (
                self._remaining >= 0 and len(code) == digits and _HEX.issuperset(code) and int(code, 16) <= maxunicode
            )
            out.append(chr(int(code, 16)) + part[digits:] if is_valid else f"\\{kind}{part}")
        return "".join(out).replace(escape, "\\" + kind)


def _unmask(text: str) -> str:
    for _, mask, escaped in _MASKS:
        text = text.replace(mask, escaped)
    return text


def _is_json_escaped(text: str) -> bool:
    try:
        json.loads(f'"{text}"')
    except ValueError:
        return False
    return True


_NUMBER_WINDOW: Final = 8192
JSON_CONSTANTS: Final = {
    "True": "true",
    "False": "false",
    "None": "null",
    "true": "true",
    "false": "false",
    "null": "null",
}
_DIGITS: Final = "0123456789,"
_NUMBER_CHARS: Final = "0123456789.-+eE, \t\r\n"
_MAX_NUMBER_LENGTH: Final = 400  # characters
NUMBER_STARTS: Final = frozenset("+-.0123456789")


def is_plain_number(atom: str) -> bool:
    """Whether the atom is a number in JSON, too."""
    if atom.isdigit():
        return atom.isascii() and (atom[0] != "0" or atom == "0")
    if len(atom) > _MAX_NUMBER_LENGTH or atom[:1] not in NUMBER_STARTS or atom[-1].isspace():
        return False  # json.loads would accept the whitespace
    try:
        json.loads(atom)
    except ValueError:
        return False
    return True


def atom_to_json(atom: str) -> str:
    """Convert an atom: a constant, a number, or otherwise a string."""
    if atom in JSON_CONSTANTS:
        return JSON_CONSTANTS[atom]
    if is_plain_number(atom):
        return atom
    if len(atom) <= _MAX_NUMBER_LENGTH and atom[0] in NUMBER_STARTS and atom.isascii():
        return _parse_number(atom) or to_json_string(atom)
    return to_json_string(atom)


def _parse_number(atom: str) -> str:
    """Convert numbers that only Python accepts: 1_000, 0x1F, 007, .5, 1., +1. Returns "" if it is not a number."""
    try:
        return str(int(atom, 0))
    except ValueError:
        pass
    try:
        return str(int(atom))
    except ValueError:
        pass
    try:
        value = float(atom)
    except ValueError:
        return ""
    return repr(value) if value - value == 0 else ""


def read_number_run(text: str, at: int) -> tuple[str, int]:
    """Read plain numbers that are each followed by a comma. Returns them without the last comma, and the end
    position.
    """
    window = text[at : at + _NUMBER_WINDOW]
    run = window[: len(window) - len(window.lstrip(_DIGITS))]
    if len(run) > 1 and run[0] != "0" and run[0] != "," and ",," not in run and ",0" not in run:
        run = run[: run.rfind(",") + 1]
        return run[:-1], at + len(run)
    run = window[: len(window) - len(window.lstrip(_NUMBER_CHARS))]
    run = run[: run.rfind(",") + 1]
    while run:
        try:
            json.loads(f"[{run[:-1]}]")
        except json.JSONDecodeError as error:
            run = run[: run.rfind(",", 0, max(0, error.pos - 1)) + 1]
        except ValueError:  # a number with too many digits
            return "", at
        else:
            return "".join(run[:-1].split()), at + len(run)
    return "", at

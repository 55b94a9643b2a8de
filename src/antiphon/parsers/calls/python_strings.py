"""Convert Python strings, constants and numbers to JSON.

Escapes that Python does not define are kept literally.
"""

import re
from sys import maxunicode
from typing import Final

from antiphon.parsers.calls.typed_values import escape_json, to_json_string
from antiphon.parsers.json_repair import JSON_NUMBER, match_end

JSON_CONSTANTS: Final = {
    "True": "true",
    "False": "false",
    "None": "null",
    **{name: name for name in ("true", "false", "null")},
}
NUMBER_STARTS: Final = frozenset("+-.0123456789")
_MAX_NUMBER_LENGTH: Final = 400  # characters of a number that only Python accepts
_NUMBER: Final = re.compile(JSON_NUMBER)
_NUMBER_RUN: Final = re.compile(rf"(?:[ \t\r\n]*+{JSON_NUMBER}[ \t\r\n]*+,)++")

_ESCAPES: Final = dict(zip("'\"ntrbfav0\n", ["'", '"', *"\n\t\r\b\f\a\v\0", ""], strict=True))
_CODE: Final = re.compile(r"x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def _make_body(quote: str) -> re.Pattern[str]:
    """Return the pattern of the content of a string, up to its closing quote or to an incomplete escape or quote."""
    first = quote[0]
    codes = "|".join(rf"{kind}(?![^{first}]{{0,{digits - 1}}}\Z)" for kind, digits in (("x", 2), ("u", 4), ("U", 8)))
    inner_quote = rf"|{first}(?!{first}{first}|{first}?\Z)" if len(quote) > 1 else ""
    return re.compile(rf"(?:[^\\{first}]++|\\(?:[^xuU]|{codes}){inner_quote})*+")


_BODIES: Final = {quote: _make_body(quote) for quote in ('"""', "'''", '"', "'")}


def find_string_end(text: str, at: int, quote: str) -> tuple[int, bool]:
    """Return the position of the closing quote and True; for an open string the position of an incomplete escape or
    quote, or the end, and False. The text must not begin within an escape.
    """
    end = match_end(_BODIES[quote], text, at)
    return end, text.startswith(quote, end)


def string_to_json(text: str) -> str:
    """Return the content of the JSON string for the content of a Python string that does not end within an escape."""
    if "\\" not in text:
        return escape_json(text)
    first, *parts = text.split("\\")
    out, is_escaped = [first], False  # is_escaped: the backslash before this part is itself escaped
    for part in parts:
        if is_escaped or not part:
            out.append(part if is_escaped else "\\")
            is_escaped = not is_escaped
        elif (char := _ESCAPES.get(part[0])) is not None:
            out += (char, part[1:])
        elif part[0] in "xuU":
            out.append(_decode_code(part))
        else:
            out += ("\\", part)
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", escape_json("".join(out)))


def _decode_code(text: str) -> str:
    """Decode the character code at the start of the text; an invalid one stays literal."""
    end = match_end(_CODE, text, 0)
    code = int(text[1:end], 16) if end else maxunicode + 1
    return chr(code) + text[end:] if code <= maxunicode else "\\" + text


def is_plain_number(atom: str) -> bool:
    """Whether the atom is a number in JSON, too."""
    return _NUMBER.fullmatch(atom) is not None


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
    for parse in (lambda: int(atom, 0), lambda: int(atom), lambda: float(atom)):
        try:
            value = parse()
        except ValueError:
            continue
        return repr(value) if value - value == 0 else ""
    return ""


def read_number_run(text: str, at: int) -> tuple[str, int]:
    """Read plain numbers that are each followed by a comma. Returns them without the last comma, and the end
    position.
    """
    end = match_end(_NUMBER_RUN, text, at)
    return "".join(text[at:end].split())[:-1], end

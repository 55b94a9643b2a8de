"""Convert values to JSON: plain text with the type that the schema gives, and strings and atoms of Python.

Strings are streamed. Other values are parsed when complete: as JSON, or as Python if that is unambiguous; anything else
becomes a string. Formats that write every value as text need the types to distinguish a number from a string of digits.
In strings of Python, escapes that Python does not define are kept literally.
"""

import json
import re
from collections.abc import Sequence
from functools import cache
from json.encoder import encode_basestring
from sys import maxunicode
from typing import Any, Final

from antiphon.core.prompt import Json
from antiphon.core.stop_strings import measure_overlap
from antiphon.parsers.json_repair import JSON_NUMBER, JsonRepair, match_end
from antiphon.protocol.schemas.schema_edits import find_reference, json_type

ANY: Final[frozenset[str]] = frozenset()  # the type is unknown
TEXT: Final = frozenset({"string"})
_MAX_DEPTH: Final = 8
_MAX_ALTERNATIVES: Final = 64
_TYPE_ALIASES: Final = {
    "str": "string",
    "text": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "list": "array",
    "dict": "object",
}


class ToolParameters:
    """The parameters of one tool; empty for a tool that is not offered."""

    def __init__(self, tool: Json | None) -> None:
        function = (tool or {}).get("function", tool)
        schema = function.get("parameters") if isinstance(function, dict) else None
        self._root = schema if isinstance(schema, dict) else {}
        properties = self._root.get("properties")
        self._properties = properties if isinstance(properties, dict) else {}

    @property
    def names(self) -> Sequence[str]:
        return tuple(self._properties)

    def get_types(self, name: str) -> frozenset[str]:
        """Return the types that a value may have; ANY if the schema does not restrict them."""
        return _collect_types(self._properties.get(name), self._root, 0)


def _collect_types(schema: Any, root: Json, depth: int) -> frozenset[str]:
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return ANY
    if isinstance(reference := schema.get("$ref"), str):
        return _collect_types(find_reference(reference, root), root, depth + 1)
    if (declared := schema.get("type")) is not None:
        names = declared if isinstance(declared, list) else [declared]
        return frozenset([_TYPE_ALIASES.get(name, name) for name in names if isinstance(name, str)])
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(alternatives := schema.get(key), list) and alternatives:
            return _combine_types(
                [_collect_types(alternative, root, depth + 1) for alternative in alternatives[:_MAX_ALTERNATIVES]],
                key == "allOf",
            )
    if isinstance(values := schema.get("enum"), list) and values:
        return frozenset(map(json_type, values))
    if "const" in schema:
        return frozenset({json_type(schema["const"])})
    if "properties" in schema:
        return frozenset({"object"})
    return frozenset({"array"}) if "items" in schema else ANY


def _combine_types(alternatives: list[frozenset[str]], all_hold: bool) -> frozenset[str]:
    """Combine the types of alternatives. An unrestricted one makes the result ANY, unless all of them must hold."""
    if all_hold:
        alternatives = [alternative for alternative in alternatives if alternative is not ANY]
    return ANY if not alternatives or ANY in alternatives else frozenset().union(*alternatives)


_FIRST_CHARS: Final = {
    "object": "{",
    "array": "[",
    "number": "-0123456789",
    "integer": "-0123456789",
    "boolean": "tfTF",
    "null": "nN",
}
_MAX_CONSTANT_LENGTH: Final = 5  # "false", the longest constant that is not a string
_START_LENGTH: Final = 8
_BOOLEANS: Final = {"true": "true", "false": "false"}
PYTHON_CONSTANTS: Final = {"True": "true", "False": "false", "None": "null"}


def to_json_string(text: str) -> str:
    return encode_basestring(text)


def escape_json(text: str) -> str:
    """Escape text for a JSON string, without the quotes."""
    return encode_basestring(text)[1:-1]


class TypedValue:
    """Converts text to JSON incrementally, without one `lead` and one `tail` around it, which belong to the format."""

    def __init__(self, types: frozenset[str], lead: str = "", tail: str = "") -> None:
        self._types = types
        self._lead = lead
        self._tail = tail
        self._pending = ""
        self._is_streaming = False  # it is a string, and its opening quote was written
        self._buffered: list[str] = []  # input while the value may still be something other than a string
        self._start = ""  # first characters of that, without leading whitespace

    @property
    def is_buffering(self) -> bool:
        """Whether the value is converted only when it is complete."""
        return not self._is_streaming

    def feed_string(self, text: str) -> str:
        """Fast path of `feed` for the middle of a string. Returns "" if the text must go through `feed`."""
        if not self._is_streaming or self._pending or (self._tail and self._tail[0] in text):
            return ""
        return escape_json(text)

    def feed(self, text: str) -> str:
        text = self._pending + text
        if self._lead:
            if len(text) < len(self._lead) and self._lead.startswith(text):
                self._pending = text
                return ""
            text = text.removeprefix(self._lead)
            self._lead = ""
        tail_length = measure_overlap(text, self._tail) if self._tail else 0
        self._pending = text[len(text) - tail_length :]
        return self._consume(text[: len(text) - tail_length])

    def finish(self, cut: bool = False) -> str:
        """Return the rest of the JSON. `cut`: the output ended within the value, possibly within its tail."""
        remainder = "" if cut or self._pending == self._tail else self._pending
        if self._is_streaming:
            return escape_json(remainder) + '"'
        text = "".join(self._buffered) + remainder
        return to_json_string(text) if self._types == TEXT else to_json(text, self._types, cut)

    def _consume(self, text: str) -> str:
        if self._is_streaming:
            return escape_json(text)
        if not text:
            return ""
        self._buffered.append(text)
        if len(self._start) < _START_LENGTH:
            self._start = (self._start + text).lstrip()[:_START_LENGTH]
        if not self._is_text():
            return ""
        self._is_streaming = True
        buffered = "".join(self._buffered)
        self._buffered.clear()
        return '"' + escape_json(buffered)

    def _is_text(self) -> bool:
        """Return whether the value can only be a string by now. The final result does not depend on how early."""
        types, start = self._types, self._start
        if types == TEXT:
            return True
        if not start or (types is not ANY and "string" not in types):
            return False
        if start[0] not in _first_chars(types):
            return True
        return start[0].isalpha() and len(start.rstrip()) > _MAX_CONSTANT_LENGTH


def convert_value(text: str, types: frozenset[str], lead: str = "", tail: str = "") -> str:
    """Return what a `TypedValue` returns in total for this text."""
    text = text.removeprefix(lead).removesuffix(tail)
    return to_json_string(text) if types == TEXT else to_json(text, types)


def to_json(text: str, types: frozenset[str], cut: bool = False) -> str:
    if not (stripped := text.strip()):
        return "null" if "null" in types and "string" not in types else to_json_string(text)
    stripped = PYTHON_CONSTANTS.get(stripped, stripped)
    if "boolean" in types and "string" not in types and len(stripped) <= _MAX_CONSTANT_LENGTH:
        stripped = _BOOLEANS.get(stripped.lower(), stripped)
    parsed, value = _try_parse(stripped)
    if types is ANY or "string" in types:
        return stripped if parsed and _matches_types(value, types) else to_json_string(text)
    if parsed:
        return stripped
    return _repair_python(stripped, cut) or to_json_string(text)


def _matches_types(value: object, types: frozenset[str]) -> bool:
    if types is ANY:
        return True
    found = json_type(value)
    if found == "number" and "integer" in types and isinstance(value, int):
        return True
    return found in types and found != "string"


def _try_parse(text: str) -> tuple[bool, object]:
    try:
        value, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return False, None
    return end == len(text), value


def _repair_python(text: str, cut: bool) -> str:
    """Convert lists and objects in Python syntax; "" if the text is not one."""
    if text[0] not in "{[(":
        return ""
    repair = JsonRepair()
    output, end = repair.feed(text)
    if not repair.is_done and not repair.is_broken and cut:
        output += repair.finish()
    is_complete = repair.is_done and end == len(text)
    return output if is_complete and _try_parse(output)[0] else ""


@cache
def _first_chars(types: frozenset[str]) -> frozenset[str]:
    """Return the characters that a value other than a string may begin with."""
    return frozenset("".join(_FIRST_CHARS.get(name, "") for name in types or _FIRST_CHARS) + ("" if types else '"'))


def _reject_constant(name: str) -> None:
    raise ValueError(name)


_DECODER: Final = json.JSONDecoder(parse_constant=_reject_constant)


def as_json_object(text: str) -> str:
    """Return the stripped text if it is exactly one JSON object, otherwise ""."""
    stripped = text.strip()
    return stripped if stripped[:1] == "{" and _try_parse(stripped)[0] else ""


# Python: strings, constants and numbers.

JSON_CONSTANTS: Final = PYTHON_CONSTANTS | {name: name for name in ("true", "false", "null")}
NUMBER_STARTS: Final = frozenset("+-.0123456789")
_MAX_NUMBER_LENGTH: Final = 400  # characters of a number that only Python accepts
_NUMBER: Final = re.compile(JSON_NUMBER)
_NUMBER_RUN: Final = re.compile(rf"(?:[ \t\r\n]*+{JSON_NUMBER}[ \t\r\n]*+,)+")

_ESCAPES: Final = dict(zip("'\"ntrbfav0\n", ["'", '"', *"\n\t\r\b\f\a\v\0", ""], strict=True))
_CODE: Final = re.compile(r"x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def _make_body(quote: str) -> re.Pattern[str]:
    """Return the pattern of the content of a string, up to its closing quote or to an incomplete escape or quote."""
    first = quote[0]
    codes = "|".join(rf"{kind}(?![^{first}]{{0,{digits - 1}}}\Z)" for kind, digits in (("x", 2), ("u", 4), ("U", 8)))
    inner_quote = rf"|{first}(?!{first}{first}|{first}?\Z)" if len(quote) > 1 else ""
    return re.compile(rf"(?:[^\\{first}]++|\\(?:[^xuU]|{codes}){inner_quote})*")


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
    """Return whether the atom is a number in JSON, too."""
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
    """Read plain numbers that are each followed by a comma. Returns them without the last comma, and the end."""
    end = match_end(_NUMBER_RUN, text, at)
    return "".join(text[at:end].split())[:-1], end

"""Parses a truncated JSON object without its incomplete values, for a tool call that was cut short.

The text is cut after the last complete value and open brackets are closed. A number at the end of the text counts as
complete. The SDKs of Anthropic's API parse partial tool input the same way.
"""

import re
from typing import Any

import msgspec

_TOKEN = re.compile(
    r"""[ \t\n\r]*(?:(?P<open>[{\[])|(?P<close>[}\]])|(?P<comma>,)|(?P<colon>:)
    |(?P<string>"[^"\\]*(?:\\.[^"\\]*)*")|(?P<number>-?[0-9][0-9.eE+-]*)|(?P<word>true|false|null))""",
    re.VERBOSE | re.DOTALL,
)
_CLOSING = {"{": "}", "[": "]"}
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def parse_object(text: str) -> dict[str, Any] | None:
    """Parse a complete JSON object. Returns None if it is not one; blank text is an empty object."""
    if not text or text.isspace():
        return {}
    try:
        return _decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None


def parse_truncated_object(text: str) -> dict[str, Any] | None:
    """Parse an object that may be truncated. Returns None if the text is not the start of a JSON object."""
    if not text.lstrip().startswith("{"):
        return parse_object(text)
    at = complete = 0
    open_brackets: list[str] = []  # open brackets at `complete`; tokens after that open and close nothing
    expected: str | None = "value"
    while found := _TOKEN.match(text, at):
        at = found.end()
        kind = str(found.lastgroup)
        if kind == "number" and at == len(text) and not text[-1].isdigit():
            break
        expected = _next_expected(kind, found[kind], expected, open_brackets)
        if expected is None:
            return None
        if kind in ("open", "close") or expected == "comma":
            complete = at
    else:
        if not _is_prefix(text[at:].lstrip(), expected):
            return None
    return parse_object(text[:complete] + "".join([_CLOSING[bracket] for bracket in reversed(open_brackets)]))


def _next_expected(kind: str, token: str, expected: str | None, open_brackets: list[str]) -> str | None:
    """Return the kind of token expected next and update the open brackets; None if the token was not expected."""
    match kind, expected:
        case "open", "value":
            open_brackets.append(token)
            return "key" if token == "{" else "value"
        case "string", "key":
            return "colon"
        case "colon", "colon":
            return "value"
        case "comma", "comma" if open_brackets:
            return "key" if open_brackets[-1] == "{" else "value"
        case (("string" | "number" | "word"), "value"):
            return "comma"
        case "close", _ if open_brackets and _CLOSING[open_brackets.pop()] == token:
            return "comma"
    return None


def _is_prefix(tail: str, expected: str | None) -> bool:
    """Check whether the remaining text can be the start of the expected token."""
    if not tail or (tail[0] == '"' and expected in ("key", "value")):
        return True
    return expected == "value" and any(literal.startswith(tail) for literal in ("true", "false", "null", "-"))

"""A JSON object that breaks off → the object without what is not whole: for a call that was cut short.

The text is cut behind the last value that is whole, and what is open there is closed. A number that ends with the text
counts as whole. So do the SDKs of Anthropic's API, which read such an input while it arrives.
"""

import re
from typing import Any

import msgspec

_TOKEN = re.compile(
    r"""[ \t\n\r]*(?:(?P<open>[{\[])|(?P<close>[}\]])|(?P<comma>,)|(?P<colon>:)
    |(?P<string>"[^"\\]*(?:\\.[^"\\]*)*")|(?P<number>-?[0-9][0-9.eE+-]*)|(?P<word>true|false|null))""",
    re.VERBOSE | re.DOTALL,
)
_CLOSES = {"{": "}", "[": "]"}
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def whole_object(text: str) -> dict[str, Any] | None:
    """None if it is no JSON object. No text at all is an object of nothing."""
    if not text or text.isspace():
        return {}
    try:
        return _decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None


def cut_object(text: str) -> dict[str, Any] | None:
    """None if it is not the beginning of a JSON object either."""
    if not text.lstrip().startswith("{"):
        return whole_object(text)
    at = whole = 0
    opened: list[str] = []  # where `whole` ends: what comes after that opens and closes nothing
    awaited: str | None = "value"
    while found := _TOKEN.match(text, at):
        at = found.end()
        kind = str(found.lastgroup)
        if kind == "number" and at == len(text) and not text[-1].isdigit():
            break
        awaited = _next(kind, found[kind], awaited, opened)
        if awaited is None:
            return None
        if kind in ("open", "close") or awaited == "comma":
            whole = at
    else:
        if not _may_begin(text[at:].lstrip(), awaited):
            return None
    return whole_object(text[:whole] + "".join([_CLOSES[one] for one in reversed(opened)]))


def _next(kind: str, token: str, awaited: str | None, opened: list[str]) -> str | None:
    """What has to come after this token; None if it was not awaited. Keeps up with what is open."""
    match kind, awaited:
        case "open", "value":
            opened.append(token)
            return "key" if token == "{" else "value"
        case "string", "key":
            return "colon"
        case "colon", "colon":
            return "value"
        case "comma", "comma" if opened:
            return "key" if opened[-1] == "{" else "value"
        case (("string" | "number" | "word"), "value"):
            return "comma"
        case "close", _ if opened and _CLOSES[opened.pop()] == token:
            return "comma"
    return None


def _may_begin(rest: str, awaited: str | None) -> bool:
    """Is this the beginning of what has to come?"""
    if not rest or (rest[0] == '"' and awaited in ("key", "value")):
        return True
    return awaited == "value" and any(word.startswith(rest) for word in ("true", "false", "null", "-"))

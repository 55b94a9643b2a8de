"""Checks whether a text matches a Lark grammar. Callers must check first that the library is installed (`has_lark`).

A grammar can be constructed so that matching a short text takes hours: the time is limited, and callers use a thread.
"""

import re
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from time import monotonic
from typing import Any, Final

MAX_SECONDS: Final = 2.0  # time limit for one text
_MAX_FAULT_CHARS: Final = 400  # characters of a reported error
_CHUNK_BYTES: Final = 32  # bytes matched between checks of the clock
_UNESCAPED_SLASH: Final = re.compile(r"(\\.)|/", re.DOTALL)


@cache
def has_lark() -> bool:
    """Return whether the extra `lark` (llguidance) is installed."""
    return find_spec("llguidance") is not None


def find_mismatch(grammar: str, text: str) -> str:
    """Return why the text does not match the grammar; empty if it matches."""
    if fault := find_grammar_error(grammar):
        return f"its grammar cannot be read: {fault}"
    matcher, encoded, deadline = (
        _load_matcher(grammar).deep_copy(),
        text.encode("utf-8", "replace"),
        monotonic() + MAX_SECONDS,
    )
    for position in range(0, len(encoded), _CHUNK_BYTES):
        chunk = encoded[position : position + _CHUNK_BYTES]
        if (consumed := matcher.try_consume_tokens(list(chunk))) < len(chunk):
            excerpt = encoded[position + consumed : position + consumed + _CHUNK_BYTES].decode("utf-8", "replace")
            return f"it does not match its grammar from {excerpt!r} on"
        if monotonic() > deadline:
            return "it takes too long to compare it with its grammar"
    return "" if matcher.is_accepting() else "it ends before its grammar does"


def find_grammar_error(grammar: str) -> str:
    """Return why the grammar is invalid; empty if it is valid. Shortened, since the library quotes complete lines."""
    matcher = _load_matcher(grammar)
    return str(matcher.get_error()).strip()[:_MAX_FAULT_CHARS] if matcher.is_error() else ""


def _load_matcher(grammar: str) -> Any:
    return import_module("antiphon.protocol.schemas.lark").compiled(grammar)


def escape_lark_regex(regex: str) -> str:
    """Escape a regular expression for Lark, which ends it at a slash or at the end of a line."""
    return _UNESCAPED_SLASH.sub(lambda match: match[1] or "\\/", regex).replace("\n", "\\n").replace("\r", "\\r")

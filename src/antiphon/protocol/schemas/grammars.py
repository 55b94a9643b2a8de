"""Is a text a sentence of a Lark grammar? Whoever asks has to know that somebody can tell (`knows_lark`).

A grammar can be made so that a short text takes hours: little time is given to it, and it is asked about in a thread.
"""

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from time import monotonic
from typing import Any, Final

SECONDS: Final = 2.0  # to look at one text
_LONGEST_FAULT: Final = 400  # characters of what is said to be wrong
_AT_ONCE: Final = 32  # bytes, between looks at the clock


@cache
def knows_lark() -> bool:
    """Whether the extra is there."""
    return find_spec("llguidance") is not None


def ungrammatical(grammar: str, text: str) -> str:
    """What is wrong with it; nothing if it is a sentence."""
    if fault := unreadable(grammar):
        return f"its grammar cannot be read: {fault}"
    matcher, said, end = _compiled(grammar).deep_copy(), text.encode("utf-8", "replace"), monotonic() + SECONDS
    for at in range(0, len(said), _AT_ONCE):
        piece = said[at : at + _AT_ONCE]
        if (read := matcher.try_consume_tokens(list(piece))) < len(piece):
            there = said[at + read : at + read + _AT_ONCE].decode("utf-8", "replace")
            return f"it does not match its grammar from {there!r} on"
        if monotonic() > end:
            return "it takes too long to compare it with its grammar"
    return "" if matcher.is_accepting() else "it ends before its grammar does"


def unreadable(grammar: str) -> str:
    """Why it is no grammar, in short, since the reader shows all of its line; nothing if it is one."""
    matcher = _compiled(grammar)
    return str(matcher.get_error()).strip()[:_LONGEST_FAULT] if matcher.is_error() else ""


def _compiled(grammar: str) -> Any:
    return import_module("antiphon.protocol.schemas.lark").compiled(grammar)

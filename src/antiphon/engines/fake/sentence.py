"""The input of a custom tool with a Lark grammar: one of its shortest sentences, if somebody can tell what those are.

A model reads of the grammar in the description of the tool's input; so does this.
"""

from collections import deque
from functools import lru_cache
from importlib import import_module
from typing import Any, Final

from antiphon.core.prompt import Json
from antiphon.protocol.schemas.grammars import knows_lark

TOLD: Final = "It must match this Lark grammar:\n"
_BYTES: Final = b"\n a0" + bytes(byte for byte in range(33, 127) if byte not in b"a0")  # in which order they are tried
_WAYS: Final = 6  # of going on, at each place
_PLACES: Final = 2000  # looked at before giving up


def sentence(parameters: Json) -> str | None:
    """None: there is no grammar, or no sentence of it was found."""
    about = parameters.get("properties", {}).get("input", {})
    _, told, grammar = str(about.get("description", "") if isinstance(about, dict) else "").partition(TOLD)
    return _shortest(grammar) if told and knows_lark() else None


@lru_cache(maxsize=64)
def _shortest(grammar: str) -> str | None:
    start = import_module("antiphon.protocol.schemas.lark").compiled(grammar)
    waiting = deque([(start.deep_copy(), b"")])
    for _ in range(_PLACES):
        if not waiting or start.is_error():
            return None
        matcher, said = waiting.popleft()
        forced = matcher.compute_ff_bytes()
        matcher.consume_tokens(list(forced))
        said += forced
        if matcher.is_accepting():
            return str(said.decode("utf-8", "replace"))
        waiting += _onwards(matcher, said)
    return None


def _onwards(matcher: Any, said: bytes) -> list[tuple[Any, bytes]]:
    found: list[tuple[Any, bytes]] = []
    for byte in _BYTES:
        if len(found) < _WAYS and matcher.validate_tokens([byte]) == 1:
            further = matcher.deep_copy()
            further.consume_tokens([byte])
            found.append((further, said + bytes([byte])))
    return found

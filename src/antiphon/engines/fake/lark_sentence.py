"""Input for a custom tool with a Lark grammar: one of the shortest sentences of the grammar.

It needs the optional `lark` extra. As for a model, the grammar is read from the description of the tool's input.
"""

from collections import deque
from functools import lru_cache
from importlib import import_module
from typing import Any, Final

from antiphon.core.prompt import Json
from antiphon.protocol.schemas.grammars import has_lark

_GRAMMAR_PREFIX: Final = "It must match this Lark grammar:\n"
# printable ASCII, in the order in which continuations are tried
_TRIED_BYTES: Final = b"\n a0" + bytes(byte for byte in range(33, 127) if byte not in b"a0")
_MAX_BRANCHES: Final = 6  # continuations tried at each position
_MAX_STATES: Final = 2000  # matcher states examined before giving up


def find_grammar_input(parameters: Json) -> str | None:
    """Return a sentence of the grammar in the tool's input description; None if there is no grammar or no sentence was
    found.
    """
    input_schema = parameters.get("properties", {}).get("input", {})
    _, prefix, grammar = str(input_schema.get("description", "") if isinstance(input_schema, dict) else "").partition(
        _GRAMMAR_PREFIX
    )
    return _shortest_sentence(grammar) if prefix and has_lark() else None


@lru_cache(maxsize=64)
def _shortest_sentence(grammar: str) -> str | None:
    """Search breadth-first for a sentence of the grammar."""
    start = import_module("antiphon.protocol.schemas.lark").compiled(grammar)
    queue = deque([(start.deep_copy(), b"")])
    for _ in range(_MAX_STATES):
        if not queue or start.is_error():
            return None
        matcher, text = queue.popleft()
        forced = matcher.compute_ff_bytes()
        matcher.consume_tokens(list(forced))
        text += forced
        if matcher.is_accepting():
            return str(text.decode("utf-8", "replace"))
        queue += _next_states(matcher, text)
    return None


def _next_states(matcher: Any, text: bytes) -> list[tuple[Any, bytes]]:
    found: list[tuple[Any, bytes]] = []
    for byte in _TRIED_BYTES:
        if len(found) < _MAX_BRANCHES and matcher.validate_tokens([byte]) == 1:
            successor = matcher.deep_copy()
            successor.consume_tokens([byte])
            found.append((successor, text + bytes([byte])))
    return found

"""Short sentences of Lark grammars and regular expressions, found with llguidance (the extra `lark`)."""

from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from typing import Any, Final

from antiphon.core.prompt import Json
from antiphon.errors import InvalidValue
from antiphon.protocol.schemas.grammars import escape_lark_regex, has_lark

_GRAMMAR_PREFIX: Final = "It must match this Lark grammar:\n"
# printable ASCII, in the order in which continuations are tried
_TRIED_BYTES: Final = b"\n a0" + bytes(byte for byte in range(33, 127) if byte not in b"a0")
_MAX_STATES: Final = 500  # matcher states examined before giving up
_MAX_BYTES: Final = 2000  # of a sentence; matching a pattern of nested repetitions takes time quadratic in its length


def find_grammar_input(parameters: Json) -> str | None:
    """Return input for a custom tool whose input description, as models read it, contains a Lark grammar; None if there
    is no grammar or no sentence was found.
    """
    input_schema = parameters.get("properties", {}).get("input", {})
    _, prefix, grammar = str(input_schema.get("description", "") if isinstance(input_schema, dict) else "").partition(
        _GRAMMAR_PREFIX
    )
    return _find_sentence(grammar) if prefix and has_lark() else None


def find_pattern_match(pattern: str, min_length: int = 0) -> str:
    """Return a short string of at least `min_length` characters that the complete regular expression matches."""
    if not has_lark():
        raise InvalidValue(
            "The fake engine generates text for a regular expression only with the extra `lark`: "
            "pip install 'antiphon[lark]'."
        )
    longer = rf" & /(.|\n){{{min_length},}}/" if min_length else ""
    if (sentence := _find_sentence(f"start: TEXT\nTEXT: /{escape_lark_regex(pattern)}/{longer}")) is None:
        raise InvalidValue(f"The fake engine found no text that matches the regular expression {pattern[:100]!r}.")
    return sentence


@lru_cache(maxsize=64)
def _find_sentence(grammar: str) -> str | None:
    """Search breadth-first for a sentence with the fewest choices; None if none is found."""
    start = import_module("antiphon.protocol.schemas.lark").compiled(grammar).deep_copy()
    queue = deque([] if start.is_error() else [(_consume_forced(start), start)])
    for _ in range(_MAX_STATES):
        if not queue:
            return None
        text, matcher = queue.popleft()
        if matcher.is_accepting():
            return text.decode("utf-8", "replace") if len(text) <= _MAX_BYTES else None
        queue += [(text + addition, successor) for addition, successor in _successors(matcher)]
    return None


def _successors(matcher: Any) -> Iterator[tuple[bytes, Any]]:
    """Yield continuations of one character and the characters that must follow it; of those after which the same
    characters may follow, only the first.
    """
    allowed, seen = matcher.compute_bitmask(), set[bytes]()
    for byte in _TRIED_BYTES:
        if allowed[byte // 8] >> byte % 8 & 1:
            successor = matcher.deep_copy()
            successor.consume_tokens([byte])
            addition = bytes([byte]) + _consume_forced(successor)
            if (follow := successor.compute_bitmask()) not in seen:
                seen.add(follow)
                yield addition, successor


def _consume_forced(matcher: Any) -> bytes:
    forced = bytes(matcher.compute_ff_bytes())
    matcher.consume_tokens(list(forced))
    return forced

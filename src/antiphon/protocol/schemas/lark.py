"""Lark grammars as llguidance reads them, the library that engines hold models to grammars with. An extra: `lark`."""

from functools import cache, lru_cache
from typing import Final

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

REMEMBERED: Final = 64  # compiled grammars


@lru_cache(maxsize=REMEMBERED)
def compiled(grammar: str) -> LLMatcher:
    """To be copied by whoever uses it up."""
    return LLMatcher(_bytes(), LLMatcher.grammar_from_lark(grammar), log_level=0)


@cache
def _bytes() -> LLTokenizer:
    """Bytes as tokens."""
    return LLTokenizer(TokenizerWrapper(_Bytes()), slices=[])


class _Bytes:
    eos_token_id = 256
    bos_token_id = None
    special_token_ids: Final = (256,)
    tokens: Final = (*(bytes([byte]) for byte in range(256)), b"<end>")

    def __call__(self, text: bytes) -> list[int]:
        return list(text)

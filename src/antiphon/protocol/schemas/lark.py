"""Lark grammars, compiled by llguidance, which engines use for constrained decoding. Optional extra: `lark`."""

from functools import cache, lru_cache
from typing import Final

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

MAX_CACHED_GRAMMARS: Final = 64  # compiled grammars in the cache


@lru_cache(maxsize=MAX_CACHED_GRAMMARS)
def compiled(grammar: str) -> LLMatcher:
    """Return the cached matcher. It is stateful: copy it before consuming tokens."""
    return LLMatcher(_load_byte_tokenizer(), LLMatcher.grammar_from_lark(grammar), log_level=0)


@cache
def _load_byte_tokenizer() -> LLTokenizer:
    """Return a tokenizer whose tokens are the single bytes."""
    return LLTokenizer(TokenizerWrapper(_ByteVocabulary()), slices=[])


class _ByteVocabulary:
    eos_token_id = 256
    bos_token_id = None
    special_token_ids: Final = (256,)
    tokens: Final = (*(bytes([byte]) for byte in range(256)), b"<end>")

    def __call__(self, text: bytes) -> list[int]:
        return list(text)

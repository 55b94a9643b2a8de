"""WordPiece, the tokenizer of BERT models, with the vocabulary of a GGUF file.

The tokens are those of llama.cpp, so that the vectors of both engines are comparable; a test compares them for all of
Unicode. Like llama.cpp, it takes the first character of a decomposed one, and has no limit on the length of a word.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache

from antiphon.engines.gguf import GgufContent

WORD_START = "\u2581"  # before the first piece of a word
MAX_CACHED_WORDS, MAX_CACHED_LENGTH = 32_768, 32
MAX_CACHED_CHARACTERS = 16_384
# ids of llama.cpp where a file names none
DEFAULT_IDS = {"unknown": 100, "bos": 101, "seperator": 102}

_SPACES = frozenset("\t\n\v\f\r\x85")  # control characters that separate words
_CHINESE = (
    (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF), (0x2F800, 0x2FA1F),
)  # fmt: skip


class CharacterTable(dict[int, str]):
    """Table for `str.translate`: words become lower case without accents, and characters that are words get spaces."""

    def __missing__(self, code: int) -> str:
        text = _normalise(unicodedata.normalize("NFD", chr(code))[0])
        if len(self) < MAX_CACHED_CHARACTERS:
            self[code] = text
        return text


def _normalise(character: str) -> str:
    category = unicodedata.category(character)
    if character in _SPACES or category[0] == "Z":
        return " "
    if category[0] == "M" or category in ("Cc", "Cf", "Co", "Cs") or character == "\N{REPLACEMENT CHARACTER}":
        return ""
    is_symbol = category[0] == "S" and character.isascii()
    is_word = category[0] == "P" or is_symbol or any(first <= ord(character) <= last for first, last in _CHINESE)
    return f" {character.lower()} " if is_word else character.lower()


class WordPiece:
    def __init__(self, content: GgufContent) -> None:
        self._tokens = content.tokens
        self._ids = {token: id for id, token in enumerate(content.tokens)}
        self._max_length = max(map(len, content.tokens), default=0)
        self._unknown, self._first, self._last = (
            content.settings.get(f"tokenizer.ggml.{name}_token_id", id) for name, id in DEFAULT_IDS.items()
        )
        self._characters = CharacterTable()
        self._split_short = lru_cache(MAX_CACHED_WORDS)(self._split)

    def encode(self, text: str, add_special: bool = False) -> list[int]:
        ids: list[int] = [self._first] if add_special else []
        for term in text.translate(self._characters).split(" "):
            if term:
                ids += self._split_short(term) if len(term) <= MAX_CACHED_LENGTH else self._split(term)
        return [*ids, self._last] if add_special else ids

    def decode(self, ids: Sequence[int]) -> str:
        return "".join([self._tokens[id] for id in ids]).replace(WORD_START, " ")

    def _split(self, term: str) -> Sequence[int]:
        """Return the longest pieces of a word, from its beginning; one unknown token if a part of it is not a piece."""
        try:
            return [*self._find_pieces(WORD_START + term)]
        except KeyError:
            return [self._unknown]

    def _find_pieces(self, term: str) -> Iterator[int]:
        start = 0
        while start < len(term):
            end = min(start + self._max_length, len(term))
            while end - start > 1 and term[start:end] not in self._ids:
                end -= 1
            yield self._ids[term[start:end]]
            start = end

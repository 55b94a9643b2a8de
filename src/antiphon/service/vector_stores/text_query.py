"""The words of a query that a text index is searched for."""

import re
from itertools import islice
from typing import Final

_MAX_WORDS = 64
_MAX_QUERY = 20_000  # characters of a query in which words are searched
_TERM: Final = re.compile(r"[^\W_]{1,256}")
# Words that are in so many texts that they hardly affect the order of hits, but take much of the time of a search.
_STOP_WORDS: Final = frozenset({
    *("a", "about", "an", "and", "are", "as", "at", "be", "been", "but", "by", "can", "could", "did", "do", "does"),
    *("for", "from", "had", "has", "have", "how", "i", "if", "in", "into", "is", "it", "its", "of", "on", "or"),
    *("should", "that", "the", "their", "there", "these", "they", "this", "to", "was", "were", "what", "when"),
    *("where", "which", "who", "why", "will", "with", "would", "you", "your"),
})  # fmt: skip


def extract_words(query: str) -> list[str]:
    """Return the words of a query without repetitions and stop words: letters and digits, so none is an operator."""
    words = dict.fromkeys(match[0].lower() for match in _TERM.finditer(query[:_MAX_QUERY]))
    return [*islice((term for term in words if term not in _STOP_WORDS), _MAX_WORDS)]

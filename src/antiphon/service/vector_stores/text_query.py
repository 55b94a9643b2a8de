"""The words of a query that a text index is searched for."""

import re
from itertools import islice
from typing import Final

_MAX_WORDS = 64
_MAX_QUERY = 20_000  # characters of a query in which words are searched
_TERM: Final = re.compile(r"[^\W_]{1,256}")
# Words that say little about a text: those that PostgreSQL's text search ignores in English (the list of Snowball), so
# that both databases search for the same words, and a few more verbs.
_ENGLISH: Final = """
    i me my myself we our ours ourselves you your yours yourself yourselves he him his himself she her hers herself it
    its itself they them their theirs themselves what which who whom this that these those am is are was were be been
    being have has had having do does did doing a an the and but if or because as until while of at by for with about
    against between into through during before after above below to from up down in out on off over under again further
    then once here there when where why how all any both each few more most other some such no nor not only own same so
    than too very s t can will just don should now could would may might must shall
"""
_STOP_WORDS: Final = frozenset(_ENGLISH.split())


def extract_words(query: str) -> list[str]:
    """Return the words of a query without repetitions and stop words: letters and digits, so none is an operator."""
    words = dict.fromkeys(match[0].lower() for match in _TERM.finditer(query[:_MAX_QUERY]))
    return [*islice((term for term in words if term not in _STOP_WORDS), _MAX_WORDS)]

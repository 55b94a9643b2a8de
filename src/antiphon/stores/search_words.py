"""The words by which a text is found, the same for all databases: whole words of letters and digits in lower case,
without accents and vowel points. The databases only stem those of English.

Scripts without spaces between words are indexed by single characters and by pairs, and searched by pairs, which no
dictionary has to know: 東京都 is found by 東京, 京都 and 東.
"""

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final
from unicodedata import category, normalize

_MAX_WORDS = 64  # of a query
_MAX_QUERY = 20_000  # characters of a query in which words are searched
# Chinese and Japanese, Thai, Lao, Burmese and Khmer; also Korean, whose particles have no space before them.
_UNSPACED = "々-〇ぁ-ゖゝ-ゟァ-ヺー-ヿㇰ-ㇿ㐀-䶿一-鿿가-힣豈-﫿\U00020000-\U0003ffffก-๎ກ-ໟက-႟ក-៓"
_RUN: Final = re.compile(rf"([{_UNSPACED}]+)|[^\W_{_UNSPACED}]{{1,256}}")
_OTHER: Final = re.compile(r"[^\w\s!-~]")  # characters that are no letters or digits, among these all marks
_VOICED_KANA = "\u3099\u309a"  # marks that make another letter, with which they are composed
_JOINERS = "\xad\u200c\u200d"  # the soft hyphen and others that are invisible within a word
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


def index_words(text: str) -> str:
    """Return the words of a text as they are indexed, separated by spaces."""
    return " ".join(term for run in _find_runs(text) for term in ([*run[0], *_pair(run[0])] if run[1] else [run[0]]))


def query_words(query: str) -> list[str]:
    """Return the words of a query without repetitions and stop words: letters and digits, so none is an operator."""
    runs = _find_runs(query[:_MAX_QUERY])
    terms = dict.fromkeys(term for run in runs for term in (_pair(run[0]) if run[1] else ()) or [run[0]])
    return [*islice((term for term in terms if term not in _STOP_WORDS), _MAX_WORDS)]


def _find_runs(text: str) -> Iterator[re.Match[str]]:
    """Find words, and runs of a script without spaces, which are group 1."""
    return _RUN.finditer(text.lower() if text.isascii() else _fold(text))


def _pair(run: str) -> list[str]:
    return [run[start : start + 2] for start in range(len(run) - 1)]


def _fold(text: str) -> str:
    return normalize("NFC", _OTHER.sub(_drop_mark, normalize("NFKD", text)).casefold())


def _drop_mark(found: re.Match[str]) -> str:
    is_mark = category(found[0])[0] == "M" and found[0] not in _VOICED_KANA
    return "" if is_mark or found[0] in _JOINERS else found[0]

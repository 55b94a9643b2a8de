"""An argument as Python writes it, if all of it is here and it is plain, as most are. Any other takes the long way."""

from typing import Final, NamedTuple

from antiphon.parsers.calls.python_words import WORDS, is_plain_number
from antiphon.parsers.calls.values import quoted

_LONGEST: Final = 64
_OPENERS: Final = frozenset({"[", "{", "("})
_FOLLOWS: Final = frozenset({",", ")"})


class Argument(NamedTuple):
    name: str
    said: str  # as JSON; nothing: only the name is plain
    end: int
    number: bool


def plain_argument(text: str, at: int) -> Argument | None:
    """name='text' or name=word, with the comma or parenthesis that follows it, at which it ends; or name=[ alone."""
    begin = text.find("=", at, at + _LONGEST) + 1
    name = text[at : begin - 1]
    if not begin or not name.isidentifier():
        return None
    quote = text[begin : begin + 1]
    if quote == "'" or quote == '"':
        end = text.find(quote, begin + 1, begin + _LONGEST)
        if end < begin + 2 or text[end + 1 : end + 2] not in _FOLLOWS or "\\" in (said := text[begin + 1 : end]):
            return None
        return Argument(name, quoted(said), end + 1, False)
    if quote in _OPENERS:
        return Argument(name, "", begin, False)
    end = text.find(",", begin, begin + _LONGEST)
    end = end if end >= 0 else text.find(")", begin, begin + _LONGEST)
    word = text[begin:end] if end > begin else ""
    if word in WORDS:
        return Argument(name, WORDS[word], end, False)
    return Argument(name, word, end, True) if word and is_plain_number(word) else None

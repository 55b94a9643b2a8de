"""Arguments as Python writes them that are all here and plain, as most are. Any other takes the long way."""

from typing import Final

from antiphon.parsers.calls.python_words import WORDS, is_plain_number
from antiphon.parsers.calls.script import Budget
from antiphon.parsers.calls.values import quoted

_LONGEST: Final = 64
_OPENERS: Final = frozenset({"[", "{", "("})
_FOLLOWS: Final = frozenset({",", ")"})


def plain_arguments(text: str, at: int, given: set[str], budget: Budget, said: list[str]) -> tuple[int, str]:
    """name='text' or name=word, each with the comma or parenthesis that follows it: what they say as JSON is appended.

    Where the last of them ends, at what follows it; 0: there is none. Or where a list or an object begins, and whose.
    """
    last = 0
    while budget.left > 2:  # a name and a value
        begin = text.find("=", at, at + _LONGEST) + 1
        name = text[at : begin - 1]
        if not begin or name in given or not name.isidentifier():
            break
        first = text[begin : begin + 1]
        if first in _OPENERS:
            given.add(name)
            budget.left -= 2
            return begin, name
        if first == "'" or first == '"':
            end = text.find(first, begin + 1, begin + _LONGEST) + 1
            if end < begin + 3 or text[end : end + 1] not in _FOLLOWS or "\\" in (word := text[begin + 1 : end - 1]):
                break
            said.append(f'"{name}":{quoted(word)}')
            budget.left -= 2
        else:
            end = text.find(",", begin, begin + _LONGEST)
            end = end if end >= 0 else text.find(")", begin, begin + _LONGEST)
            word = text[begin:end] if end > begin else ""
            if word in WORDS:
                budget.left -= 2
            elif word and is_plain_number(word):
                budget.left -= 1
            else:
                break
            said.append(f'"{name}":{WORDS.get(word, word)}')
        given.add(name)
        last = end
        if text[end] == ")":
            break
        at = end + 2 if text[end + 1 : end + 2] == " " else end + 1
    return last, ""

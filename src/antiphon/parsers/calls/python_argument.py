"""Arguments and items as Python writes them that are all here and plain, as most are. Others take the long way."""

from typing import Final

from antiphon.parsers.calls.python_words import WORDS, is_plain_number
from antiphon.parsers.calls.script import Budget
from antiphon.parsers.calls.values import quoted

_LONGEST: Final = 64
_OPENERS: Final = frozenset({"[", "{", "("})
_QUOTES: Final = frozenset({"'", '"'})
_AFTER_VALUE: Final = frozenset({",", "}"})
_AFTER_ITEM: Final = frozenset({",", "]", ")"})
_FOLLOWS: Final = frozenset({",", ")"})


def plain_arguments(text: str, at: int, given: set[str], budget: Budget) -> tuple[int, str, str]:
    """name='text' or name=word, each with the comma or parenthesis that follows it: and what they say as JSON.

    Where the last of them ends, at what follows it; 0: there is none. Or where a list or an object begins, and whose.
    """
    last = 0
    said: list[str] = []
    while budget.left > 2:  # a name and a value
        begin = text.find("=", at, at + _LONGEST) + 1
        name = text[at : begin - 1]
        if not begin or name in given or not name.isidentifier():
            break
        first = text[begin : begin + 1]
        if first in _OPENERS:
            given.add(name)
            budget.left -= 2
            return begin, f'"{name}"', ",".join(said)
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
    return last, "", ",".join(said)


def plain_items(text: str, at: int, keyed: bool, budget: Budget) -> tuple[int, str, str]:
    """'text' or 'key': 'text', each with the comma or bracket that follows it: where the last ends, and as JSON.

    Or where a value begins that is not plain, and its key.
    """
    last, key, follows = 0, "", _AFTER_VALUE if keyed else _AFTER_ITEM
    said: list[str] = []
    while budget.left > 2 and text[at : at + 1] in _QUOTES:
        if keyed:
            end = text.find(text[at], at + 1, at + _LONGEST)
            if end < at + 2 or text[end + 1 : end + 2] != ":" or "\\" in (word := text[at + 1 : end]):
                break
            key = quoted(word)
            at = end + 3 if text[end + 2 : end + 3] == " " else end + 2
        first = text[at : at + 1]
        end = text.find(first, at + 1, at + _LONGEST) + 1 if first in _QUOTES else 0
        following = text[end : end + 1]
        if end < at + 3 or following not in follows or "\\" in (word := text[at + 1 : end - 1]):
            if keyed:
                budget.left -= 1
                return at, key, ",".join(said)
            break
        said.append(f"{key}:{quoted(word)}" if keyed else quoted(word))
        budget.left -= 2 if keyed else 1
        last = end
        if following != ",":
            break
        at = end + 2 if text[end + 1 : end + 2] == " " else end + 1
    return last, "", ",".join(said)

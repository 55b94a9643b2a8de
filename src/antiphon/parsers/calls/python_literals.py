"""The arguments of a call as literals, as a JSON object while they arrive: (a=1, b='x') or {a:1,b:<escape>x<escape>}.

    ARGUMENT ──word──▶ NAMED ──=──▶ VALUE ──▶ NEXT ──,──▶ ARGUMENT … ──closer──▶ DONE
    KEY ──word, string──▶ COLON ──▶ VALUE ──▶ NEXT ──,──▶ KEY …               (within braces)
    VALUE ──quote──▶ STRING ──quote──▶ GLUE ──▶ NEXT           (strings next to each other are one; a quote that
                      ▲                  └──no end of a value──▶ STRING               ends nothing is a part of it)

What is no literal is BROKEN: nothing is said from then on, and what was said stays open, so that nobody takes half of
what was meant for all of it.

Where the reading of literals is; what leads from one to the other is drawn in literals.py.

Arguments and items as Python writes them that are all here and plain, as most are. Others take the long way.
"""

import json
from enum import IntEnum
from typing import Final

from antiphon.parsers.calls.delimited_calls import Wait, after_space
from antiphon.parsers.calls.json_writer import DEEPEST, Nest
from antiphon.parsers.calls.literal_style import Budget, Script
from antiphon.parsers.calls.parameter_schemas import ANY, TEXT, Parameters
from antiphon.parsers.calls.python_strings import (
    NUMERIC,
    WORDS,
    end_of_string,
    is_plain_number,
    number_run,
    whole_until,
    word_as_json,
)
from antiphon.parsers.calls.typed_values import Value, as_json, inner, overlap, quoted


class State(IntEnum):
    ARGUMENT = 0
    NAMED = 1
    KEY = 2
    COLON = 3
    VALUE = 4
    NEXT = 5
    GLUE = 6
    STRING = 7
    WORD = 8
    DONE = 9
    BROKEN = 10


ARGUMENT, NAMED, KEY, COLON, VALUE, NEXT, GLUE, STRING, WORD, DONE, BROKEN = State  # looked up on the token path


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


_SHORT: Final = 64
LONGEST_WORD: Final = 1024
_PREFIXES: Final = frozenset({"r", "u", "b", "f", "rb", "br", "rf", "fr"})
_ASSIGNS: Final = frozenset(":=")
_AFTER_TEXT: Final = frozenset({",", ")", "]", "}", ":"})
_CONSTANTS: Final = {"True": "true", "False": "false", "None": "null"}
_OPERATORS: Final = frozenset("+%*")  # a string that is computed: no literal


class Literals:
    """Begins after the opener."""

    def __init__(self, script: Script, parameters: Parameters, budget: Budget) -> None:
        self._script = script
        self._parameters = parameters
        self._budget = budget
        self._outermost = ARGUMENT if script.python else KEY
        self._state = self._outermost
        self._nest = Nest(script.closer)
        self._levels = self._nest.levels
        self._role = self._state  # of the word or the string that is read
        self._word: list[str] = []
        self._length = 0  # of the word
        self._quote = ""
        self._gap: list[str] = []  # space after a string
        self._raw = False  # a backslash is a backslash
        self._value: Value | None = None  # of a string that the schema may call something else
        self._types = ANY  # of the outermost value
        self._given: set[str] = set()

    @property
    def begun(self) -> bool:
        """Whether it begins as arguments do: there is a value, or the end."""
        return self._nest.begun

    @property
    def done(self) -> bool:
        return self._state is DONE

    @property
    def broken(self) -> bool:
        return self._state is BROKEN

    def taken(self) -> str:
        """The JSON since it was last asked for."""
        return self._nest.taken()

    def flow(self, text: str) -> str:
        """What this adds to a string in whose middle it is; nothing: that has to be looked at."""
        if self._state is not STRING or self._role is KEY or self._value is not None:
            return ""
        return "" if self._quote[0] in text or (self._script.python and "\\" in text) else inner(text)

    def waits(self) -> Wait:
        """For the end of a value; but a string flows once it has begun."""
        flows = self._state is GLUE or (self._state is STRING and self._role is not KEY)
        return self._script.flows if flows else self._script.waits

    def feed(self, text: str, at: int) -> tuple[int, bool]:
        """Where it stopped, and whether to go on from there; else the rest is to come again, with more."""
        more, end = True, len(text)
        while more and at < end:
            state = self._state
            if state is STRING:
                at, more = self._go_on_text(text, at)
            elif state is WORD:
                at = self._go_on_word(text, at)
            elif state is GLUE:
                at, more = self._glue(text, at)
            elif state is DONE or state is BROKEN:
                break
            elif text[at].isspace():
                at = after_space(text, at)
            else:
                at, more = self._between(text, at)
        return at, more

    def finish(self) -> str:
        """What is missing to make it whole. A name without a value, a quote or an escape that was cut: forgotten."""
        if self._state is STRING and self._role is not KEY:
            self._nest.say('"' if self._value is None else self._value.finish(cut=True))
        elif self._state is GLUE:
            self._nest.say('"')
        elif self._state is WORD and self._role is VALUE:
            self._end_word("")
        while self._levels:
            self._nest.close()
        return self.taken()

    # Between words and strings.

    def _between(self, text: str, at: int) -> tuple[int, bool]:
        char, state, level = text[at], self._state, self._levels[-1]
        if state is ARGUMENT:
            if end := self._arguments(text, at):
                return end, True
            if len(text) - at < _SHORT and text[at:].isidentifier():
                return at, False  # more of a name may come
        if state is NEXT:
            return self._next(char, at)
        if state is NAMED or state is COLON:
            return self._assign(char, at)
        if char == level.closer:
            return self._break(at) if state is VALUE and not level.is_list else self._close(at)
        return self._begin(text, at)

    def _next(self, char: str, at: int) -> tuple[int, bool]:
        level = self._levels[-1]
        if char == level.closer:
            return self._close(at)
        if char != ",":
            return self._break(at)
        if len(self._levels) == 1:
            self._state = self._outermost
        else:
            self._state = VALUE if level.is_list else KEY
        return at + 1, True

    def _assign(self, char: str, at: int) -> tuple[int, bool]:
        named = self._state is NAMED
        if char not in _ASSIGNS:
            return self._nameless_word(char, at) if named else self._set(char, at)
        self._state = VALUE
        if named:
            self._name(self._word[0])
        return at + 1, True

    def _set(self, char: str, at: int) -> tuple[int, bool]:
        """{1, 2}: what seemed to be a name is a value."""
        level = self._levels[-1]
        if level.used or len(self._levels) == 1 or (char != "," and char != level.closer):
            return self._break(at)
        word = "".join(self._word)
        self._nest.name_is_value(f'"{word}"' if self._quote else word_as_json(word))
        self._state = NEXT
        return at, True

    def _break(self, at: int) -> tuple[int, bool]:
        self._state = BROKEN
        return at, True

    def _close(self, at: int) -> tuple[int, bool]:
        self._nest.close()
        self._state = NEXT if self._levels else DONE
        return at + 1, True

    # What begins.

    def _begin(self, text: str, at: int) -> tuple[int, bool]:
        quote = self._script.quote_at(text, at)
        if quote is None:
            return at, False
        if not quote and text[at] in NUMERIC and self._state is VALUE and self._levels[-1].is_list:
            run, end = number_run(text, at)
            if run:
                self._nest.item(run)
                return end, True
        if not self._budget.take():
            return self._break(at)
        if quote:
            return self._begin_text(text, quote, at)
        if text[at] in _OPENERS and self._state is not KEY:
            return self._open(text, at)
        if text[at] in self._script.key_ends:
            return self._break(at)
        self._role, self._state = self._state, WORD
        self._word.clear()
        self._length = 0
        return self._go_on_word(text, at), True

    def _arguments(self, text: str, at: int) -> int:
        """Plain ones, with the comma after each, and what opens the next: where they end, or 0."""
        end, name, said = plain_arguments(text, at, self._given, self._budget)
        self._nest.items(said, name)
        if name:
            self._state = VALUE
            return self._open(text, end)[0]
        if not end or text[end] == ")":
            return end and self._close(end)[0]
        return end + (2 if text.startswith(" ", end + 1) else 1)

    def _open(self, text: str, at: int) -> tuple[int, bool]:
        if len(self._levels) >= DEEPEST or not self._has_name():
            return self._break(at)
        self._nest.begin(text[at])
        self._state = KEY if text[at] == "{" else VALUE
        if not self._script.python:
            return at + 1, True
        end, key, said = plain_items(text, at + 1, text[at] == "{", self._budget)
        self._nest.items(said, key)
        if key:
            self._state = VALUE
            return end, True
        return self._next(text[end], end) if said else (at + 1, True)

    def _name(self, name: str) -> None:
        """What comes is the value of this."""
        self._nest.name(quoted(name))
        if len(self._levels) > 1:
            return
        if not self._script.python:
            self._types = self._parameters.types(name)
        if name in self._given:
            self._state = BROKEN
        self._given.add(name)

    def _has_name(self) -> bool:
        """Arguments without a name have those of the schema, in its order; there may be none."""
        if self._state is not ARGUMENT:
            return True
        name = next((name for name in self._parameters.names if name not in self._given), None)
        if name is not None:
            self._name(name)
        return name is not None

    # Strings.

    def _short_text(self, text: str, at: int) -> int:
        """All of a string without escapes that is here, with what follows it: most are. Where to go on, or 0."""
        end = text.find(text[at], at + 1, at + _SHORT)
        following = text[end + 1 : end + 2]
        if end < at + 2 or following not in _AFTER_TEXT or "\\" in (said := text[at + 1 : end]):
            return 0
        if self._state is not KEY:
            if self._raw or not self._has_name() or self._state is BROKEN:
                return 0
            self._nest.item(quoted(said))
            self._state = NEXT
            if following != ",":
                return end + 1
            end = self._next(following, end + 1)[0]
        elif following == ":" and len(self._levels) > 1:
            self._nest.name(quoted(said))
            self._state = VALUE
            end += 2
        else:
            return 0
        return end + text.startswith(" ", end)

    def _begin_text(self, text: str, quote: str, at: int) -> tuple[int, bool]:
        if self._script.python and (end := self._short_text(text, at)):
            return end, True
        if not self._has_name():
            return self._break(at)
        self._quote, self._role, self._state = quote, self._state, STRING
        if self._role is KEY:
            self._word.clear()
            return at + len(quote), True
        types = self._types
        if not self._script.python and len(self._levels) == 1 and types is not ANY and "string" not in types:
            self._value = Value(types)
        self._nest.item('"' if self._value is None else "")
        return at + len(quote), True

    def _go_on_text(self, text: str, at: int) -> tuple[int, bool]:
        quote = self._quote
        end = end_of_string(text, at, quote) if self._script.python else text.find(quote, at)
        if end >= 0:
            self._say_text(text[at:end])
            self._end_text()
            return end + len(quote), True
        cut = len(text) - overlap(text, quote)
        end = whole_until(text, at, quote) if self._script.python else max(at, cut)
        self._say_text(text[at:end])
        return end, False

    def _say_text(self, text: str) -> None:
        if self._value is not None:
            self._nest.say(self._value.feed(text))
            return
        plain = self._raw or not self._script.python
        said = inner(text) if plain else self._budget.escapes.turned(text)
        if self._role is KEY:
            self._word.append(said)
        else:
            self._nest.say(said)

    def _end_text(self) -> None:
        if self._role is KEY:
            self._state = COLON
            word = "".join(self._word)
            if len(self._levels) == 1:
                self._name(json.loads(f'"{word}"'))
            self._nest.name(f'"{word}"')
        elif self._script.python:
            self._state = GLUE
            self._gap.clear()
        else:
            self._nest.say('"' if self._value is None else self._value.finish())
            self._value = None
            self._state = NEXT

    def _glue(self, text: str, at: int) -> tuple[int, bool]:
        """After a quote: what follows tells whether it has ended the string."""
        begin = after_space(text, at)
        self._gap.append(text[at:begin])
        if begin == len(text):
            return begin, False
        char = text[begin]
        if char in _AFTER_TEXT:
            self._nest.say('"')
            self._raw = False
            self._state = NEXT
            return begin, True
        quote = self._script.quote_at(text, begin)
        if quote is None:
            return begin, False
        if char in _OPERATORS or not self._budget.take():
            return self._break(begin)
        self._state = STRING
        if quote:
            self._quote = quote
        else:
            self._nest.say(inner(self._quote + "".join(self._gap)))
        return begin + len(quote), True

    # Words.

    def _go_on_word(self, text: str, at: int) -> int:
        ends = self._script.word_ends if self._role is VALUE else self._script.key_ends
        end, most = at, min(len(text), at + LONGEST_WORD + 1 - self._length)
        while end < most and text[end] not in ends:
            end += 1
        self._word.append(text[at:end])
        self._length += end - at
        if self._length > LONGEST_WORD:
            self._state = BROKEN
        elif end < len(text):
            self._end_word(text[end])
        return end

    def _end_word(self, following: str) -> None:
        word = "".join(self._word).strip()
        self._word = [word]
        self._quote = ""
        if self._role is ARGUMENT:
            self._state = NAMED
        elif self._role is KEY:
            self._state = COLON
            self._name(_CONSTANTS.get(word, word))
        else:
            self._value_is(word, following)

    def _nameless_word(self, following: str, at: int) -> tuple[int, bool]:
        self._state = ARGUMENT
        if not self._has_name():
            return self._break(at)
        self._value_is(self._word[0], following)
        return at, True

    def _value_is(self, word: str, following: str) -> None:
        """A word; or letters before a string, such as r."""
        if self._script.python and following in self._script.firsts and word.lower() in _PREFIXES:
            self._raw = "r" in word.lower()
            self._state = VALUE
            return
        types = self._types if len(self._levels) == 1 else ANY
        if is_plain_number(word):
            self._budget.left += 1
            self._nest.item(quoted(word) if types == TEXT and not self._script.python else word)
        else:
            self._nest.item(word_as_json(word) if self._script.python else as_json(word, types))
        self._state = NEXT

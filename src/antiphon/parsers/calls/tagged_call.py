"""One call whose name and parameters stand between tags: <function=f><parameter=a>1</parameter></function>.

    NAME ──▶ BODY ──opening of a parameter──▶ KEY ──▶ (GAP) ──▶ VALUE ──its end──▶ BODY … ──closing──▶ OVER
      └──no name: MISFIT

A parameter that was not closed ends where the next begins, or the call ends. What stands between parameters is
nobody's, unless there are none and it is the arguments as JSON; if the output ends with it, it was text.
"""

from enum import IntEnum
from functools import cache
from typing import Final

from msgspec import Struct

from antiphon.core.deltas import CallDelta, CallDone, CallStarted
from antiphon.parsers.calls.base import Piece
from antiphon.parsers.calls.delimited_calls import GATHERED, Wait, after_space
from antiphon.parsers.calls.marker_search import Finder, Search
from antiphon.parsers.calls.parameter_schemas import ANY, TEXT, UNKNOWN, Offered
from antiphon.parsers.calls.typed_values import Value, json_object, quoted, whole

LONGEST_NAME: Final = 256
MOST_PARAMETERS: Final = 320
NO_NAME: Final = frozenset(" \t\r\n<>{}()[]\"'`=,;\\")
WAIT_FOR_TAG: Final = Wait(frozenset(">"))
_WAIT_FOR_NAME: Final = Wait(NO_NAME - frozenset("\t\r\n<\"'="))  # a tag ends, or what cannot be in one


class Tags(Struct, frozen=True, kw_only=True):
    """How a family writes a call. Where `name_ends` is empty the name stands in the tag, as parameters' names do."""

    call: str  # what comes before the name
    name_ends: tuple[str, ...] = ()  # tags that may come after a name that stands alone
    call_ends: tuple[str, ...]
    key: str  # what comes before the name of a parameter
    key_end: str = ">"
    value: str = ""  # what comes before the value, if not the key alone
    value_end: str
    lead: str = ""  # of these, one before and one after the value are the format's
    tail: str = ""
    typed_by: str = ""  # an attribute of the tag says whether it is a string
    text_type: str = "true"  # its value, if so


class Lookout:
    """What all calls of an answer share: each text is searched once for each mark, and parameters are bounded."""

    def __init__(self, tags: Tags, stops: tuple[str, ...]) -> None:
        """`stops`: marks that end a call that was not closed."""
        self._body, self._value, self.waits, self.waits_whole, self.flows = _finders(tags, stops)
        self._text = ""
        self._between: Search | None = None
        self._within: Search | None = None
        self.left = MOST_PARAMETERS

    @property
    def spent(self) -> bool:
        return self.left <= 0

    def look(self, text: str) -> None:
        self._text, self._between, self._within = text, None, None

    def between(self, at: int) -> tuple[int, str]:
        """The next mark between parameters."""
        if self._between is None:
            self._between = self._body.over(self._text)
        return self._between.next(at)

    def within(self, at: int) -> tuple[int, str]:
        """The next mark that ends a value."""
        if self._within is None:
            self._within = self._value.over(self._text)
        return self._within.next(at)

    def open_end(self, text: str) -> int:
        """Of a value: from where on it may be the beginning of what ends it."""
        return self._value.open_end(text)

    def may_end(self, text: str) -> bool:
        """Whether the end of a value, or the beginning of it, may be in there."""
        return self._value.may_be_in(text)


class State(IntEnum):
    NAME = 0
    BODY = 1
    KEY = 2
    GAP = 3
    VALUE = 4
    OVER = 5
    MISFIT = 6


NAME, BODY, KEY, GAP, VALUE, OVER, MISFIT = State  # looked up on the token path


class TaggedCall:
    """`strict`: only what is offered can be called."""

    def __init__(self, number: int, tags: Tags, offered: Offered, strict: bool, lookout: Lookout) -> None:
        self.number = number
        self._tags = tags
        self._offered = offered
        self._strict = strict
        self._lookout = lookout
        self._state = NAME
        self._parameters = UNKNOWN
        self._value: Value | None = None  # of which only a part is here
        self._prefix = ""  # the name of a value of which nothing was said yet
        self._seen: set[str] = set()
        self._key = ""
        self._types = ANY
        self._junk: list[str] = []
        self.started = False
        self.over = False
        self.misfit = False

    def flow(self, text: str) -> str:
        """What this adds to a string in whose middle it is; nothing: that has to be looked at."""
        value = self._value
        if value is None or self._prefix or self._lookout.may_end(text):
            return ""
        return value.flow(text)

    def waits(self) -> Wait:
        """For the end of a parameter. A string flows once it has begun; any other value is read when it is whole."""
        if self._state is NAME:
            return _WAIT_FOR_NAME
        if self._state is not VALUE or self._value is None:
            return self._lookout.waits
        return self._lookout.waits_whole if self._value.waits else self._lookout.flows

    def feed(self, text: str, at: int, out: list[Piece]) -> tuple[int, bool]:
        more = True
        while more and at < len(text) and self._state < OVER:
            state = self._state
            if state is VALUE:
                at, more = self._read_value(text, at, out)
            elif state is BODY:
                at, more = self._body(text, at, out)
            elif state is KEY:
                at, more = self._read_key(text, at, out)
            elif state is GAP:
                at, more = self._gap(text, at)
            else:
                at, more = self._name(text, at, out)
        return at, more

    def finish(self, held: str, out: list[Piece]) -> str:
        """A tag that was cut is no part of a value."""
        text = ""
        if self._state is VALUE:
            self._finish_value(held, out)
        elif self._state is BODY:
            text = "".join(self._junk) + held
            self._junk.clear()
        self._end(out)
        return text if text.strip() else ""

    def _finish_value(self, held: str, out: list[Piece]) -> None:
        if self._value is None:  # nothing of it was looked at
            self._value = Value(self._types, self._tags.lead, self._tags.tail)
            self._say(self._value.feed(held[: self._lookout.open_end(held)]), out)
        self._say(self._value.finish(cut=True), out)

    # The name.

    def _name(self, text: str, at: int, out: list[Piece]) -> tuple[int, bool]:
        name, end = self._alone(text, at) if self._tags.name_ends else self._in_tag(text, at)
        if end < 0:
            return at, False
        if not is_name(name) or (self._strict and name not in self._offered):
            self._state = MISFIT
            self.misfit = True
            return at, True
        self._state = BODY
        self.started = True
        self._parameters = self._offered.parameters(name)
        out.append(CallStarted(self.number, name))
        return end, True

    def _in_tag(self, text: str, at: int) -> tuple[str, int]:
        """Nothing and a place: it is none; a place before the text: more has to come."""
        key_end = self._tags.key_end
        end = text.find(key_end, at, at + LONGEST_NAME)
        said = text[at : end if end >= 0 else at + LONGEST_NAME]
        if "\n" in said or (end < 0 and len(said) == LONGEST_NAME):
            return "", 0
        return (_unquoted(said)[0], end + len(key_end)) if end >= 0 else ("", -1)

    def _alone(self, text: str, at: int) -> tuple[str, int]:
        end = text.find("<", at, at + LONGEST_NAME)
        name = text[at : end if end >= 0 else at + LONGEST_NAME].strip()
        if end < 0:
            begun = len(text) - at < LONGEST_NAME and (not name or is_name(name))
            return "", -1 if begun else 0
        for mark in self._tags.name_ends:
            if text.startswith(mark, end):
                return name, end + len(mark) * (mark not in (self._tags.key, *self._tags.call_ends))
            if _begins(mark, text, end):
                return "", -1
        return "", 0

    # Between parameters.

    def _body(self, text: str, at: int, out: list[Piece]) -> tuple[int, bool]:
        place, mark = self._lookout.between(at)
        if place > at:
            self._junk.append(text[at:place])
        if not mark:
            return place, False
        if mark == self._tags.key:
            self._state = KEY
        elif mark in self._tags.call_ends:
            self._arguments_at_once(out)
            self._end(out)
        else:
            self._end(out)
            return place, True
        return place + len(mark), True

    def _arguments_at_once(self, out: list[Piece]) -> None:
        """No parameters, but JSON instead of them."""
        if not self._seen and (said := json_object("".join(self._junk))):
            self._seen.add("")
            out.append(CallDelta(self.number, said[:-1]))

    def _read_key(self, text: str, at: int, out: list[Piece]) -> tuple[int, bool]:
        end = text.find(self._tags.key_end, at, at + LONGEST_NAME)
        if end < 0 and len(text) - at < LONGEST_NAME:
            return at, False
        self._junk.clear()
        self._key, attributes = _unquoted(text[at:end]) if end >= 0 else ("", "")
        self._lookout.left -= 1
        if self._lookout.spent:  # the arguments stay open: nobody shall run what has lost a part
            self._over(out)
            return at, True
        if not self._key or self._key in self._seen:
            self._state = BODY
            return max(at, end), True
        self._types = self._parameters.types(self._key)
        if self._tags.typed_by and (said := _attribute(attributes, self._tags.typed_by)):
            self._types = TEXT if said == self._tags.text_type else self._types - TEXT
        self._state = GAP
        end += len(self._tags.key_end)
        return end if self._tags.value else self._begin_value(end), True

    def _gap(self, text: str, at: int) -> tuple[int, bool]:
        begin = after_space(text, at)
        if text.startswith(self._tags.value, begin):
            return self._begin_value(begin + len(self._tags.value)), True
        if begin == len(text) or _begins(self._tags.value, text, begin):
            return begin, False
        self._state = BODY
        return begin, True

    # A value.

    def _begin_value(self, at: int) -> int:
        self._prefix = ("," if self._seen else "{") + quoted(self._key) + ":"
        self._seen.add(self._key)
        self._value, self._state = None, VALUE
        return at

    def _read_value(self, text: str, at: int, out: list[Piece]) -> tuple[int, bool]:
        place, mark = self._lookout.within(at)
        tags = self._tags
        if not mark and self._value is None and len(text) - at < GATHERED:
            return at, False  # most are short
        if self._value is None and mark:
            self._say(whole(text[at:place], self._types, tags.lead, tags.tail), out)
        elif place > at:
            self._value = self._value or Value(self._types, tags.lead, tags.tail)
            self._say(self._value.feed(text[at:place]), out)
        if not mark:
            return place, False
        if self._value is not None:
            self._say(self._value.finish(), out)
            self._value = None
        self._state = BODY
        return place + len(mark) * (mark == tags.value_end), True

    def _say(self, piece: str, out: list[Piece]) -> None:
        if piece:
            out.append(CallDelta(self.number, self._prefix + piece))
            self._prefix = ""

    def _end(self, out: list[Piece]) -> None:
        out.append(CallDelta(self.number, "}" if self._seen else "{}"))
        self._over(out)

    def _over(self, out: list[Piece]) -> None:
        out.append(CallDone(self.number))
        self._state = OVER
        self.over = True


@cache
def _finders(tags: Tags, stops: tuple[str, ...]) -> tuple[Finder, Finder, Wait, Wait, Wait]:
    """Between parameters, and within one. Waits for a parameter, for the rest of a value, and in a string."""
    body = Finder(*dict.fromkeys((tags.key, *tags.call_ends, *stops)))
    value = Finder(*dict.fromkeys((tags.value_end, tags.key, *tags.call_ends)))
    flows = Wait(beginnings=value.beginnings)
    ends = (tags.value_end, *tags.call_ends)
    return body, value, Wait(WAIT_FOR_TAG.chars, ends), Wait(frozenset("<"), (), value.beginnings), flows


def is_name(name: str) -> bool:
    return 0 < len(name) <= LONGEST_NAME and NO_NAME.isdisjoint(name)


def _begins(mark: str, text: str, at: int) -> bool:
    return len(text) - at < len(mark) and mark.startswith(text[at:])


def _unquoted(said: str) -> tuple[str, str]:
    """A name, and the attributes after it if it is in quotes."""
    said = said.strip()
    if said[:1] in ('"', "'"):
        name, _, attributes = said[1:].partition(said[0])
        return name.strip(), attributes
    return said, ""


def _attribute(said: str, name: str) -> str:
    """`string="true"`: true."""
    _, found, value = said.partition(name + "=")
    return value.strip("\"'").partition('"')[0] if found else ""

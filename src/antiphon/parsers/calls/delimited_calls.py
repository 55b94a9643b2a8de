"""Calls between marks, whatever is written between them: the frame that families of one kind fill in.

    OUTSIDE ──opening──▶ INSIDE ──(a call begins)──▶ (a call) ──▶ INSIDE ──closing──▶ OUTSIDE
                           └──anything else──▶ OUTSIDE: if there was no call, it was text all along

How a call begins, and how it is read, is the family's. An answer full of beginnings that come to nothing is text from
some point on: time is bounded, whatever a model says. Most tokens of a call decide nothing by themselves, such as those
of a mark, a name or a tag: they are gathered, and looked at once with the token that does.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import ClassVar, Final, NamedTuple, Protocol

from msgspec import Struct

from antiphon.core.deltas import CallDelta
from antiphon.core.prompt import Grammar, Json
from antiphon.parsers.calls.arguments import Flow
from antiphon.parsers.calls.base import Piece, Said, Wish
from antiphon.parsers.calls.marker_search import Finder, Search

MOST_CALLS: Final = 64
MOST_FAILURES: Final = 128
MOST_MARKS: Final = 8  # one after the other, without a call
GATHERED: Final = 64  # characters at most
_STRIDE: Final = 64


class Wait(NamedTuple):
    """What is gathered: text without any of these characters (None: no text), or with them if none of the ends is in
    all that was gathered; and what is such a beginning."""

    chars: frozenset[str] | None = None
    ends: tuple[str, ...] = ()
    beginnings: frozenset[str] = frozenset()


class Frame(Struct, frozen=True, kw_only=True):
    openings: tuple[str, ...] = ()
    closings: tuple[str, ...] = ()
    between: tuple[str, ...] = ()  # what else stands around calls, and is nobody's
    bare: tuple[str, ...] = ()  # with what a call begins that no opening came before
    offered: bool = True  # such a call must name a tool that is offered
    controls: tuple[str, ...] = ()


class OneCall(Protocol):
    number: int

    @property
    def started(self) -> bool: ...

    @property
    def over(self) -> bool: ...

    @property
    def misfit(self) -> bool: ...

    def feed(self, text: str, at: int, out: list[Piece]) -> tuple[int, bool]:
        """Where it stopped, and whether to go on from there; else the rest is to come again, with more."""

    def finish(self, held: str, out: list[Piece]) -> str:
        """The output is over, and the call with it. What it can make nothing of is given back."""

    def flow(self, text: str) -> str:
        """What this adds to a string in whose middle it is; nothing: that has to be looked at."""

    def waits(self) -> Wait:
        """For what, after what it was fed."""


class MarkedCalls:
    frame: ClassVar[Frame]

    def __init__(self, tools: Mapping[str, Json], fresh: bool = False) -> None:
        self._tools = tools
        self._outer, self._inner, self._marks = _finders(self.frame)
        self._firsts = self._outer.firsts
        self._outer_wait = Wait(beginnings=self._outer.beginnings_and_marks)
        self._inner_wait = Wait(beginnings=self._inner.beginnings_and_marks)
        self._begun_wait = self._inner_wait  # inside, if something is held
        self._entry_wait = self._outer_wait  # after an opening, or one of these if nothing was said: for the first call
        self._entries: tuple[str, ...] = ()
        self._fed = 0  # characters before the buffer
        self._held = ""
        self._busy = fresh  # it is not just outside, with nothing held
        self._wait = self._outer_wait
        self._flow: Flow | None = None  # what the arguments of the call can be fed to
        self._inside = False
        self._fresh = fresh  # nothing but space was said yet, and that matters to the family
        self._wrapped = False  # by an opening mark
        self._called = False  # there was a call since then
        self._raw: list[str] = []  # all since then that may be text in the end
        self._idle = 0  # marks since then, or since the last call
        self._call: OneCall | None = None
        self._calls = 0
        self._failures = 0
        self._deaf = False  # all that follows is text

    @property
    def openings(self) -> tuple[str, ...]:
        return self.frame.openings + self.frame.bare

    @property
    def controls(self) -> tuple[str, ...]:
        return self.frame.controls

    def grammar(self, wish: Wish) -> Grammar | None:
        return None

    def feed(self, text: str) -> Sequence[Piece]:
        if not self._busy and (self._deaf or self._firsts.isdisjoint(text)):
            self._fed += len(text)
            return (Said(text, self._fed),) if text else ()
        (chars, ends, beginnings), held, call = self._wait, self._held, self._call
        if chars is not None and len(held) < GATHERED and (chars.isdisjoint(text) or _lacks(ends, held + text)):
            self._held += text
            return ()
        if held:
            text = held + text
        if self._flow is not None:
            return self._stream(self._flow, text)
        if call is not None and not held and (said := call.flow(text)):
            self._fed += len(text)
            return (CallDelta(call.number, said),)
        if text in beginnings:
            self._held, self._busy = text, True
            return ()
        if not self._inside:
            if len(text) < self._outer.shortest and not self._fresh:
                return self._hold(text)
            entries = self._entries if self._fresh else self.frame.openings
            if self._wait is not self._entry_wait and len(text) < GATHERED and text.startswith(entries):
                self._held, self._busy, self._wait = text, True, self._entry_wait
                return ()
        out: list[Piece] = []
        self._go(text, out)
        return out

    def finish(self) -> Sequence[Piece]:
        out: list[Piece] = []
        if self._held:
            self._go(self._held, out)  # it may have been gathered only
        held, self._held = self._held, ""
        self._fed += len(held)
        call = self._call
        if call is not None and call.started:
            held = call.finish(held, out)
            self._raw.clear()
        elif self._called and self._inside and self._inner.begins(held, 0):
            held = ""  # a mark after a call that was cut
        self._raw.append(held)
        self._inside, self._call = False, None
        self._say_raw(0, out)
        return out

    # What a family says.

    def _stream(self, flow: Flow, text: str) -> Sequence[Piece]:
        """On the token path: most of most calls is arguments, which need nobody but the one who mends them."""
        raise NotImplementedError

    def _begin(self, text: str, at: int, wrapped: bool) -> tuple[OneCall | None, int]:
        """The call that begins here, and where it goes on; no call and -1: the rest may be the beginning of one."""
        raise NotImplementedError

    def _is_spent(self) -> bool:
        """Whether the answer had all that a family bounds: asked after each call, and what was to be one."""
        return False

    # Going through the text.

    def _hold(self, text: str) -> Sequence[Piece]:
        """It is too short to have a mark in it, and may end with the beginning of one."""
        end = self._outer.open_end(text)
        self._held = text[end:]
        self._fed += end
        self._settle()
        return (Said(text[:end], self._fed),) if end else ()

    def _go(self, text: str, out: list[Piece], at: int = 0) -> None:
        search: Search | None = None  # made when it is needed: within a call it is not
        more = True
        while more and at < len(text):
            if self._call is not None:
                at, more = self._go_on(self._call, text, at, out)
            elif self._inside:
                at, more = self._between(text, at, out)
            else:
                search = search or self._outer.over(text)
                at, more = self._outside(text, at, search, out)
        self._held = text[at:]
        self._fed += at
        self._settle()

    def _settle(self) -> None:
        """What may be gathered from here on."""
        if self._call is not None:
            self._busy = True
            self._wait = self._call.waits()
        elif self._inside:
            self._busy = True
            self._wait = self._begun_wait if self._held else self._inner_wait
        else:
            self._busy = self._fresh or bool(self._held)
            self._wait = self._outer_wait

    def _outside(self, text: str, at: int, search: Search, out: list[Piece]) -> tuple[int, bool]:
        place, mark = (len(text), "") if self._deaf else search.next(at)
        if place > at:
            self._say(text[at:place], place, out)
        if not mark:
            return place, False
        self._enter(mark in self.frame.openings)
        if self._wrapped:
            self._raw.append(mark)
            place += len(mark)
        return place, True

    def _enter(self, wrapped: bool) -> None:
        self._inside, self._wrapped, self._called, self._idle = True, wrapped, False, 0

    def _between(self, text: str, at: int, out: list[Piece]) -> tuple[int, bool]:
        """Inside, before a call or after it."""
        begin = self._skip(text, at)
        if begin == len(text):
            return begin, False
        if mark := self._mark_at(text, begin):
            return self._pass_mark(mark, begin, out), True
        call, place = self._begin(text, begin, self._wrapped)
        if call is not None:
            self._raw.append(text[begin:place])
            self._call = call
            return place, True
        if place < 0 or self._inner.begins(text, begin):
            return begin, False
        self._leave(begin, out)
        return begin, True

    def _skip(self, text: str, at: int) -> int:
        """What stands between calls and is none of them; it is text again if text follows."""
        end = after_space(text, at)
        self._raw.append(text[at:end])
        return end

    def _mark_at(self, text: str, at: int) -> str:
        for mark in self._marks:
            if text.startswith(mark, at):
                return mark
        return ""

    def _pass_mark(self, mark: str, at: int, out: list[Piece]) -> int:
        end = at + len(mark)
        if self._called:
            self._raw.clear()
        else:
            self._raw.append(mark)
        self._idle += 1
        if mark in self.frame.closings or self._idle > MOST_MARKS:
            self._leave(end, out)
        elif mark in self.frame.openings:
            self._wrapped = True
        return end

    def _leave(self, place: int, out: list[Piece]) -> None:
        self._inside = False
        if not self._called or self._idle > MOST_MARKS:
            self._failed()
        self._say_raw(place, out)

    def _go_on(self, call: OneCall, text: str, at: int, out: list[Piece]) -> tuple[int, bool]:
        end, more = call.feed(text, at, out)
        if not call.started:
            self._raw.append(text[at:end])
        if call.misfit:
            self._call, self._inside = None, False
            self._failed()
            self._say_raw(end, out)
        elif call.over:
            self._call, self._called, self._idle = None, True, 0
            self._raw.clear()
            self._calls += 1
            self._deaf = self._calls >= MOST_CALLS or self._is_spent()
            self._inside = not self._deaf
        return end, more or call.misfit or call.over

    def _failed(self) -> None:
        self._failures += 1
        self._deaf = self._deaf or self._failures >= MOST_FAILURES or self._is_spent()

    def _say_raw(self, place: int, out: list[Piece]) -> None:
        self._say("".join(self._raw), place, out)
        self._raw.clear()

    def _say(self, text: str, place: int, out: list[Piece]) -> None:
        if text:
            out.append(Said(text, self._fed + place))


@cache
def _finders(frame: Frame) -> tuple[Finder, Finder, tuple[str, ...]]:
    """Of marks outside and inside, and the latter themselves: inside, an end wins."""
    ends = (*frame.closings, *frame.between)
    marks = (*[mark for mark in frame.openings if not mark.startswith(ends)], *ends)
    return Finder(*frame.openings, *frame.bare), Finder(*marks), marks


def _lacks(ends: tuple[str, ...], text: str) -> bool:
    """Whether all of them are still to come, if there are any."""
    for end in ends:
        if end in text:
            return False
    return bool(ends)


def after_space(text: str, at: int) -> int:
    if not text[at : at + 1].isspace():
        return at
    while chunk := text[at : at + _STRIDE]:
        rest = chunk.lstrip()
        at += len(chunk) - len(rest)
        if rest:
            break
    return at

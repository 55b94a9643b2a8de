"""Splits what a model says into thoughts and answer, by the marks of its family (thoughts.py).

    START ──opening──▶ THOUGHT ──closing──▶ GAP ──text──▶ ANSWER ──opening, if it thinks again──▶ THOUGHT
      └──any other text──▶ ANSWER   │        ▲
                                    └────────┘ the mark of a call ends a thought that was left open

Space around the marks is nobody's; all else is kept. Where nothing was said yet a closing mark ends nothing and is
dropped; in the middle of an answer marks are text, save those of a model that thinks again, on a line of their own.

The closing mark of an answer, such as </answer>: where nothing but space follows, it was no part of the answer.

Space around it is nobody's either. A mark that text follows was quoted, unless it is a control token: models do not
quote those.
"""

from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Final

from antiphon.core.deltas import Thought
from antiphon.parsers.calls.base import Said
from antiphon.parsers.calls.marker_search import Finder, Search
from antiphon.parsers.reasoning.formats import Marks

MAX_CLOSING_MARKERS: Final = 64  # marks in an answer; where there are more, they are text


class Ending:
    def __init__(self, mark: str, control: bool) -> None:
        self._finder = Finder(mark)
        self._control = control
        self._fed = 0  # where what was fed ends
        self._held = ""  # what may be the beginning of the mark
        self._tail: list[str] = []  # space and marks, which count only if text follows
        self._marked = False
        self._seen = 0

    def feed(self, said: Said) -> Sequence[Said]:
        out: list[Said] = []
        if not self._held and not self._finder.may_be_in(said.text):
            self._fed = said.end
            if not (self._tail or self._marked or said.text[-1].isspace()):
                return (said,)
            self._say(said.text, said.end, out)
            return out
        text, self._fed = self._held + said.text, said.end
        search, before, at, more = self._finder.over(text), said.end - len(text), 0, True
        while more and at < len(text):
            place, mark = search.next(at) if self._seen < MAX_CLOSING_MARKERS else (len(text), "")
            self._say(text[at:place], before + place, out)
            at, more = place + len(mark), bool(mark)
            if mark:
                self._close(mark)
        self._held = text[at:]
        return out

    def finish(self) -> Sequence[Said]:
        """A mark that was cut is text: nobody knows what it would have become."""
        left = ("" if self._marked else "".join(self._tail)) + self._held
        self._held = ""
        self._tail.clear()
        return (Said(left, self._fed),) if left else ()

    def _close(self, mark: str) -> None:
        self._marked = True
        self._seen += 1
        if self._control:
            self._tail.clear()
        else:
            self._tail.append(mark)

    def _say(self, text: str, end: int, out: list[Said]) -> None:
        if self._control and self._marked:
            text = text.lstrip()
        if body := text.rstrip():
            out.append(Said("".join([*self._tail, body]), end - len(text) + len(body)))
            self._tail.clear()
            self._marked = False
        if len(body) < len(text):
            self._tail.append(text[len(body) :])


PATIENCE: Final = 64  # thoughts and quoted marks of an answer; where there are more, a mark is text
LINE: Final = frozenset("\n")  # after it a line begins
DONE: Final = frozenset("\n>]}")  # and after these what comes after a call
Part = Thought | Said


class Phase(IntEnum):
    START = 0
    THOUGHT = 1
    GAP = 2
    ANSWER = 3


# On the token path: to look up a member of an enumeration takes longer than all else.
THOUGHT: Final = Phase.THOUGHT
GAP: Final = Phase.GAP
ANSWER: Final = Phase.ANSWER


class Splitter:
    """`opened`: the prompt has opened the thought. `calls`: marks with which a call begins, `sure`: none but a call."""

    def __init__(
        self, marks: Marks, opened: bool = False, calls: tuple[str, ...] = (), sure: tuple[str, ...] = ()
    ) -> None:
        self.answering = False  # all that is still to come is the answer
        self._marks = marks
        self._again = marks.again
        self._opened = opened
        self.brackets = False  # whether a bracket at the beginning is the answer's, though a thought is opened
        self._strays = tuple([mark for mark in marks.closing if not mark[0].isalpha()])
        self._answers = {around.opening: around.closing for around in marks.answer}
        self._edges, self._opening, self._closing = _finders(marks, self._strays, calls)
        self._calls, self._sure = frozenset(calls), frozenset(sure)
        self._phase = Phase.START
        self._ahead: Search  # for what ends a thought
        self._ending: Ending | None = None
        self._fed = 0  # characters before the buffer
        self._held = ""
        self._blank: list[str] = []  # space that counts only if something follows it
        self._thinking = False  # a thought has begun, not only its mark
        self._thought = False  # there was one
        self._fresh = True  # a line begins, or something has just ended
        self._seen = 0  # marks

    def feed(self, text: str) -> Sequence[Part]:
        out: list[Part] = []
        if self._thinking and not self._held and not self._closing.may_be_in(text):
            self._fed += len(text)
            if text and not self._blank and not text[-1].isspace():
                self._fresh = False
                return (Thought(text),)
            self._think(text, out)
        elif self._phase is ANSWER and not self._held and not self._opening.may_be_in(text):
            self._fed += len(text)
            if text and self._ending is None and text[-1] not in " \t":
                self._fresh = text[-1] in DONE
                return (Said(text, self._fed),)
            if text and self._ending is not None and not self._again:
                return self._ending.feed(Said(text, self._fed))
            if text:
                self._say(text, 0, out)
        else:
            self._go(self._held + text if self._held else text, out)
        return out

    def finish(self) -> Sequence[Part]:
        out: list[Part] = []
        held, self._held = self._held, ""
        if self._phase is Phase.START:
            self._leave_start(0, out)
        if self._phase is THOUGHT:
            self._think(held, out)
            if self._thinking and (blank := "".join(self._blank)):
                out.append(Thought(blank))
        elif held:
            self._say(held, len(held), out)
        self._blank.clear()
        self._phase = ANSWER
        if self._ending is not None:
            out += self._ending.finish()
        self._ending = None
        return out

    def _go(self, text: str, out: list[Part]) -> None:
        at, more = 0, True
        opening, self._ahead = self._opening.over(text), self._closing.over(text)
        while more and at < len(text):
            match self._phase:
                case Phase.START:
                    at, more = self._start(text, at, out)
                case Phase.THOUGHT:
                    at, more = self._in_thought(text, at, out)
                case Phase.GAP:
                    at, more = self._gap(text, at)
                case Phase.ANSWER:
                    at, more = self._answer(text, at, opening, out)
        self._held = text[at:]
        self._fed += at
        self.answering = self._phase is ANSWER and not (self._again or self._held or self._ending)

    def _start(self, text: str, at: int, out: list[Part]) -> tuple[int, bool]:
        begin = _after_space(text, at)
        self._blank.append(text[at:begin])
        if mark := self._edge(text, begin):
            self._blank.clear()
            return begin + len(mark), True
        if begin == len(text) or self._edges.begins(text, begin):
            return begin, False
        if self.brackets and text[begin] in "{[":
            self._opened = False
        self._leave_start(begin, out)
        return begin, True

    def _leave_start(self, place: int, out: list[Part]) -> None:
        """There was no opening mark: this is the answer, or the prompt had the mark already."""
        blank = "".join(self._blank)
        self._blank.clear()
        self._phase = THOUGHT if self._opened else ANSWER
        if blank and not self._opened:
            self._say(blank, place, out)

    def _gap(self, text: str, at: int) -> tuple[int, bool]:
        begin = _after_space(text, at)
        if self._seen < PATIENCE:
            if mark := self._edge(text, begin):
                self._seen += 1
                return begin + len(mark), True
            if self._edges.begins(text, begin):
                return begin, False
        if begin < len(text):
            self._phase = ANSWER
        return begin, True

    def _edge(self, text: str, at: int) -> str:
        """The mark that stands here, before any answer; and what comes after it."""
        for mark in self._marks.opening:
            if text.startswith(mark, at):
                self._begin_thought()
                return mark
        for mark in self._strays:
            if text.startswith(mark, at):
                self._phase = GAP
                return mark
        for mark, closing in self._answers.items():
            if text.startswith(mark, at) and not (self._opened and self._phase is Phase.START):
                self._ending = Ending(closing, closing in self._marks.controls)
                self._phase = GAP
                return mark
        return ""

    def _begin_thought(self) -> None:
        self._blank = ["\n\n"] if self._thought and self._phase is GAP else []
        self._phase, self._fresh = THOUGHT, True

    def _in_thought(self, text: str, at: int, out: list[Part]) -> tuple[int, bool]:
        place, mark = self._ahead.next(at)
        self._think(text[at:place], out)
        if not mark:
            return place, False
        if not self._ends(mark):
            self._think(mark, out)
            self._count_quote(text)
            return place + len(mark), True
        self._blank.clear()
        self._thinking, self._fresh = False, True
        self._phase = GAP
        return (place if mark in self._calls else place + len(mark)), True

    def _ends(self, mark: str) -> bool:
        """Whether it ends the thought: the mark of a call may be quoted, and stands within a line then."""
        return mark not in self._calls or mark in self._sure or self._fresh

    def _think(self, text: str, out: list[Part]) -> None:
        self._note_end(text, LINE)
        if not self._thinking:
            text = text.lstrip()
        if body := text.rstrip():
            out.append(Thought("".join([*self._blank, body])))
            self._blank.clear()
            self._thinking = self._thought = True
        if len(body) < len(text):
            self._blank.append(text[len(body) :])

    def _answer(self, text: str, at: int, opening: Search, out: list[Part]) -> tuple[int, bool]:
        place, mark = opening.next(at) if self._again else (len(text), "")
        if place > at:
            self._say(text[at:place], place, out)
        if mark in self._marks.opening and (self._fresh or self._marks.anywhere):
            self._begin_thought()
        elif mark and not self._marks.anywhere:
            self._say(mark, place + len(mark), out)
        if mark:
            self._seen += 1
            self._again = self._seen < PATIENCE
        return place + len(mark), bool(mark)

    def _count_quote(self, text: str) -> None:
        self._seen += 1
        if self._seen == PATIENCE:
            self._closing = Finder(*self._marks.closing)
            self._ahead = self._closing.over(text)

    def _say(self, text: str, place: int, out: list[Part]) -> None:
        self._note_end(text, DONE)
        said = Said(text, self._fed + place)
        if self._ending is None:
            out.append(said)
        else:
            out += self._ending.feed(said)

    def _note_end(self, text: str, fresh: frozenset[str]) -> None:
        if text and text[-1] not in " \t":
            self._fresh = text[-1] in fresh
        elif line := text.rstrip(" \t"):
            self._fresh = line[-1] in fresh


@lru_cache(maxsize=256)
def _finders(marks: Marks, strays: tuple[str, ...], calls: tuple[str, ...]) -> tuple[Finder, Finder, Finder]:
    """Of what may stand before an answer, of what begins a thought after it, of what ends a thought."""
    return (
        Finder(*marks.opening, *strays, *[around.opening for around in marks.answer]),
        Finder(*marks.opening, *(strays if marks.anywhere else ())),
        Finder(*marks.closing, *_clear(calls, marks.closing)),
    )


def _clear(calls: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    """Those that no other mark begins with, such as a lone bracket; of several that begin alike, the shortest."""
    clear: list[str] = []
    for mark in sorted(calls, key=len):
        if not any(other.startswith(mark) or mark.startswith(other) for other in (*others, *clear)):
            clear.append(mark)
    return tuple(clear)


def _after_space(text: str, at: int) -> int:
    return len(text) - len(text[at:].lstrip())

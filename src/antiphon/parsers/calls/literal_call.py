"""One call as a name and literals: f(a=1, b='x').

NAME ──opener──▶ (literals) ──▶ OVER
  └──no name, or nothing that arguments begin with: MISFIT
"""

from enum import IntEnum

from antiphon.core.deltas import CallDelta, CallDone, CallStarted
from antiphon.parsers.calls.base import Piece
from antiphon.parsers.calls.literals import Literals
from antiphon.parsers.calls.marked import NO_BEGINNINGS, Awaited
from antiphon.parsers.calls.schemas import Offered
from antiphon.parsers.calls.script import Budget, Script
from antiphon.parsers.calls.tagged_call import LONGEST_NAME, NO_NAME, is_name


class State(IntEnum):
    NAME = 0
    BEGUN = 1
    STARTED = 2
    OVER = 3
    MISFIT = 4


NAME, BEGUN, STARTED, OVER, MISFIT = State  # looked up on the token path


class LiteralCall:
    """`strict`: only what is offered can be called."""

    def __init__(self, number: int, script: Script, offered: Offered, strict: bool, budget: Budget) -> None:
        self.number = number
        self._script = script
        self._offered = offered
        self._strict = strict
        self._budget = budget
        self._state = NAME
        self._called = ""
        self._literals: Literals | None = None

    @property
    def started(self) -> bool:
        return STARTED <= self._state <= OVER

    @property
    def over(self) -> bool:
        return self._state is OVER

    @property
    def misfit(self) -> bool:
        return self._state is MISFIT

    def flow(self, text: str) -> str:
        """What this adds to a string in whose middle it is; nothing: that has to be looked at."""
        return self._literals.flow(text) if self._literals is not None and self._state is STARTED else ""

    def awaits(self) -> Awaited:
        return (NO_NAME, NO_BEGINNINGS) if self._literals is None else self._literals.awaits()

    def feed(self, text: str, at: int, out: list[Piece]) -> tuple[int, bool]:
        more = True
        if self._state is NAME:
            at, more = self._name(text, at)
        literals = self._literals
        if literals is None:
            return at, more
        at, more = literals.feed(text, at)
        if self._state is BEGUN and literals.begun:
            self._state = STARTED
            out.append(CallStarted(self.number, self._called))
        if self._state is STARTED:
            self._say(literals.taken(), out)
            if literals.done or literals.broken:
                self._end(out)
        elif literals.broken:
            self._state = MISFIT
        return at, more

    def finish(self, held: str, out: list[Piece]) -> str:
        if self._literals is not None:
            self._say(self._literals.finish(), out)
        self._end(out)
        return ""

    def _name(self, text: str, at: int) -> tuple[int, bool]:
        opener = self._script.opener
        end = text.find(opener, at, at + LONGEST_NAME)
        name = text[at : end if end >= 0 else at + LONGEST_NAME]
        if end < 0 and is_name(name) and len(text) - at < LONGEST_NAME:
            return at, False
        if end < 0 or not is_name(name) or (self._strict and name not in self._offered):
            self._state = MISFIT
            return at, True
        self._called = name
        self._state = BEGUN
        self._literals = Literals(self._script, self._offered.parameters(name), self._budget)
        return end + len(opener), True

    def _say(self, piece: str, out: list[Piece]) -> None:
        if piece:
            out.append(CallDelta(self.number, piece))

    def _end(self, out: list[Piece]) -> None:
        out.append(CallDone(self.number))
        self._state = OVER

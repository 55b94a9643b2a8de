"""One call as a name and literals: f(a=1, b='x').

(name) ──opener──▶ (literals) ──first value──▶ started ──closer──▶ over
  └──no name, or nothing that arguments begin with: misfit

What all families share that write calls as literals: bounds.
"""

from collections.abc import Mapping

from antiphon.core.deltas import CallDelta, CallDone, CallStarted
from antiphon.core.prompt import Json
from antiphon.parsers.calls.base import Piece
from antiphon.parsers.calls.delimited_calls import MarkedCalls, Wait
from antiphon.parsers.calls.literal_style import Budget, Script
from antiphon.parsers.calls.parameter_schemas import Offered
from antiphon.parsers.calls.python_literals import Literals
from antiphon.parsers.calls.tagged_call import LONGEST_NAME, is_name


class LiteralCall:
    """`strict`: only what is offered can be called."""

    def __init__(self, number: int, script: Script, offered: Offered, strict: bool, budget: Budget) -> None:
        self.number = number
        self._script = script
        self._offered = offered
        self._strict = strict
        self._budget = budget
        self._called = ""
        self._literals: Literals | None = None
        self.started = False
        self.over = False
        self.misfit = False

    def flow(self, text: str) -> str:
        """What this adds to a string in whose middle it is; nothing: that has to be looked at."""
        return self._literals.flow(text) if self._literals is not None and self.started else ""

    def waits(self) -> Wait:
        return self._script.waits if self._literals is None else self._literals.waits()

    def feed(self, text: str, at: int, out: list[Piece]) -> tuple[int, bool]:
        if self._literals is None:
            at, more = self._name(text, at)
        if (literals := self._literals) is None:
            return at, more
        at, more = literals.feed(text, at)
        if not self.started:
            if not literals.begun:
                self.misfit = literals.broken
                return at, more
            self.started = True
            out.append(CallStarted(self.number, self._called))
        self._say(literals.taken(), out)
        if literals.done or literals.broken:
            self._end(out)
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
            self.misfit = True
            return at, True
        self._called = name
        self._literals = Literals(self._script, self._offered.parameters(name), self._budget)
        return end + len(opener), True

    def _say(self, piece: str, out: list[Piece]) -> None:
        if piece:
            out.append(CallDelta(self.number, piece))

    def _end(self, out: list[Piece]) -> None:
        out.append(CallDone(self.number))
        self.over = True


class LiteralCalls(MarkedCalls):
    def __init__(self, tools: Mapping[str, Json], fresh: bool = False) -> None:
        super().__init__(tools, fresh)
        self._budget = Budget()
        self._offered = Offered(tools)

    def _is_spent(self) -> bool:
        return self._budget.spent

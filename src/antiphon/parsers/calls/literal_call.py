"""Parser for one call written as a name and literals: f(a=1, b='x').

(name) ──opener──▶ (literals) ──first value──▶ started ──closer──▶ finished
  └──no name, or nothing that arguments can begin with: rejected

`LiteralCalls` holds the limits that all families with literals share.
"""

from collections.abc import Mapping

from antiphon.core.deltas import CallDelta, CallDone, CallStarted
from antiphon.core.prompt import Json
from antiphon.parsers.calls.base import Piece
from antiphon.parsers.calls.delimited_calls import BufferRule, DelimitedCalls
from antiphon.parsers.calls.literal_style import LiteralBudget, LiteralSyntax
from antiphon.parsers.calls.parameter_schemas import ToolSchemas
from antiphon.parsers.calls.python_literals import LiteralReader
from antiphon.parsers.calls.tagged_call import MAX_NAME_LENGTH, is_name


class LiteralCall:
    """Parses one call. `strict`: only offered tools can be called."""

    def __init__(
        self, number: int, syntax: LiteralSyntax, offered: ToolSchemas, strict: bool, budget: LiteralBudget
    ) -> None:
        self.number = number
        self._syntax = syntax
        self._offered = offered
        self._strict = strict
        self._budget = budget
        self._tool_name = ""
        self._literals: LiteralReader | None = None
        self.started = False
        self.finished = False
        self.rejected = False

    def feed_string(self, text: str) -> str:
        """Return the JSON that this text adds to the open string; "" if the text must go through `feed`."""
        return self._literals.feed_string(text) if self._literals is not None and self.started else ""

    def get_buffer_rule(self) -> BufferRule:
        return self._syntax.value_rule if self._literals is None else self._literals.get_buffer_rule()

    def feed(self, text: str, at: int, out: list[Piece]) -> tuple[int, bool]:
        if self._literals is None:
            at, more = self._read_name(text, at)
        if (literals := self._literals) is None:
            return at, more
        at, more = literals.feed(text, at)
        if not self.started:
            if not literals.has_output:
                self.rejected = literals.is_broken
                return at, more
            self.started = True
            out.append(CallStarted(self.number, self._tool_name))
        self._emit(literals.take_output(), out)
        if literals.is_done or literals.is_broken:
            self._finish_call(out)
        return at, more

    def finish(self, pending: str, out: list[Piece]) -> str:
        if self._literals is not None:
            self._emit(self._literals.finish(), out)
        self._finish_call(out)
        return ""

    def _read_name(self, text: str, at: int) -> tuple[int, bool]:
        opener = self._syntax.opener
        end = text.find(opener, at, at + MAX_NAME_LENGTH)
        name = text[at : end if end >= 0 else at + MAX_NAME_LENGTH]
        if end < 0 and is_name(name) and len(text) - at < MAX_NAME_LENGTH:
            return at, False
        if end < 0 or not is_name(name) or (self._strict and name not in self._offered):
            self.rejected = True
            return at, True
        self._tool_name = name
        self._literals = LiteralReader(self._syntax, self._offered.get_parameters(name), self._budget)
        return end + len(opener), True

    def _emit(self, piece: str, out: list[Piece]) -> None:
        if piece:
            out.append(CallDelta(self.number, piece))

    def _finish_call(self, out: list[Piece]) -> None:
        out.append(CallDone(self.number))
        self.finished = True


class LiteralCalls(DelimitedCalls):
    """Base class of the families that write calls as literals."""

    def __init__(self, tools: Mapping[str, Json], at_start: bool = False) -> None:
        super().__init__(tools, at_start)
        self._budget = LiteralBudget()
        self._offered = ToolSchemas(tools)

    def _is_exhausted(self) -> bool:
        return self._budget.is_exhausted

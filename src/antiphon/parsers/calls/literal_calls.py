"""Calls that are a name and literals: in Python, f(a=1, b='x'), or as in Gemma, f{a:1,b:<escape>x<escape>}.

    (name) ──opener──▶ (literals) ──first value──▶ started ──closer──▶ finished
      └──no name, or nothing that arguments can begin with: rejected

Python calls, [f(a=1), g()], are between markers or at the start of an answer. Without a marker, an answer that begins
with a bracket is a call only if it names an offered tool. Gemma writes call:f{a:<escape>x<escape>,b:1} between markers;
the quotes are markers as well.
"""

from collections.abc import Mapping
from functools import cache
from typing import Final

from antiphon.core.deltas import CallDelta, CallDone, CallStarted
from antiphon.core.prompt import Json
from antiphon.parsers.calls.base import CallFrame, GemmaFrame, Piece, PythonFrame
from antiphon.parsers.calls.delimited_calls import (
    MAX_IDLE_MARKERS,
    BufferRule,
    CallParser,
    DelimitedCalls,
    MarkerFinder,
    ValueBudget,
    skip_space,
)
from antiphon.parsers.calls.python_literals import LiteralReader, LiteralSyntax
from antiphon.parsers.calls.tagged_calls import MAX_NAME_LENGTH, is_name
from antiphon.parsers.calls.typed_values import ToolSchemas


class LiteralCall:
    """Parses one call. `strict`: only offered tools can be called."""

    def __init__(
        self, number: int, syntax: LiteralSyntax, offered: ToolSchemas, strict: bool, budget: ValueBudget
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
            if not literals.writer.has_output:
                self.rejected = literals.is_broken
                return at, more
            self.started = True
            out.append(CallStarted(self.number, self._tool_name))
        self._emit(literals.writer.take_output(), out)
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

    def __init__(self, frame: CallFrame, tools: Mapping[str, Json], at_start: bool = False) -> None:
        super().__init__(frame, at_start)
        self._offered = ToolSchemas(tools)


_SEPARATORS: Final = ("[", ",", ";")
_PYTHON_SYNTAX: Final = LiteralSyntax()


class PythonicCalls(LiteralCalls):
    """The CallFormat of the families that write Python."""

    def __init__(self, frame: PythonFrame, tools: Mapping[str, Json]) -> None:
        super().__init__(frame, tools, frame.unmarked)
        self._entry_rule = _PYTHON_SYNTAX.value_rule
        self._entry_markers = ("[",)

    def _parse(self, text: str, out: list[Piece], at: int = 0) -> None:
        if self._at_start and (begin := skip_space(text, at)) < len(text):
            self._at_start = False
            if text[begin] == "[":
                self._emit_text(text[at:begin], begin, out)
                self._enter(wrapped=False)
                at = self._pass_marker("[", begin, out)
        super()._parse(text, out, at)

    def _start_call(self, text: str, at: int, wrapped: bool) -> tuple[CallParser | None, int]:
        if not (text[at].isalpha() or text[at] == "_"):
            return None, 0
        return LiteralCall(self._call_count, _PYTHON_SYNTAX, self._offered, not wrapped, self._budget), at

    def _pass_marker(self, marker: str, at: int, out: list[Piece]) -> int:
        """Pass a marker. The closing bracket of an unmarked list ends all calls. A separator after a call may still be
        text.
        """
        if self._has_called and marker in _SEPARATORS and self._idle_markers < MAX_IDLE_MARKERS:
            self._idle_markers += 1
            self._uncommitted.append(marker)
            return at + len(marker)
        end = super()._pass_marker(marker, at, out)
        if marker == "]" and self._is_inside and not self._is_wrapped:
            self._leave(end, out)
        return end


_CALL_PREFIX: Final = "call:"
_KEY_ENDS: Final = frozenset(":,{}[]<")
_ATOM_ENDS: Final = frozenset(",{}[]<")


@cache
def _make_syntax(quote: str) -> LiteralSyntax:
    return LiteralSyntax(
        opener="{",
        closer="}",
        quotes=(quote,),
        key_ends=_KEY_ENDS,
        atom_ends=_ATOM_ENDS,
        value_rule=BufferRule(frozenset("]}\n")),
        string_rule=BufferRule(prefixes=MarkerFinder(quote).prefixes),
        quote_chars=frozenset(quote[0]),
        is_python=False,
    )


class GemmaCalls(LiteralCalls):
    """The CallFormat of Gemma's families."""

    def __init__(self, frame: GemmaFrame, tools: Mapping[str, Json]) -> None:
        super().__init__(frame, tools)
        self._syntax = _make_syntax(frame.quote)
        self._pending_rule = self._entry_rule = self._syntax.value_rule

    def _start_call(self, text: str, at: int, wrapped: bool) -> tuple[CallParser | None, int]:
        if text.startswith(_CALL_PREFIX, at):
            call = LiteralCall(self._call_count, self._syntax, self._offered, False, self._budget)
            return call, at + len(_CALL_PREFIX)
        return None, -1 if _CALL_PREFIX.startswith(text[at : at + len(_CALL_PREFIX)]) else 0

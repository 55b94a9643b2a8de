"""Calls that are a name and literals: in Python, f(a=1, b='x'), or as in Gemma, f{a:1,b:<escape>x<escape>}.

    (name) ──opener──▶ (literals) ──first value──▶ started ──closer──▶ finished
      └──no name, or nothing that arguments can begin with: rejected

Python calls, [f(a=1), g()], are between markers or at the start of an answer. Without a marker, an answer that begins
with a bracket is a call only if it names an offered tool. Gemma writes call:f{a:<escape>x<escape>,b:1} between markers;
the quotes are markers as well.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import Final

from antiphon.core.deltas import CallStarted
from antiphon.core.prompt import Json
from antiphon.parsers.calls.base import LiteralFrame, Piece
from antiphon.parsers.calls.delimited_calls import (
    MAX_IDLE_MARKERS,
    BufferRule,
    CallReader,
    DelimitedCalls,
    MarkerFinder,
)
from antiphon.parsers.calls.python_literals import LiteralReader, LiteralSyntax
from antiphon.parsers.calls.tagged_calls import MAX_NAME_LENGTH, is_name
from antiphon.parsers.calls.typed_values import ToolParameters
from antiphon.parsers.json_repair import skip_space


class LiteralCall(CallReader):
    """Parses one call. `strict`: only offered tools can be called."""

    def __init__(self, number: int, calls: "LiteralCalls", strict: bool) -> None:
        super().__init__(number)
        self._syntax = calls.syntax
        self._tools = calls.tools
        self._strict = strict
        self._budget = calls.budget
        self._tool_name = ""
        self._literals: LiteralReader | None = None

    def feed_string(self, text: str) -> str:
        return self._literals.feed_string(text) if self._literals is not None and self.started else ""

    def get_buffer_rule(self) -> BufferRule:
        return self._syntax.value_rule if self._literals is None else self._literals.get_buffer_rule()

    def feed(self, text: str, at: int, out: list[Piece]) -> tuple[int, bool]:
        if self._literals is None:
            at, more = self._read_name(text, at)
        if (literals := self._literals) is None:
            return at, more
        at, more = literals.feed(text, at)
        output = literals.take_output()
        if output and not self.started:
            self.started = True
            out.append(CallStarted(self.number, self._tool_name))
        self._emit(output, out)
        if not self.started:
            self.rejected = literals.is_broken
        elif literals.is_done or literals.is_broken:
            self._end_call(out)
        return at, more

    def finish(self, pending: str, out: list[Piece]) -> str:
        if self._literals is not None:
            self._emit(self._literals.finish(pending), out)
        self._end_call(out)
        return ""

    def _read_name(self, text: str, at: int) -> tuple[int, bool]:
        opener = self._syntax.opener
        end = text.find(opener, at, at + MAX_NAME_LENGTH)
        name = text[at : end if end >= 0 else at + MAX_NAME_LENGTH]
        if end < 0 and is_name(name) and len(text) - at < MAX_NAME_LENGTH:
            return at, False
        if end < 0 or not is_name(name) or (self._strict and name not in self._tools):
            self.rejected = True
            return at, True
        self._tool_name = name
        self._literals = LiteralReader(self._syntax, ToolParameters(self._tools.get(name)), self._budget)
        return end + len(opener), True


_SEPARATORS: Final = ("[", ",", ";")
_PYTHON_SYNTAX: Final = LiteralSyntax()


@cache
def _make_gemma_syntax(quote: str) -> LiteralSyntax:
    return LiteralSyntax(
        prefix="call:",
        opener="{",
        closer="}",
        quotes=(quote,),
        name=re.compile(r"[^:,{}\[\]<]*+"),
        atom=re.compile(r"(?!:)[^,{}\[\]<]*+"),
        value_rule=BufferRule(frozenset("]}\n")),
        string_rule=BufferRule(prefixes=MarkerFinder(quote).prefixes),
        quote_chars=frozenset(quote[0]),
        is_python=False,
    )


class LiteralCalls(DelimitedCalls):
    """The format of the families that write calls as literals."""

    def __init__(self, frame: LiteralFrame, tools: Mapping[str, Json]) -> None:
        super().__init__(frame, tools)
        self.syntax = _make_gemma_syntax(frame.quote) if frame.quote else _PYTHON_SYNTAX
        self._entry_rule = self.syntax.value_rule
        self._entry_markers = ("[",)
        if frame.quote:
            self._pending_rule = self._entry_rule

    def _parse(self, text: str, out: list[Piece], at: int = 0) -> None:
        if self._at_start and (begin := skip_space(text, at)) < len(text):
            self._at_start = False
            if text[begin] == "[":
                self._emit_text(text[at:begin], begin, out)
                self._enter(wrapped=False)
                at = self._pass_marker("[", begin, out)
        super()._parse(text, out, at)

    def _start_call(self, text: str, at: int, wrapped: bool) -> tuple[CallReader | None, int]:
        prefix = self.syntax.prefix
        if not text.startswith(prefix, at):
            return None, -1 if prefix.startswith(text[at : at + len(prefix)]) else 0
        if self.syntax.is_python and not (text[at].isalpha() or text[at] == "_"):
            return None, 0
        return LiteralCall(self._call_count, self, not wrapped), at + len(prefix)

    def _pass_marker(self, marker: str, at: int, out: list[Piece]) -> int:
        """Pass a marker. A closing bracket of an unmarked list ends all calls; a separator may still be text."""
        if self._has_called and marker in _SEPARATORS and self._idle_markers < MAX_IDLE_MARKERS:
            self._idle_markers += 1
            self._uncommitted.append(marker)
            return at + len(marker)
        end = super()._pass_marker(marker, at, out)
        if marker == "]" and self._is_inside and not self._is_wrapped:
            self._leave(end, out)
        return end

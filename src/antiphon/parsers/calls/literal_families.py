"""Families that write the arguments of calls as literals: Python's, and those of Gemma.

Python calls, [f(a=1), g()], are between markers or at the start of an answer. Without a marker, an answer that begins
with a bracket is a call only if it names an offered tool. Gemma writes call:f{a:<escape>x<escape>,b:1} between markers;
the quotes are markers as well.
"""

from collections.abc import Mapping
from typing import ClassVar, Final

from antiphon.core.prompt import Json
from antiphon.parsers.calls.base import Piece
from antiphon.parsers.calls.delimited_calls import (
    MAX_IDLE_MARKERS,
    BufferRule,
    CallFrame,
    CallParser,
    MarkerFinder,
    skip_space,
)
from antiphon.parsers.calls.python_literals import LiteralCall, LiteralCalls, LiteralSyntax

_LIST_MARKERS = ("[", "]", ",", ";")
_SEPARATORS = ("[", ",", ";")
_PYTHON_SYNTAX = LiteralSyntax()


class PythonicCalls(LiteralCalls):
    """Llama 3.2 and other models that write Python."""

    frame = CallFrame(between=_LIST_MARKERS)
    unmarked: ClassVar[bool] = True  # the complete answer may be calls without any marker

    def __init__(self, tools: Mapping[str, Json]) -> None:
        super().__init__(tools, self.unmarked)
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


class Llama4PythonicCalls(PythonicCalls):
    """Llama 4."""

    frame = CallFrame(
        openings=("<|python_start|>",),
        closings=("<|python_end|>",),
        between=_LIST_MARKERS,
        controls=("<|python_start|>", "<|python_end|>"),
    )


class Olmo3Calls(PythonicCalls):
    """OLMo 3: one call per line."""

    frame = CallFrame(openings=("<function_calls>",), closings=("</function_calls>",), between=_LIST_MARKERS)
    unmarked = False


class Lfm2Calls(PythonicCalls):
    """LFM 2."""

    frame = CallFrame(
        openings=("<|tool_call_start|>",),
        closings=("<|tool_call_end|>",),
        between=_LIST_MARKERS,
        controls=("<|tool_call_start|>", "<|tool_call_end|>"),
    )
    unmarked = False


_CALL_PREFIX: Final = "call:"
_KEY_ENDS: Final = frozenset(":,{}[]<")
_ATOM_ENDS: Final = frozenset(",{}[]<")


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
    """Base class of Gemma's families."""

    syntax: ClassVar[LiteralSyntax]

    def __init__(self, tools: Mapping[str, Json]) -> None:
        super().__init__(tools)
        self._pending_rule = self._entry_rule = self.syntax.value_rule

    def _start_call(self, text: str, at: int, wrapped: bool) -> tuple[CallParser | None, int]:
        if text.startswith(_CALL_PREFIX, at):
            return LiteralCall(self._call_count, self.syntax, self._offered, False, self._budget), at + len(
                _CALL_PREFIX
            )
        return None, -1 if _CALL_PREFIX.startswith(text[at : at + len(_CALL_PREFIX)]) else 0


class FunctionGemmaCalls(GemmaCalls):
    """FunctionGemma."""

    syntax = _make_syntax("<escape>")
    frame = CallFrame(
        openings=("<start_function_call>",),
        closings=("<end_function_call>",),
        controls=("<start_function_call>", "<end_function_call>", "<escape>"),
    )


class Gemma4Calls(GemmaCalls):
    """Gemma 4."""

    syntax = _make_syntax('<|"|>')
    frame = CallFrame(
        openings=("<|tool_call>",),
        closings=("<tool_call|>",),
        controls=("<|tool_call>", "<tool_call|>", '<|"|>'),
    )

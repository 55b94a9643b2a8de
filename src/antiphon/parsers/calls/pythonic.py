"""Families that write calls in Python syntax, [f(a=1), g()], between markers or at the start of an answer.

Without a marker, an answer that begins with a bracket is a call only if it names an offered tool.
"""

from collections.abc import Mapping
from typing import ClassVar

from antiphon.core.prompt import Json
from antiphon.parsers.calls.base import Piece
from antiphon.parsers.calls.delimited_calls import MAX_IDLE_MARKERS, CallFrame, CallParser, skip_space
from antiphon.parsers.calls.literal_call import LiteralCall, LiteralCalls
from antiphon.parsers.calls.literal_style import LiteralSyntax

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

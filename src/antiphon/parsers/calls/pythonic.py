"""Families that write calls as Python does: [f(a=1), g()], between marks or as all that an answer begins with.

Without a mark, an answer that begins with a bracket is a call only if it names a tool that is offered.
"""

from collections.abc import Mapping
from typing import ClassVar

from antiphon.core.prompt import Json
from antiphon.parsers.calls.base import Piece
from antiphon.parsers.calls.delimited_calls import MOST_MARKS, Frame, OneCall, after_space
from antiphon.parsers.calls.literal_call import LiteralCall, LiteralCalls
from antiphon.parsers.calls.literal_style import Script

_BETWEEN = ("[", "]", ",", ";")
_LOOSE = ("[", ",", ";")
_PYTHON = Script()


class PythonicCalls(LiteralCalls):
    frame = Frame(between=_BETWEEN)
    bare: ClassVar[bool] = True  # a whole answer may be calls without any mark

    def __init__(self, tools: Mapping[str, Json]) -> None:
        super().__init__(tools, self.bare)
        self._entry_wait = _PYTHON.waits
        self._entries = ("[",)

    def _go(self, text: str, out: list[Piece], at: int = 0) -> None:
        if self._fresh and (begin := after_space(text, at)) < len(text):
            self._fresh = False
            if text[begin] == "[":
                self._say(text[at:begin], begin, out)
                self._enter(wrapped=False)
                at = self._pass_mark("[", begin, out)
        super()._go(text, out, at)

    def _begin(self, text: str, at: int, wrapped: bool) -> tuple[OneCall | None, int]:
        if not (text[at].isalpha() or text[at] == "_"):
            return None, 0
        return LiteralCall(self._calls, _PYTHON, self._offered, not wrapped, self._budget), at

    def _pass_mark(self, mark: str, at: int, out: list[Piece]) -> int:
        """The bracket that closes a list which no mark opened closes all. A comma may yet be text."""
        if self._called and mark in _LOOSE and self._idle < MOST_MARKS:
            self._idle += 1
            self._raw.append(mark)
            return at + len(mark)
        end = super()._pass_mark(mark, at, out)
        if mark == "]" and self._inside and not self._wrapped:
            self._leave(end, out)
        return end


class Llama4PythonicCalls(PythonicCalls):
    frame = Frame(
        openings=("<|python_start|>",),
        closings=("<|python_end|>",),
        between=_BETWEEN,
        controls=("<|python_start|>", "<|python_end|>"),
    )


class Olmo3Calls(PythonicCalls):
    """One call in each line."""

    frame = Frame(openings=("<function_calls>",), closings=("</function_calls>",), between=_BETWEEN)
    bare = False


class Lfm2Calls(PythonicCalls):
    frame = Frame(
        openings=("<|tool_call_start|>",),
        closings=("<|tool_call_end|>",),
        between=_BETWEEN,
        controls=("<|tool_call_start|>", "<|tool_call_end|>"),
    )
    bare = False

"""Families that write the arguments of calls as JSON: a row each.

A call is an object, {"name": …, "arguments": …}, or a head with an object after it; there may be several, in a list or
not, after a mark. In some families the whole answer may be a call without any mark: it begins with a bracket, and it is
one only if it names a tool that is offered.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from antiphon.core.deltas import CallDelta
from antiphon.core.prompt import Grammar, Json
from antiphon.parsers.calls.arguments import Flow
from antiphon.parsers.calls.base import Piece, Wish
from antiphon.parsers.calls.finder import Search
from antiphon.parsers.calls.grammar import Shape, write_grammar
from antiphon.parsers.calls.head_call import Head, HeadCall
from antiphon.parsers.calls.json_call import JsonCall
from antiphon.parsers.calls.marked import Frame, MarkedCalls, OneCall, Wait
from antiphon.parsers.calls.object_call import Keys, ObjectCall
from antiphon.parsers.json_leap import WHITE, after

BETWEEN: Final = WHITE + ",;[]"  # what stands around calls in a list, and is nobody's
AFTER: Final = BETWEEN + "})"  # what is too much at their end is nobody's either
_NOT: Final = Wait()
_ENTRY: Final = Wait(frozenset("{}"))
_WAIT: Final = Wait(frozenset("}]"))  # for the end of values
_NO_BRACKETS: Final = {ord(char): None for char in AFTER if char not in WHITE}


class Style(Frame, frozen=True, kw_only=True):
    keys: Keys = Keys()
    head: Head | None = None  # right after an opening mark a call may be one with a head
    whole: bool = False  # a whole answer may be calls, without any mark
    fence: str = ""  # with what such an answer may begin; a call between marks may name any tool then


class JsonCalls(MarkedCalls):
    frame: ClassVar[Style]
    shape: ClassVar[Shape | None] = None  # how a grammar writes them; None: there is none

    def __init__(self, tools: Mapping[str, Json]) -> None:
        super().__init__(tools, self.frame.whole)
        self._entry_wait = _ENTRY
        self._headed = False  # here a call with a head may begin
        self._known = tools if self.frame.whole else None
        self._bracketed = any(mark[0] in BETWEEN for mark in self._marks)

    def grammar(self, wish: Wish) -> Grammar | None:
        """A mark that is a control token is no text, so that free text with calls in it has no grammar."""
        shape = self.shape
        if shape is None or (wish.answer == "text" and shape.mark in self.controls):
            return None
        return write_grammar(shape, wish)

    def _stream(self, flow: Flow, text: str) -> Sequence[Piece]:
        self._held = ""
        number = self._calls
        if flow.flows(text):
            self._fed += len(text)
            return (CallDelta(number, text),) if text else ()
        said, at = flow.feed(text)
        if at == len(text) and not flow.over:
            self._fed += at
            self._wait = _WAIT if flow.waits else _NOT
            return (CallDelta(number, said),) if said else ()
        out: list[Piece] = [CallDelta(number, said)] if said else []
        self._flow = None
        if flow.done and isinstance(self._call, JsonCall):
            self._call.end_arguments()
        self._go(text, out, at)
        return out

    def _settle(self) -> None:
        super()._settle()
        if isinstance(self._call, JsonCall) and (flow := self._call.stream) is not None:
            self._flow = flow
            self._wait = _WAIT if flow.waits else _NOT

    def _outside(self, text: str, at: int, search: Search, out: list[Piece]) -> tuple[int, bool]:
        if self._fresh:
            begin, at = at, after(text, at, WHITE)
            self._say(text[begin:at], at, out)
            if at == len(text):
                return at, False
            fence = self.frame.fence
            if fence and fence.startswith(text[at : at + len(fence)]):
                return self._fenced(text, at, at + len(fence))
            self._fresh = False
            if text[at] in "{[" and not self._mark_at(text, at):
                self._enter(wrapped=False)
                return at, True
        return super()._outside(text, at, search, out)

    def _fenced(self, text: str, at: int, end: int) -> tuple[int, bool]:
        """It is a fence, or all there is may be the beginning of one."""
        if end > len(text):
            return at, False
        self._fresh = False
        self._raw.append(text[at:end])
        self._enter(wrapped=False)
        return end, True

    def _enter(self, wrapped: bool) -> None:
        super()._enter(wrapped)
        self._headed = wrapped

    def _skip(self, text: str, at: int) -> int:
        end = after(text, at, AFTER if self._called else BETWEEN)
        if self._bracketed and end > at and (self._mark_at(text, end - 1) or self._inner.begins(text, end - 1)):
            end -= 1  # the bracket is the first of a mark
        skipped = text[at:end]
        self._raw.append(skipped.translate(_NO_BRACKETS) if self._called else skipped)
        return end

    def _pass_mark(self, mark: str, at: int, out: list[Piece]) -> int:
        self._headed = mark in self.frame.openings
        return super()._pass_mark(mark, at, out)

    def _begin(self, text: str, at: int, wrapped: bool) -> tuple[OneCall | None, int]:
        style = self.frame
        if text[at] == "{":
            self._headed = False
            known = None if wrapped and style.fence else self._known
            return ObjectCall(self._calls, known, self._inner, style.keys), at
        if style.head is not None and self._headed and not self._inner.begins(text, at):
            self._headed = False
            return HeadCall(self._calls, self._known, self._inner, style.head), at
        return None, at

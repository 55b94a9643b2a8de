"""Gemma's families: call:f{a:<escape>x<escape>,b:1} between marks; the quotes are marks of their own."""

from collections.abc import Mapping
from typing import ClassVar, Final

from antiphon.core.prompt import Json
from antiphon.parsers.calls.delimited_calls import Frame, OneCall, Wait
from antiphon.parsers.calls.literal_call import LiteralCall, LiteralCalls
from antiphon.parsers.calls.literal_style import Script
from antiphon.parsers.calls.marker_search import Finder

_CALL: Final = "call:"
_KEY_ENDS: Final = frozenset(":,{}[]<")
_WORD_ENDS: Final = frozenset(",{}[]<")


def _script(quote: str) -> Script:
    return Script(
        opener="{",
        closer="}",
        quotes=(quote,),
        key_ends=_KEY_ENDS,
        word_ends=_WORD_ENDS,
        waits=Wait(frozenset("]}\n")),
        flows=Wait(beginnings=Finder(quote).beginnings),
        firsts=frozenset(quote[0]),
        python=False,
    )


class GemmaCalls(LiteralCalls):
    script: ClassVar[Script]

    def __init__(self, tools: Mapping[str, Json]) -> None:
        super().__init__(tools)
        self._begun_wait = self._entry_wait = self.script.waits

    def _begin(self, text: str, at: int, wrapped: bool) -> tuple[OneCall | None, int]:
        if text.startswith(_CALL, at):
            return LiteralCall(self._calls, self.script, self._offered, False, self._budget), at + len(_CALL)
        return None, -1 if _CALL.startswith(text[at : at + len(_CALL)]) else 0


class FunctionGemmaCalls(GemmaCalls):
    script = _script("<escape>")
    frame = Frame(
        openings=("<start_function_call>",),
        closings=("<end_function_call>",),
        controls=("<start_function_call>", "<end_function_call>", "<escape>"),
    )


class Gemma4Calls(GemmaCalls):
    script = _script('<|"|>')
    frame = Frame(
        openings=("<|tool_call>",),
        closings=("<tool_call|>",),
        controls=("<|tool_call>", "<tool_call|>", '<|"|>'),
    )

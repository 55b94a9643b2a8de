"""Gemma's families: call:f{a:<escape>x<escape>,b:1} between markers; the quotes are markers as well."""

from collections.abc import Mapping
from typing import ClassVar, Final

from antiphon.core.prompt import Json
from antiphon.parsers.calls.delimited_calls import BufferRule, CallFrame, CallParser
from antiphon.parsers.calls.literal_call import LiteralCall, LiteralCalls
from antiphon.parsers.calls.literal_style import LiteralSyntax
from antiphon.parsers.calls.marker_search import MarkerFinder

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

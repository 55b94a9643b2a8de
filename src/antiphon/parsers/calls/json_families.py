"""Families that write the arguments of calls as JSON: one class of markers each.

A call is an object, {"name": …, "arguments": …}, or a head followed by an object. Several calls may follow a marker, in
a list or not. In some families the complete answer may be calls without any marker: it begins with a bracket, and is a
call only if it names an offered tool.
"""

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from antiphon.core.deltas import CallDelta
from antiphon.core.prompt import Grammar, Json
from antiphon.parsers.calls.arguments import ArgumentStream
from antiphon.parsers.calls.base import GrammarRequest, Piece
from antiphon.parsers.calls.delimited_calls import BufferRule, CallFrame, CallParser, DelimitedCalls, MarkerSearch
from antiphon.parsers.calls.grammar import JSON_LIST, CallShape, write_grammar
from antiphon.parsers.calls.json_call import CallKeys, HeadCall, HeadParser, JsonCall, ObjectCall
from antiphon.parsers.json_repair import WHITESPACE, match_end, skip_whitespace

LIST_FILLER: Final = WHITESPACE + ",;[]"  # filler around calls in a list, which is discarded
TRAILING_FILLER: Final = LIST_FILLER + "})"  # superfluous closing brackets are discarded as well
_LEADING: Final = re.compile(f"[{re.escape(LIST_FILLER)}]*")
_TRAILING: Final = re.compile(f"[{re.escape(TRAILING_FILLER)}]*")
_NO_BUFFERING: Final = BufferRule()
_ENTRY_RULE: Final = BufferRule(frozenset("{}"))
_VALUE_RULE: Final = BufferRule(frozenset("}]"))  # until a value may end
_REMOVE_BRACKETS: Final = {ord(char): None for char in TRAILING_FILLER if char not in WHITESPACE}


class JsonCallFrame(CallFrame, frozen=True, kw_only=True):
    """Markers and syntax of a family that writes JSON."""

    keys: CallKeys = CallKeys()
    parse_head: HeadParser | None = None  # directly after an opening marker a call may have a head
    unmarked: bool = False  # the complete answer may be calls without any marker
    fence: str = ""  # an unmarked answer may begin with this; if set, a call between markers may name any tool


class JsonCalls(DelimitedCalls):
    """Base class of the families."""

    frame: ClassVar[JsonCallFrame]
    shape: ClassVar[CallShape | None] = None  # how a grammar writes the calls; None: no grammar

    def __init__(self, tools: Mapping[str, Json]) -> None:
        super().__init__(tools, self.frame.unmarked)
        self._entry_rule = _ENTRY_RULE
        self._may_have_head = False  # a call with a head may begin here
        self._allowed_names = tools if self.frame.unmarked else None
        self._has_bracket_marker = any(marker[0] in LIST_FILLER for marker in self._inside_markers)

    def build_grammar(self, request: GrammarRequest) -> Grammar | None:
        """Return the grammar. Free text with calls has none if the marker is a control token, which text rules cannot
        match.
        """
        shape = self.shape
        if shape is None or (request.answer == "text" and shape.marker in self.controls):
            return None
        return write_grammar(shape, request)

    def _feed_stream(self, stream: ArgumentStream, text: str) -> Sequence[Piece]:
        self._pending = ""
        number = self._call_count
        if stream.can_pass(text):
            self._consumed += len(text)
            return (CallDelta(number, text),) if text else ()
        output, at = stream.feed(text)
        if at == len(text) and not stream.is_finished:
            self._consumed += at
            self._rule = _VALUE_RULE if stream.can_wait else _NO_BUFFERING
            return (CallDelta(number, output),) if output else ()
        out: list[Piece] = [CallDelta(number, output)] if output else []
        self._argument_stream = None
        if stream.is_done and isinstance(self._call, JsonCall):
            self._call.end_arguments()
        self._parse(text, out, at)
        return out

    def _update_rule(self) -> None:
        super()._update_rule()
        if isinstance(self._call, JsonCall) and (stream := self._call.argument_stream) is not None:
            self._argument_stream = stream
            self._rule = _VALUE_RULE if stream.can_wait else _NO_BUFFERING

    def _parse_outside(self, text: str, at: int, search: MarkerSearch, out: list[Piece]) -> tuple[int, bool]:
        if self._at_start:
            begin, at = at, skip_whitespace(text, at)
            self._emit_text(text[begin:at], at, out)
            if at == len(text):
                return at, False
            fence = self.frame.fence
            if fence and fence.startswith(text[at : at + len(fence)]):
                return self._enter_fence(text, at, at + len(fence))
            self._at_start = False
            if text[at] in "{[" and not self._find_marker_at(text, at):
                self._enter(wrapped=False)
                return at, True
        return super()._parse_outside(text, at, search, out)

    def _enter_fence(self, text: str, at: int, end: int) -> tuple[int, bool]:
        """Enter a fenced answer, or wait if the text may be the beginning of a fence."""
        if end > len(text):
            return at, False
        self._at_start = False
        self._uncommitted.append(text[at:end])
        self._enter(wrapped=False)
        return end, True

    def _enter(self, wrapped: bool) -> None:
        super()._enter(wrapped)
        self._may_have_head = wrapped

    def _skip_filler(self, text: str, at: int) -> int:
        end = match_end(_TRAILING if self._has_called else _LEADING, text, at)
        if (
            self._has_bracket_marker
            and end > at
            and (self._find_marker_at(text, end - 1) or self._inside_finder.is_prefix(text, end - 1))
        ):
            end -= 1  # the bracket begins a marker
        skipped = text[at:end]
        self._uncommitted.append(skipped.translate(_REMOVE_BRACKETS) if self._has_called else skipped)
        return end

    def _pass_marker(self, marker: str, at: int, out: list[Piece]) -> int:
        self._may_have_head = marker in self.frame.openings
        return super()._pass_marker(marker, at, out)

    def _start_call(self, text: str, at: int, wrapped: bool) -> tuple[CallParser | None, int]:
        frame = self.frame
        if text[at] == "{":
            self._may_have_head = False
            allowed_names = None if wrapped and frame.fence else self._allowed_names
            return ObjectCall(self._call_count, allowed_names, self._inside_finder, frame.keys), at
        if frame.parse_head is not None and self._may_have_head and not self._inside_finder.is_prefix(text, at):
            self._may_have_head = False
            return HeadCall(self._call_count, self._allowed_names, self._inside_finder, frame.parse_head), at
        return None, at


FUNCTION_PREFIX: Final = "functions."
FENCE: Final = "```json"


class HermesCalls(JsonCalls):
    """Hermes, Qwen 2.5, Qwen 3 and many others; also used for the generic tool prompt of models without their own
    format.

    Qwen 2.5 Coder and small models omit the markers or write a Markdown fence instead. That is a call if the answer
    begins with it and it names an offered tool.
    """

    frame = JsonCallFrame(openings=("<tool_call>",), closings=("</tool_call>", "```"), unmarked=True, fence=FENCE)
    shape = CallShape(begin="<tool_call>\n", end="\n</tool_call>", marker="<tool_call>")


class Ernie45Calls(HermesCalls):
    """ERNIE 4.5."""


class Granite4Calls(JsonCalls):
    """Granite 4."""

    frame = JsonCallFrame(
        openings=("<tool_call>",),
        closings=("</tool_call>",),
        controls=("<tool_call>", "</tool_call>"),
    )


class GraniteCalls(JsonCalls):
    """Granite 3: the marker is a control token in 3.0 and plain text in 3.1."""

    frame = JsonCallFrame(
        openings=("<|tool_call|>", "<tool_call>"),
        closings=("</tool_call>",),
        controls=("<|tool_call|>",),
    )


class Granite20bCalls(JsonCalls):
    """Granite 20B function calling."""

    frame = JsonCallFrame(openings=("<function_call>",), controls=("<function_call>",))


class Llama3Calls(JsonCalls):
    """Llama 3.1 to 3.3, and Llama 4 when prompted for JSON."""

    frame = JsonCallFrame(openings=("<|python_tag|>",), unmarked=True, controls=("<|python_tag|>",))
    shape = CallShape(between="; ", arguments="parameters")


class BareCalls(JsonCalls):
    """An answer constrained by a JSON schema: an array of calls, or one call, and nothing else."""

    frame = JsonCallFrame(unmarked=True)
    shape = JSON_LIST


class InternlmCalls(JsonCalls):
    """InternLM 2 and 2.5."""

    frame = JsonCallFrame(
        openings=("<|action_start|>",),
        closings=("<|action_end|>",),
        between=("<|plugin|>",),
        controls=("<|action_start|>", "<|plugin|>", "<|action_end|>"),
    )


class JambaCalls(JsonCalls):
    """Jamba 1.5 and later."""

    frame = JsonCallFrame(
        openings=("<tool_calls>",),
        closings=("</tool_calls>",),
        controls=("<tool_calls>", "</tool_calls>"),
    )


class HunyuanCalls(JsonCalls):
    """Hunyuan A13B."""

    frame = JsonCallFrame(openings=("<tool_calls>",), closings=("</tool_calls>",))
    shape = CallShape(before="<tool_calls>[", between=", ", after="]</tool_calls>", marker="<tool_calls>")


class MinimaxCalls(HunyuanCalls):
    """MiniMax M1: a call on each line."""


class XlamCalls(JsonCalls):
    """xLAM: an unmarked list, or one in a fence or after a marker; in all cases only of offered tools."""

    frame = JsonCallFrame(
        openings=(FENCE, "[TOOL_CALLS]", "<tool_call>"),
        closings=("```", "</tool_call>"),
        unmarked=True,
    )

    @property
    def openings(self) -> tuple[str, ...]:
        """All openings except the fence, which does not end reasoning."""
        return tuple(marker for marker in self.frame.openings if marker != FENCE)


class Phi4MiniCalls(JsonCalls):
    """Phi-4-mini."""

    frame = JsonCallFrame(
        openings=("functools[", "<|tool_call|>"),
        closings=("<|/tool_call|>",),
        controls=("<|tool_call|>", "<|/tool_call|>"),
    )


class LongcatCalls(JsonCalls):
    """LongCat Flash."""

    frame = JsonCallFrame(
        openings=("<longcat_tool_call>",),
        closings=("</longcat_tool_call>",),
        controls=("<longcat_tool_call>", "</longcat_tool_call>"),
    )


class NemotronCalls(JsonCalls):
    """Nemotron Nano 2."""

    frame = JsonCallFrame(openings=("<TOOLCALL>",), closings=("</TOOLCALL>",), controls=("<TOOLCALL>", "</TOOLCALL>"))


class Gigachat3Calls(JsonCalls):
    """GigaChat 3 and 3.1."""

    frame = JsonCallFrame(
        openings=(
            "<|message_sep|>\n\nfunction call<|role_sep|>\n",
            "function call<|role_sep|>\n",
            "<|function_call|>",
        ),
        closings=("<|message_sep|>", "</s>"),
        controls=("<|message_sep|>", "<|role_sep|>", "<|function_call|>"),
    )


class ApertusCalls(JsonCalls):
    """Apertus: the name is the key of the arguments."""

    frame = JsonCallFrame(
        openings=("<|tools_prefix|>",),
        closings=("<|tools_suffix|>",),
        keys=CallKeys(name_is_key=True),
        controls=("<|tools_prefix|>", "<|tools_suffix|>"),
    )


class CohereCalls(JsonCalls):
    """Command R7B and Command A."""

    frame = JsonCallFrame(
        openings=("<|START_ACTION|>",),
        closings=("<|END_ACTION|>",),
        keys=CallKeys(name=("tool_name", "name")),
        controls=("<|START_ACTION|>", "<|END_ACTION|>"),
    )


def _parse_mistral_head(head: str) -> str | None:
    """Parse the name before [ARGS] or [CALL_ID]."""
    name = head.partition("[ARGS]")[0].partition("[CALL_ID]")[0].strip()
    return name if name and not any(char.isspace() or char in "[]<>" for char in name) else None


class MistralCalls(JsonCalls):
    """Mistral: a list of objects up to 2024; since then the name, [ARGS] (and [CALL_ID]), and the arguments."""

    frame = JsonCallFrame(
        openings=("[TOOL_CALLS]",),
        parse_head=_parse_mistral_head,
        controls=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    )
    shape = CallShape(before="[TOOL_CALLS][", between=", ", after="]", marker="[TOOL_CALLS]")


_DEEPSEEK_SEPARATOR: Final = "<｜tool▁sep｜>"
_DEEPSEEK_OPENINGS: Final = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>")
_DEEPSEEK_CLOSINGS: Final = ("<｜tool▁calls▁end｜>", "<｜tool▁call▁end｜>")


def _parse_deepseek_head(head: str) -> str | None:
    """Parse `function`, the separator, the name and the start of a fence; or the name and the separator."""
    before, separator, after = head.partition(_DEEPSEEK_SEPARATOR)
    name, _, fence = after.strip().partition("\n")
    if not separator or fence.strip() not in ("", "```json", "```"):
        return None
    return name.strip() or before.strip() or None


class DeepseekV3Calls(JsonCalls):
    """DeepSeek V3 and R1."""

    frame = JsonCallFrame(
        openings=_DEEPSEEK_OPENINGS,
        closings=_DEEPSEEK_CLOSINGS[:1],
        between=(_DEEPSEEK_CLOSINGS[1], "```"),
        parse_head=_parse_deepseek_head,
        controls=(*_DEEPSEEK_OPENINGS, *_DEEPSEEK_CLOSINGS, _DEEPSEEK_SEPARATOR),
    )


class DeepseekV31Calls(DeepseekV3Calls):
    """DeepSeek V3.1."""


_KIMI_ARGUMENTS: Final = "<|tool_call_argument_begin|>"
_KIMI_OPENINGS: Final = ("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>", "<|tool_call_begin|>")
_KIMI_CLOSINGS: Final = ("<|tool_calls_section_end|>", "<|tool_call_section_end|>", "<|tool_call_end|>")


def _parse_kimi_head(head: str) -> str | None:
    """Parse functions.NAME:NUMBER followed by the arguments marker."""
    identity, marker, remainder = head.partition(_KIMI_ARGUMENTS)
    name, _, number = identity.strip().rpartition(":")
    return name.removeprefix(FUNCTION_PREFIX) or None if marker and number.isdigit() and not remainder.strip() else None


class KimiK2Calls(JsonCalls):
    """Kimi K2."""

    frame = JsonCallFrame(
        openings=_KIMI_OPENINGS,
        closings=_KIMI_CLOSINGS[:2],
        between=_KIMI_CLOSINGS[2:],
        parse_head=_parse_kimi_head,
        controls=(*_KIMI_OPENINGS, *_KIMI_CLOSINGS, _KIMI_ARGUMENTS),
    )

"""Who writes calls as JSON, and between which marks: a row for each family of models.

Families that write the arguments of calls as JSON: a row each.

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
from antiphon.parsers.calls.delimited_calls import Frame, MarkedCalls, OneCall, Wait
from antiphon.parsers.calls.grammar import JSON_LIST, Shape, write_grammar
from antiphon.parsers.calls.json_call import Head, HeadCall, JsonCall, Keys, ObjectCall
from antiphon.parsers.calls.marker_search import Search
from antiphon.parsers.json.skip import WHITE, after

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


FUNCTION: Final = "functions."
FENCE: Final = "```json"


class HermesCalls(JsonCalls):
    """Hermes, Qwen 2.5, Qwen 3 and many others; also the tool prompt for models that have none of their own.

    Qwen 2.5 Coder and small models leave the marks out, or write a fence of Markdown instead: that is a call where the
    answer begins with it and it names a tool that is offered.
    """

    frame = Style(openings=("<tool_call>",), closings=("</tool_call>", "```"), whole=True, fence=FENCE)
    shape = Shape(begin="<tool_call>\n", end="\n</tool_call>", mark="<tool_call>")


class Ernie45Calls(HermesCalls):
    """ERNIE 4.5."""


class Granite4Calls(JsonCalls):
    """Granite 4."""

    frame = Style(
        openings=("<tool_call>",),
        closings=("</tool_call>",),
        controls=("<tool_call>", "</tool_call>"),
    )


class GraniteCalls(JsonCalls):
    """Granite 3: the mark is a token of its own in 3.0, and text in 3.1."""

    frame = Style(
        openings=("<|tool_call|>", "<tool_call>"),
        closings=("</tool_call>",),
        controls=("<|tool_call|>",),
    )


class Granite20bCalls(JsonCalls):
    """Granite 20B function calling."""

    frame = Style(openings=("<function_call>",), controls=("<function_call>",))


class Llama3Calls(JsonCalls):
    """Llama 3.1 to 3.3, and Llama 4 where it is asked for JSON."""

    frame = Style(openings=("<|python_tag|>",), whole=True, controls=("<|python_tag|>",))
    shape = Shape(between="; ", arguments="parameters")


class BareCalls(JsonCalls):
    """An answer that is held to a schema: it is an array of calls, or one, and nothing else."""

    frame = Style(whole=True)
    shape = JSON_LIST


class InternlmCalls(JsonCalls):
    """InternLM 2 and 2.5."""

    frame = Style(
        openings=("<|action_start|>",),
        closings=("<|action_end|>",),
        between=("<|plugin|>",),
        controls=("<|action_start|>", "<|plugin|>", "<|action_end|>"),
    )


class JambaCalls(JsonCalls):
    """Jamba 1.5 and later."""

    frame = Style(
        openings=("<tool_calls>",),
        closings=("</tool_calls>",),
        controls=("<tool_calls>", "</tool_calls>"),
    )


class HunyuanCalls(JsonCalls):
    """Hunyuan A13B."""

    frame = Style(openings=("<tool_calls>",), closings=("</tool_calls>",))
    shape = Shape(before="<tool_calls>[", between=", ", after="]</tool_calls>", mark="<tool_calls>")


class MinimaxCalls(HunyuanCalls):
    """MiniMax M1: a call on each line."""


class XlamCalls(JsonCalls):
    """xLAM: a bare list, or one in a fence or after a mark; whichever it is, only of tools that are offered."""

    frame = Style(
        openings=(FENCE, "[TOOL_CALLS]", "<tool_call>"),
        closings=("```", "</tool_call>"),
        whole=True,
    )

    @property
    def openings(self) -> tuple[str, ...]:
        """A fence ends no thought."""
        return tuple(mark for mark in self.frame.openings if mark != FENCE)


class Phi4MiniCalls(JsonCalls):
    """Phi-4-mini."""

    frame = Style(
        openings=("functools[", "<|tool_call|>"),
        closings=("<|/tool_call|>",),
        controls=("<|tool_call|>", "<|/tool_call|>"),
    )


class LongcatCalls(JsonCalls):
    """LongCat Flash."""

    frame = Style(
        openings=("<longcat_tool_call>",),
        closings=("</longcat_tool_call>",),
        controls=("<longcat_tool_call>", "</longcat_tool_call>"),
    )


class NemotronCalls(JsonCalls):
    """Nemotron Nano 2."""

    frame = Style(openings=("<TOOLCALL>",), closings=("</TOOLCALL>",), controls=("<TOOLCALL>", "</TOOLCALL>"))


class Gigachat3Calls(JsonCalls):
    """GigaChat 3 and 3.1."""

    frame = Style(
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

    frame = Style(
        openings=("<|tools_prefix|>",),
        closings=("<|tools_suffix|>",),
        keys=Keys(keyed=True),
        controls=("<|tools_prefix|>", "<|tools_suffix|>"),
    )


class CohereCalls(JsonCalls):
    """Command R7B and Command A."""

    frame = Style(
        openings=("<|START_ACTION|>",),
        closings=("<|END_ACTION|>",),
        keys=Keys(name=("tool_name", "name")),
        controls=("<|START_ACTION|>", "<|END_ACTION|>"),
    )


def _mistral(head: str) -> str | None:
    name = head.partition("[ARGS]")[0].partition("[CALL_ID]")[0].strip()
    return name if name and not any(char.isspace() or char in "[]<>" for char in name) else None


class MistralCalls(JsonCalls):
    """Mistral: a list of objects up to 2024; since then the name, [ARGS] (and [CALL_ID]), and the arguments."""

    frame = Style(
        openings=("[TOOL_CALLS]",),
        head=_mistral,
        controls=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    )
    shape = Shape(before="[TOOL_CALLS][", between=", ", after="]", mark="[TOOL_CALLS]")


_SEP: Final = "<｜tool▁sep｜>"
_DEEPSEEK: Final = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>")
_DEEPSEEK_ENDS: Final = ("<｜tool▁calls▁end｜>", "<｜tool▁call▁end｜>")


def _deepseek(head: str) -> str | None:
    """`function`, the mark, the name and the beginning of a fence; or the name and the mark."""
    before, mark, after = head.partition(_SEP)
    name, _, fence = after.strip().partition("\n")
    if not mark or fence.strip() not in ("", "```json", "```"):
        return None
    return name.strip() or before.strip() or None


class DeepseekV3Calls(JsonCalls):
    """DeepSeek V3 and R1."""

    frame = Style(
        openings=_DEEPSEEK,
        closings=_DEEPSEEK_ENDS[:1],
        between=(_DEEPSEEK_ENDS[1], "```"),
        head=_deepseek,
        controls=(*_DEEPSEEK, *_DEEPSEEK_ENDS, _SEP),
    )


class DeepseekV31Calls(DeepseekV3Calls):
    """DeepSeek V3.1."""


_ARGUMENTS: Final = "<|tool_call_argument_begin|>"
_KIMI: Final = ("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>", "<|tool_call_begin|>")
_KIMI_ENDS: Final = ("<|tool_calls_section_end|>", "<|tool_call_section_end|>", "<|tool_call_end|>")


def _kimi(head: str) -> str | None:
    """functions.NAME:NUMBER, and a mark."""
    identity, mark, rest = head.partition(_ARGUMENTS)
    name, _, number = identity.strip().rpartition(":")
    return name.removeprefix(FUNCTION) or None if mark and number.isdigit() and not rest.strip() else None


class KimiK2Calls(JsonCalls):
    """Kimi K2."""

    frame = Style(
        openings=_KIMI,
        closings=_KIMI_ENDS[:2],
        between=_KIMI_ENDS[2:],
        head=_kimi,
        controls=(*_KIMI, *_KIMI_ENDS, _ARGUMENTS),
    )

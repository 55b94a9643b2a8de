"""Families that write calls with tags: one class of markers each.

An opening marker without a call is text. A call tag without the marker around it is a call only if it names an offered
tool.
"""

from collections.abc import Mapping
from typing import ClassVar

from antiphon.core.prompt import Json
from antiphon.parsers.calls.base import Piece
from antiphon.parsers.calls.delimited_calls import CallFrame, CallParser, DelimitedCalls
from antiphon.parsers.calls.tagged_call import TAG_RULE, CallTags, TaggedCall, TagScanner
from antiphon.parsers.calls.typed_values import ToolSchemas

_DSML = "｜DSML｜"


class TaggedCalls(DelimitedCalls):
    """Base class of the families."""

    tags: ClassVar[CallTags]

    def __init__(self, tools: Mapping[str, Json]) -> None:
        super().__init__(tools)
        frame = self.frame
        stops = (*frame.openings, *frame.closings, *frame.between, self.tags.call)
        self._scanner = TagScanner(self.tags, stops)
        self._pending_rule = self._entry_rule = TAG_RULE
        self._offered = ToolSchemas(tools)

    def _parse(self, text: str, out: list[Piece], at: int = 0) -> None:
        self._scanner.set_text(text)
        super()._parse(text, out, at)

    def _is_exhausted(self) -> bool:
        return self._scanner.is_exhausted

    def _start_call(self, text: str, at: int, wrapped: bool) -> tuple[CallParser | None, int]:
        marker = self.tags.call
        if text.startswith(marker, at):
            strict = not wrapped and self.frame.offered_only
            call = TaggedCall(self._call_count, self.tags, self._offered, strict, self._scanner)
            return call, at + len(marker)
        return None, -1 if marker.startswith(text[at : at + len(marker)]) else 0


class QwenCoderCalls(TaggedCalls):
    """Qwen3-Coder, Qwen 3.5, Nemotron 3, Step 3.5 and others."""

    frame = CallFrame(openings=("<tool_call>",), closings=("</tool_call>",), unwrapped_starts=("<function=",))
    tags = CallTags(
        call="<function=", call_ends=("</function>",), key="<parameter=", value_end="</parameter>", lead="\n", tail="\n"
    )


class MimoCalls(TaggedCalls):
    """MiMo: like Qwen3-Coder, but whitespace around a value is part of it."""

    frame = QwenCoderCalls.frame
    tags = CallTags(call="<function=", call_ends=("</function>",), key="<parameter=", value_end="</parameter>")


class SeedOssCalls(TaggedCalls):
    """Seed-OSS."""

    frame = CallFrame(
        openings=("<seed:tool_call>",),
        closings=("</seed:tool_call>",),
        unwrapped_starts=("<function=",),
        controls=("<seed:tool_call>", "</seed:tool_call>"),
    )
    tags = QwenCoderCalls.tags


class GlmCalls(TaggedCalls):
    """GLM 4.5 and later, Ling 3, Poolside: the name has no tag of its own."""

    frame = CallFrame(unwrapped_starts=("<tool_call>",), offered_only=False)
    tags = CallTags(
        call="<tool_call>",
        name_ends=("<arg_key>", "</tool_call>"),
        call_ends=("</tool_call>",),
        key="<arg_key>",
        key_end="</arg_key>",
        value="<arg_value>",
        value_end="</arg_value>",
    )


class HunyuanV3Calls(TaggedCalls):
    """Hunyuan 3."""

    frame = CallFrame(openings=("<tool_calls>",), closings=("</tool_calls>",), unwrapped_starts=("<tool_call>",))
    tags = CallTags(
        call="<tool_call>",
        name_ends=("<tool_sep>", "<arg_key>", "</tool_call>"),
        call_ends=("</tool_call>",),
        key="<arg_key>",
        key_end="</arg_key>",
        value="<arg_value>",
        value_end="</arg_value>",
    )


class MinimaxM2Calls(TaggedCalls):
    """MiniMax M2."""

    frame = CallFrame(
        openings=("<minimax:tool_call>",), closings=("</minimax:tool_call>",), unwrapped_starts=("<invoke name=",)
    )
    tags = CallTags(call="<invoke name=", call_ends=("</invoke>",), key="<parameter name=", value_end="</parameter>")


class DotsCalls(TaggedCalls):
    """dots."""

    frame = CallFrame(openings=("<dots_function_call>",), closings=("</dots_function_call>",))
    tags = MinimaxM2Calls.tags


class MiniCpm5Calls(TaggedCalls):
    """MiniCPM 5."""

    frame = CallFrame(unwrapped_starts=("<function name=",))
    tags = CallTags(
        call="<function name=",
        call_ends=("</function>",),
        key="<param name=",
        value_end="</param>",
        lead="<![CDATA[",
        tail="]]>",
    )


class Step3Calls(TaggedCalls):
    """Step 3."""

    frame = CallFrame(
        openings=("<｜tool_calls_begin｜>",),
        closings=("<｜tool_calls_end｜>",),
        between=("<｜tool_call_begin｜>", "<｜tool_call_end｜>", "<｜tool_sep｜>", "function"),
        unwrapped_starts=("<steptml:invoke name=",),
        controls=(
            "<｜tool_calls_begin｜>",
            "<｜tool_calls_end｜>",
            "<｜tool_call_begin｜>",
            "<｜tool_call_end｜>",
            "<｜tool_sep｜>",
        ),
    )
    tags = CallTags(
        call="<steptml:invoke name=",
        call_ends=("</steptml:invoke>",),
        key="<steptml:parameter name=",
        value_end="</steptml:parameter>",
    )


class DeepSeekV32Calls(TaggedCalls):
    """DeepSeek V3.2."""

    tags = CallTags(
        call=f"<{_DSML}invoke name=",
        call_ends=(f"</{_DSML}invoke>",),
        key=f"<{_DSML}parameter name=",
        value_end=f"</{_DSML}parameter>",
        type_attribute="string",
    )
    frame = CallFrame(
        openings=(f"<{_DSML}function_calls>",), closings=(f"</{_DSML}function_calls>",), unwrapped_starts=(tags.call,)
    )


class DeepSeekV4Calls(TaggedCalls):
    """DeepSeek V4."""

    tags = DeepSeekV32Calls.tags
    frame = CallFrame(
        openings=(f"<{_DSML}tool_calls>", f"<{_DSML}toolcalls>", f"<{_DSML}tool>"),
        closings=(f"</{_DSML}tool_calls>", f"</{_DSML}toolcalls>", f"</{_DSML}tool>"),
        unwrapped_starts=(tags.call,),
    )

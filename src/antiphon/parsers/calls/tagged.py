"""Families that write calls with tags: a family is a row of marks.

An opening mark without a call is text. Where the tag of a call stands without the mark around it, it is a call only if
it names a tool that is offered.
"""

from collections.abc import Mapping
from typing import ClassVar

from antiphon.core.prompt import Json
from antiphon.parsers.calls.base import Piece
from antiphon.parsers.calls.delimited_calls import Frame, MarkedCalls, OneCall
from antiphon.parsers.calls.parameter_schemas import Offered
from antiphon.parsers.calls.tagged_call import WAIT_FOR_TAG, Lookout, TaggedCall, Tags

_DSML = "｜DSML｜"


class TaggedCalls(MarkedCalls):
    tags: ClassVar[Tags]

    def __init__(self, tools: Mapping[str, Json]) -> None:
        super().__init__(tools)
        frame = self.frame
        stops = (*frame.openings, *frame.closings, *frame.between, self.tags.call)
        self._lookout = Lookout(self.tags, stops)
        self._begun_wait = self._entry_wait = WAIT_FOR_TAG
        self._offered = Offered(tools)

    def _go(self, text: str, out: list[Piece], at: int = 0) -> None:
        self._lookout.look(text)
        super()._go(text, out, at)

    def _is_spent(self) -> bool:
        return self._lookout.spent

    def _begin(self, text: str, at: int, wrapped: bool) -> tuple[OneCall | None, int]:
        mark = self.tags.call
        if text.startswith(mark, at):
            strict = not wrapped and self.frame.offered
            call = TaggedCall(self._calls, self.tags, self._offered, strict, self._lookout)
            return call, at + len(mark)
        return None, -1 if mark.startswith(text[at : at + len(mark)]) else 0


class QwenCoderCalls(TaggedCalls):
    """Qwen3-Coder, Qwen 3.5, Nemotron 3, Step 3.5 and others."""

    frame = Frame(openings=("<tool_call>",), closings=("</tool_call>",), bare=("<function=",))
    tags = Tags(
        call="<function=", call_ends=("</function>",), key="<parameter=", value_end="</parameter>", lead="\n", tail="\n"
    )


class MimoCalls(TaggedCalls):
    """As Qwen3-Coder, but every character of a value counts."""

    frame = QwenCoderCalls.frame
    tags = Tags(call="<function=", call_ends=("</function>",), key="<parameter=", value_end="</parameter>")


class SeedOssCalls(TaggedCalls):
    frame = Frame(
        openings=("<seed:tool_call>",),
        closings=("</seed:tool_call>",),
        bare=("<function=",),
        controls=("<seed:tool_call>", "</seed:tool_call>"),
    )
    tags = QwenCoderCalls.tags


class GlmCalls(TaggedCalls):
    """GLM 4.5 and later, Ling 3, Poolside: the name stands alone."""

    frame = Frame(bare=("<tool_call>",), offered=False)
    tags = Tags(
        call="<tool_call>",
        name_ends=("<arg_key>", "</tool_call>"),
        call_ends=("</tool_call>",),
        key="<arg_key>",
        key_end="</arg_key>",
        value="<arg_value>",
        value_end="</arg_value>",
    )


class HunyuanV3Calls(TaggedCalls):
    frame = Frame(openings=("<tool_calls>",), closings=("</tool_calls>",), bare=("<tool_call>",))
    tags = Tags(
        call="<tool_call>",
        name_ends=("<tool_sep>", "<arg_key>", "</tool_call>"),
        call_ends=("</tool_call>",),
        key="<arg_key>",
        key_end="</arg_key>",
        value="<arg_value>",
        value_end="</arg_value>",
    )


class MinimaxM2Calls(TaggedCalls):
    frame = Frame(openings=("<minimax:tool_call>",), closings=("</minimax:tool_call>",), bare=("<invoke name=",))
    tags = Tags(call="<invoke name=", call_ends=("</invoke>",), key="<parameter name=", value_end="</parameter>")


class DotsCalls(TaggedCalls):
    frame = Frame(openings=("<dots_function_call>",), closings=("</dots_function_call>",))
    tags = MinimaxM2Calls.tags


class MiniCpm5Calls(TaggedCalls):
    frame = Frame(bare=("<function name=",))
    tags = Tags(
        call="<function name=",
        call_ends=("</function>",),
        key="<param name=",
        value_end="</param>",
        lead="<![CDATA[",
        tail="]]>",
    )


class Step3Calls(TaggedCalls):
    frame = Frame(
        openings=("<｜tool_calls_begin｜>",),
        closings=("<｜tool_calls_end｜>",),
        between=("<｜tool_call_begin｜>", "<｜tool_call_end｜>", "<｜tool_sep｜>", "function"),
        bare=("<steptml:invoke name=",),
        controls=(
            "<｜tool_calls_begin｜>",
            "<｜tool_calls_end｜>",
            "<｜tool_call_begin｜>",
            "<｜tool_call_end｜>",
            "<｜tool_sep｜>",
        ),
    )
    tags = Tags(
        call="<steptml:invoke name=",
        call_ends=("</steptml:invoke>",),
        key="<steptml:parameter name=",
        value_end="</steptml:parameter>",
    )


class DeepSeekV32Calls(TaggedCalls):
    tags = Tags(
        call=f"<{_DSML}invoke name=",
        call_ends=(f"</{_DSML}invoke>",),
        key=f"<{_DSML}parameter name=",
        value_end=f"</{_DSML}parameter>",
        typed_by="string",
    )
    frame = Frame(openings=(f"<{_DSML}function_calls>",), closings=(f"</{_DSML}function_calls>",), bare=(tags.call,))


class DeepSeekV4Calls(TaggedCalls):
    tags = DeepSeekV32Calls.tags
    frame = Frame(
        openings=(f"<{_DSML}tool_calls>", f"<{_DSML}toolcalls>", f"<{_DSML}tool>"),
        closings=(f"</{_DSML}tool_calls>", f"</{_DSML}toolcalls>", f"</{_DSML}tool>"),
        bare=(tags.call,),
    )

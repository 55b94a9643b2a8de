"""Who writes calls as JSON, and between which marks: a row for each family of models."""

from typing import Final

from antiphon.parsers.calls.grammar import JSON_LIST, Shape
from antiphon.parsers.calls.json_calls import JsonCalls, Style
from antiphon.parsers.calls.object_call import Keys

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

"""Registry of the tool-call formats. A row makes a format selectable and adds it to the contract tests."""

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from antiphon.core.prompt import Json
from antiphon.errors import StartupError
from antiphon.parsers.calls.base import CallFrame, CallKeys, CallShape, CallTags, JsonFrame, LiteralFrame, TagFrame
from antiphon.parsers.calls.delimited_calls import DelimitedCalls
from antiphon.parsers.calls.grammar import JSON_LIST
from antiphon.plugins import find_plugin, list_names, load_reference

F = TypeVar("F", bound=CallFrame)
# The class that parses each syntax; it is imported on first use.
_SYNTAXES: Final[dict[type[CallFrame], str]] = {
    JsonFrame: "antiphon.parsers.calls.json_calls:JsonCalls",
    TagFrame: "antiphon.parsers.calls.tagged_calls:TaggedCalls",
    LiteralFrame: "antiphon.parsers.calls.literal_calls:LiteralCalls",
}


def _parse_mistral_head(head: str) -> str | None:
    """Parse the name before [ARGS] or [CALL_ID]."""
    name = head.partition("[ARGS]")[0].partition("[CALL_ID]")[0].strip()
    return name if name and not any(char.isspace() or char in "[]<>" for char in name) else None


_DEEPSEEK_SEPARATOR: Final = "<｜tool▁sep｜>"
_KIMI_ARGUMENTS: Final = "<|tool_call_argument_begin|>"


def _parse_deepseek_head(head: str) -> str | None:
    """Parse `function`, the separator, the name and the start of a fence; or the name and the separator."""
    before, separator, after = head.partition(_DEEPSEEK_SEPARATOR)
    name, _, fence = after.strip().partition("\n")
    if not separator or fence.strip() not in ("", "```json", "```"):
        return None
    return name.strip() or before.strip() or None


def _parse_kimi_head(head: str) -> str | None:
    """Parse functions.NAME:NUMBER followed by the arguments marker."""
    identity, marker, remainder = head.partition(_KIMI_ARGUMENTS)
    name, _, number = identity.strip().rpartition(":")
    return name.removeprefix("functions.") or None if marker and number.isdigit() and not remainder.strip() else None


def _control_frame(kind: type[F], opening: str, closing: str, *others: str, **fields: Any) -> F:
    """Return the frame of a family that writes calls between two control tokens; `others` are further ones."""
    return kind(openings=(opening,), closings=(closing,), controls=(opening, closing, *others), **fields)


# Qwen 2.5 Coder and small models omit the markers or write a Markdown fence instead. That is a call if the answer
# begins with it and it names an offered tool.
_HERMES: Final = JsonFrame(
    openings=("<tool_call>",),
    closings=("</tool_call>", "```"),
    unmarked=True,
    fence="```json",
    shape=CallShape(begin="<tool_call>\n", end="\n</tool_call>", marker="<tool_call>"),
)
_HUNYUAN: Final = JsonFrame(
    openings=("<tool_calls>",),
    closings=("</tool_calls>",),
    shape=CallShape(before="<tool_calls>[", between=", ", after="]</tool_calls>", marker="<tool_calls>"),
)
_DEEPSEEK_V3: Final = JsonFrame(
    openings=("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
    closings=("<｜tool▁calls▁end｜>",),
    between=("<｜tool▁call▁end｜>", "```"),
    parse_head=_parse_deepseek_head,
    controls=(
        *("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁end｜>"),
        _DEEPSEEK_SEPARATOR,
    ),
)
_KIMI_OPENINGS: Final = ("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>", "<|tool_call_begin|>")
_KIMI_CLOSINGS: Final = ("<|tool_calls_section_end|>", "<|tool_call_section_end|>", "<|tool_call_end|>")
_LIST_MARKERS: Final = ("[", "]", ",", ";")

_QWEN_TAGS: Final = CallTags(
    call="<function=", call_end="</function>", key="<parameter=", value_end="</parameter>", lead="\n", tail="\n"
)
_QWEN_CODER: Final = TagFrame(
    openings=("<tool_call>",), closings=("</tool_call>",), unwrapped_starts=("<function=",), tags=_QWEN_TAGS
)
_GLM_TAGS: Final = CallTags(  # the name has no tag of its own
    call="<tool_call>",
    name_ends=("<arg_key>", "</tool_call>"),
    call_end="</tool_call>",
    key="<arg_key>",
    key_end="</arg_key>",
    value="<arg_value>",
    value_end="</arg_value>",
)
_GLM: Final = TagFrame(unwrapped_starts=("<tool_call>",), offered_only=False, tags=_GLM_TAGS)
_INVOKE_TAGS: Final = CallTags(
    call="<invoke name=", call_end="</invoke>", key="<parameter name=", value_end="</parameter>"
)
_STEP_MARKERS: Final = ("<｜tool_call_begin｜>", "<｜tool_call_end｜>", "<｜tool_sep｜>")
_DSML: Final = "｜DSML｜"
_DSML_TAGS: Final = CallTags(
    call=f"<{_DSML}invoke name=",
    call_end=f"</{_DSML}invoke>",
    key=f"<{_DSML}parameter name=",
    value_end=f"</{_DSML}parameter>",
    type_attribute="string",
)

# Markers that are control tokens of a model are in `controls` as well.
FORMATS: Final[dict[str, CallFrame]] = {
    "apertus": _control_frame(JsonFrame, "<|tools_prefix|>", "<|tools_suffix|>", keys=CallKeys(name_is_key=True)),
    "cohere_command3": _control_frame(
        JsonFrame, "<|START_ACTION|>", "<|END_ACTION|>", keys=CallKeys(name=("tool_name", "name"))
    ),
    "deepseek_v3": _DEEPSEEK_V3,
    "deepseek_v31": _DEEPSEEK_V3,
    "deepseek_v32": TagFrame(
        openings=(f"<{_DSML}function_calls>",),
        closings=(f"</{_DSML}function_calls>",),
        unwrapped_starts=(_DSML_TAGS.call,),
        tags=_DSML_TAGS,
    ),
    "deepseek_v4": TagFrame(
        openings=(f"<{_DSML}tool_calls>", f"<{_DSML}toolcalls>", f"<{_DSML}tool>"),
        closings=(f"</{_DSML}tool_calls>", f"</{_DSML}toolcalls>", f"</{_DSML}tool>"),
        unwrapped_starts=(_DSML_TAGS.call,),
        tags=_DSML_TAGS,
    ),
    "dots": TagFrame(openings=("<dots_function_call>",), closings=("</dots_function_call>",), tags=_INVOKE_TAGS),
    "ernie45": _HERMES,
    "functiongemma": _control_frame(
        LiteralFrame, "<start_function_call>", "<end_function_call>", "<escape>", quote="<escape>"
    ),
    "gemma4": _control_frame(LiteralFrame, "<|tool_call>", "<tool_call|>", '<|"|>', quote='<|"|>'),
    "gigachat3": JsonFrame(
        openings=("<|message_sep|>\n\nfunction call<|role_sep|>\n", "function call<|role_sep|>\n", "<|function_call|>"),
        closings=("<|message_sep|>", "</s>"),
        controls=("<|message_sep|>", "<|role_sep|>", "<|function_call|>"),
    ),
    "glm45": _GLM,
    "glm47": _GLM,
    # the marker is a control token in Granite 3.0 and plain text in 3.1
    "granite": JsonFrame(
        openings=("<|tool_call|>", "<tool_call>"), closings=("</tool_call>",), controls=("<|tool_call|>",)
    ),
    "granite-20b-fc": JsonFrame(openings=("<function_call>",), controls=("<function_call>",)),
    "granite4": _control_frame(JsonFrame, "<tool_call>", "</tool_call>"),
    "hermes": _HERMES,
    "hunyuan_a13b": _HUNYUAN,
    "hy_v3": TagFrame(
        openings=("<tool_calls>",),
        closings=("</tool_calls>",),
        unwrapped_starts=("<tool_call>",),
        tags=replace(_GLM_TAGS, name_ends=("<tool_sep>", *_GLM_TAGS.name_ends)),
    ),
    "internlm": _control_frame(JsonFrame, "<|action_start|>", "<|action_end|>", "<|plugin|>", between=("<|plugin|>",)),
    "jamba": _control_frame(JsonFrame, "<tool_calls>", "</tool_calls>"),
    # an answer constrained by a JSON schema: an array of calls, or one call, and nothing else
    "json": JsonFrame(unmarked=True, shape=JSON_LIST),
    "kimi_k2": JsonFrame(
        openings=_KIMI_OPENINGS,
        closings=_KIMI_CLOSINGS[:2],
        between=_KIMI_CLOSINGS[2:],
        parse_head=_parse_kimi_head,
        controls=(*_KIMI_OPENINGS, *_KIMI_CLOSINGS, _KIMI_ARGUMENTS),
    ),
    "lfm2": _control_frame(LiteralFrame, "<|tool_call_start|>", "<|tool_call_end|>", between=_LIST_MARKERS),
    "ling3": _GLM,
    "llama3_json": JsonFrame(
        openings=("<|python_tag|>",),
        unmarked=True,
        controls=("<|python_tag|>",),
        shape=CallShape(between="; ", arguments="parameters"),
    ),
    "llama4_pythonic": _control_frame(
        LiteralFrame, "<|python_start|>", "<|python_end|>", between=_LIST_MARKERS, unmarked=True
    ),
    "longcat": _control_frame(JsonFrame, "<longcat_tool_call>", "</longcat_tool_call>"),
    # whitespace around a value is part of it
    "mimo": replace(_QWEN_CODER, tags=replace(_QWEN_TAGS, lead="", tail="")),
    "minicpm5": TagFrame(
        unwrapped_starts=("<function name=",),
        tags=CallTags(
            call="<function name=",
            call_end="</function>",
            key="<param name=",
            value_end="</param>",
            lead="<![CDATA[",
            tail="]]>",
        ),
    ),
    "minimax": _HUNYUAN,
    "minimax_m2": TagFrame(
        openings=("<minimax:tool_call>",),
        closings=("</minimax:tool_call>",),
        unwrapped_starts=("<invoke name=",),
        tags=_INVOKE_TAGS,
    ),
    # a list of objects up to 2024; since then the name, [ARGS] (and [CALL_ID]), and the arguments
    "mistral": JsonFrame(
        openings=("[TOOL_CALLS]",),
        parse_head=_parse_mistral_head,
        controls=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
        shape=CallShape(before="[TOOL_CALLS][", between=", ", after="]", marker="[TOOL_CALLS]"),
    ),
    "nemotron": _control_frame(JsonFrame, "<TOOLCALL>", "</TOOLCALL>"),
    # one call per line
    "olmo3": LiteralFrame(openings=("<function_calls>",), closings=("</function_calls>",), between=_LIST_MARKERS),
    "phi4_mini_json": JsonFrame(
        openings=("functools[", "<|tool_call|>"),
        closings=("<|/tool_call|>",),
        controls=("<|tool_call|>", "<|/tool_call|>"),
    ),
    "poolside_v1": _GLM,
    "pythonic": LiteralFrame(between=_LIST_MARKERS, unmarked=True),
    "qwen3_coder": _QWEN_CODER,
    "qwen3_xml": _QWEN_CODER,
    "seed_oss": _control_frame(
        TagFrame, "<seed:tool_call>", "</seed:tool_call>", unwrapped_starts=("<function=",), tags=_QWEN_TAGS
    ),
    "step3": _control_frame(
        TagFrame,
        "<｜tool_calls_begin｜>",
        "<｜tool_calls_end｜>",
        *_STEP_MARKERS,
        between=(*_STEP_MARKERS, "function"),
        unwrapped_starts=("<steptml:invoke name=",),
        tags=CallTags(
            call="<steptml:invoke name=",
            call_end="</steptml:invoke>",
            key="<steptml:parameter name=",
            value_end="</steptml:parameter>",
        ),
    ),
    "step3p5": _QWEN_CODER,
    # a list, unmarked or after a marker; in all cases only of offered tools
    "xlam": JsonFrame(
        openings=("```json", "[TOOL_CALLS]", "<tool_call>"), closings=("```", "</tool_call>"), unmarked=True
    ),
}


@cache
def find_format(name: str) -> CallFrame | None:
    """Return the format of this name, of the table or of another package; None if there is none."""
    frame: CallFrame | None = find_plugin("parsers", name, FORMATS, CallFrame)
    return frame


def list_formats() -> list[str]:
    return list_names("parsers", FORMATS)


@cache
def load_format(name: str) -> Callable[[Mapping[str, Json]], DelimitedCalls]:
    """Return what creates the parser of a format from the offered tools' schemas, imported on first use."""
    if (frame := find_format(name)) is None:
        raise StartupError(f"Unknown tool-call format {name!r}; available formats: {', '.join(list_formats())}.")
    if not (syntax := frame.syntax or _SYNTAXES.get(type(frame))):
        raise StartupError(f"The tool-call format {name!r} has no `syntax`, the class that parses it.")
    return partial(load_reference(syntax), frame)

"""Settings of a gpt-oss prompt beside the chat, and the forced beginning of the answer where the request leaves no
choice.

    free            <|start|>assistant                                              reasoning, calls or answer
    final           … <|channel|>final <|constrain|>json<|message|>                 answer without reasoning
    functions       … <|channel|>commentary to=functions                            call of any function
    functions.f     … <|channel|>commentary to=functions.f <|constrain|>json<|message|>

A header written into the prompt works on every engine, and a constraint on the text after it constrains the answer
alone; but the model cannot reason first. On engines that accept a grammar of complete answers it can.

Two forms of such a grammar exist: a Lark grammar in the llguidance dialect (llama.cpp) with control tokens by number,
and an xgrammar structural tag (vLLM, SGLang) with control tokens by name, whose last token is left to the engine:

    (<|channel|>analysis<|message|> … <|end|><|start|>assistant)* then one call, or the answer
"""

import json
from collections.abc import Iterable, Sequence
from datetime import date
from typing import Any, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.harmony import CALL, CHANNEL, CONSTRAIN, END, FUNCTIONS_NAMESPACE, MESSAGE, START
from antiphon.core.prompt import ChatPrompt, Constraint, Grammar, Json, JsonObject, JsonSchema, StructuralTag
from antiphon.protocol.schemas.schema_edits import bound_values
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import JsonObjectFormat, JsonSchemaFormat

AnswerFormat = JsonSchemaFormat | JsonObjectFormat
ConstraintKind = Literal["json", "lark", "tag"]  # constraints that an engine can enforce
# calls: tool_choice and strict tools; form: the format of the answer
EnforcedParts = frozenset[Literal["calls", "form"]]

# gpt-oss has three levels; all other efforts map to high
EFFORTS: Final = {"none": "low", "minimal": "low", "low": "low", "medium": "medium"}
FINAL: Final = "final"
PYTHON: Final = "python"  # has no functions: a message to it is code
BUILTIN_NAMESPACES: Final = frozenset({"browser", PYTHON})  # tools described in their trained form
CALLS_ENFORCED: Final[EnforcedParts] = frozenset({"calls"})
FORMAT_ENFORCED: Final[EnforcedParts] = frozenset({"form"})
ALL_ENFORCED: Final = CALLS_ENFORCED | FORMAT_ENFORCED  # no other output is possible


class HarmonySettings(Struct, frozen=True, kw_only=True):
    """Contents of the system message and the forced beginning of the answer."""

    today: str
    effort: str = "medium"
    builtins: tuple[str, ...] = ()  # namespaces browser and python, if declared and runnable
    answer_format: AnswerFormat | None = None
    all_turns: bool = False  # include the reasoning of finished turns
    opening: str = ""  # forced beginning of the answer, see the module docstring


class HarmonyConstraint(Struct, frozen=True, kw_only=True):
    """Forced beginning of an answer and the constraint on its content."""

    opening: str = ""
    constraint: Constraint | None = None
    enforced: EnforcedParts = frozenset()  # what the constraint guarantees; all else is checked afterwards


def find_builtins(chat: ChatPrompt) -> tuple[str, ...]:
    """Return the built-in namespaces (browser, python) that the model may call in the form it was trained with.

    If a call is required there are none: the tools are offered as functions, whose arguments a schema can constrain.
    """
    if chat.tool_choice != "auto":
        return ()
    return tuple(
        sorted(
            {namespace for tool in chat.tools if (namespace := _recipient_namespace(chat, tool)) in BUILTIN_NAMESPACES}
        )
    )


def remove_builtins(chat: ChatPrompt) -> ChatPrompt:
    """Remove the tools of built-in namespaces from the functions."""
    if not (namespaces := find_builtins(chat)):
        return chat
    return replace(
        chat, tools=tuple([tool for tool in chat.tools if _recipient_namespace(chat, tool) not in namespaces])
    )


def find_other_namespaces(chat: ChatPrompt) -> tuple[str, ...]:
    """Return further namespaces the model may address; their tools are offered as functions."""
    return tuple(sorted({_recipient_namespace(chat, tool) for tool in chat.tools} - BUILTIN_NAMESPACES - {""}))


def _recipient_namespace(chat: ChatPrompt, tool: Json) -> str:
    return chat.recipients.get(tool["function"]["name"], "").partition(".")[0]


def build_harmony_settings(
    request: CreateResponse, today: date, constraint: HarmonyConstraint, builtins: tuple[str, ...] = ()
) -> HarmonySettings:
    effort = request.reasoning.effort
    answer_format = request.text.format
    return HarmonySettings(
        today=today.isoformat(),
        effort="medium" if effort is None else EFFORTS.get(effort, "high"),
        builtins=builtins,
        answer_format=answer_format if isinstance(answer_format, AnswerFormat) else None,
        all_turns=request.reasoning.context == "all_turns",
        opening=constraint.opening,
    )


def derive_constraint(
    request: CreateResponse, chat: ChatPrompt, constraint_kinds: frozenset[ConstraintKind], builtins: bool = False
) -> HarmonyConstraint:
    """Derive the constraint from `tool_choice`, `text.format`, strict tools and a reasoning effort of none.

    `constraint_kinds`: constraints that the engine supports.
    """
    answer_format = request.text.format
    allow_reasoning = request.reasoning.effort != "none"

    def constrain(tools: Sequence[Json], enforced: EnforcedParts, **parts: Any) -> HarmonyConstraint | None:
        """Constrain the complete answer by a grammar, if the engine accepts one."""
        if constraint_kinds.isdisjoint(("tag", "lark")):
            return None
        build = build_structural_tag if "tag" in constraint_kinds else build_lark_grammar
        grammar = build(tools, **{"schema": None, "allow_reasoning": allow_reasoning, **parts})
        return HarmonyConstraint(constraint=grammar, enforced=enforced)

    if required := list_required_tools(chat):
        return constrain(required, ALL_ENFORCED, allow_answer=False) or _open_call(required, constraint_kinds)
    if isinstance(answer_format, AnswerFormat) and not builtins:  # arguments of built-in tools are not JSON
        return constrain(chat.tools, ALL_ENFORCED, schema=_answer_schema(answer_format)) or _open_answer(
            answer_format, chat, constraint_kinds
        )
    if not builtins and any(_is_strict(tool) for tool in chat.tools):
        tools = [tool if _is_strict(tool) else _drop_parameters(tool) for tool in chat.tools]
        return constrain(tools, CALLS_ENFORCED) or HarmonyConstraint()
    return HarmonyConstraint() if allow_reasoning or chat.tools or builtins else HarmonyConstraint(opening=FINAL)


def list_required_tools(chat: ChatPrompt) -> Sequence[Json]:
    """Return the tools of which one must be called; empty if no call is required."""
    if isinstance(chat.tool_choice, dict):
        name = chat.tool_choice["function"]["name"]
        return [tool for tool in chat.tools if tool["function"]["name"] == name]
    return chat.tools if chat.tool_choice == "required" else ()


def _open_call(tools: Sequence[Json], constraint_kinds: frozenset[ConstraintKind]) -> HarmonyConstraint:
    """Write the header of the call into the prompt, and constrain its arguments if only one tool is possible."""
    if len(tools) > 1:
        return HarmonyConstraint(opening=FUNCTIONS_NAMESPACE)
    function = tools[0]["function"]
    opening = f"{FUNCTIONS_NAMESPACE}.{function['name']}"
    if "json" not in constraint_kinds:
        return HarmonyConstraint(opening=opening)
    constraint = JsonSchema(schema=function["parameters"], name=function["name"], strict=_is_strict(tools[0]))
    return HarmonyConstraint(opening=opening, constraint=constraint, enforced=ALL_ENFORCED)


def _open_answer(
    answer_format: AnswerFormat, chat: ChatPrompt, constraint_kinds: frozenset[ConstraintKind]
) -> HarmonyConstraint:
    """Write the header of the answer into the prompt and constrain its text, if the model cannot call tools instead."""
    if chat.tools or "json" not in constraint_kinds:
        return HarmonyConstraint()
    constraint: Constraint = JsonObject()
    if isinstance(answer_format, JsonSchemaFormat):
        strict = answer_format.strict is not False
        constraint = JsonSchema(schema=answer_format.schema, name=answer_format.name, strict=strict)
    return HarmonyConstraint(opening=FINAL, constraint=constraint, enforced=FORMAT_ENFORCED)


def _answer_schema(answer_format: AnswerFormat) -> Json:
    return answer_format.schema if isinstance(answer_format, JsonSchemaFormat) else {"type": "object"}


def _is_strict(tool: Json) -> bool:
    return tool["function"].get("strict") is True


def _drop_parameters(tool: Json) -> Json:
    return {**tool, "function": {**tool["function"], "parameters": {"type": "object"}}}


# xgrammar lets no stop token through: "" stands for the position where the engine stops by itself
_END_STRINGS = ["<|end|>", ""]


def build_lark_grammar(
    tools: Sequence[Json], schema: Json | None, *, allow_answer: bool = True, allow_reasoning: bool = True
) -> Grammar:
    """Build a Lark grammar of the answer. No `schema`: any text. Without `allow_answer` a tool must be called."""
    calls = [f"call_{number}" for number in range(len(tools))]
    endings = [*calls, *(["answer"] if allow_answer else [])]
    rules = [
        f"start: {'thought* ' if allow_reasoning else ''}preamble* ({' | '.join(endings)})",
        *(_message_rule("thought", "analysis") if allow_reasoning else ()),
        *_message_rule("preamble", "commentary"),
        "TEXT: /(.|\\n)*/",
    ]
    for name, tool in zip(calls, tools, strict=True):
        rules += _call_rule(name, tool["function"])
    if allow_answer:
        content = "TEXT" if schema is None else _json_rule(schema)
        rules.append(f'answer: {_token_rule(CHANNEL)} "final" typed? {_token_rule(MESSAGE)} {content}')
    rules.append(f'typed: " "? {_token_rule(CONSTRAIN)}? "json"')
    return Grammar("lark", "\n".join(rules))


def _message_rule(rule: str, channel: str) -> Iterable[str]:
    head = f'{_token_rule(CHANNEL)} "{channel}" {_token_rule(MESSAGE)}'
    yield f'{rule}: {head} TEXT {_token_rule(END)} {_token_rule(START)} "assistant"'


def _call_rule(rule: str, function: Json) -> Iterable[str]:
    recipient = _to_json(f" to={FUNCTIONS_NAMESPACE}.{function['name']}")
    channel = f'{_token_rule(CHANNEL)} ("commentary" | "analysis")'
    arguments = _json_rule(function["parameters"])
    head = f"({channel} {recipient} | {recipient} {channel}) typed?"
    yield f"{rule}: {head} {_token_rule(MESSAGE)} {arguments} {_token_rule(CALL)}"


def _json_rule(schema: Json) -> str:
    """Match a JSON value without white space, because a model may emit white space endlessly."""
    return f"%json {_to_json({**bound_values(schema), 'x-guidance': {'whitespace_flexible': False}})}"


def build_structural_tag(
    tools: Sequence[Json], schema: Json | None, *, allow_answer: bool = True, allow_reasoning: bool = True
) -> StructuralTag:
    """Build the same constraint as an xgrammar structural tag."""
    endings = [call_tag for tool in tools for call_tag in _call_tags(tool["function"])]
    if allow_answer:
        content = {"type": "any_text"} if schema is None else {"type": "json_schema", "json_schema": schema}
        headers = ("final",) if schema is None else ("final <|constrain|>json", "final")
        endings += [_make_tag(f"<|channel|>{header}<|message|>", content) for header in headers]
    reasoning = [_optional_message("analysis")] if allow_reasoning else []
    elements = [*reasoning, _optional_message("commentary"), {"type": "or", "elements": endings}]
    return StructuralTag({"type": "structural_tag", "format": {"type": "sequence", "elements": elements}})


def _call_tags(function: Json) -> Iterable[Json]:
    content = {"type": "json_schema", "json_schema": function["parameters"]}
    recipient = f"to={FUNCTIONS_NAMESPACE}.{function['name']}"
    for channel in ("<|channel|>commentary", "<|channel|>analysis"):
        for content_type in ("<|constrain|>json", "json"):
            yield _make_tag(f"{channel} {recipient} {content_type}<|message|>", content)
            yield _make_tag(f" {recipient}{channel} {content_type}<|message|>", content)


def _make_tag(begin: str, content: Json, end: str | Sequence[str] = _END_STRINGS) -> Json:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def _optional_message(channel: str) -> Json:
    message = _make_tag(f"<|channel|>{channel}<|message|>", {"type": "any_text"}, "<|end|>")
    next_start = {"type": "const_string", "value": "<|start|>assistant"}
    return {"type": "optional", "content": {"type": "sequence", "elements": [message, next_start]}}


def _token_rule(number: int) -> str:
    return f"<[{number}]>"


def _to_json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))

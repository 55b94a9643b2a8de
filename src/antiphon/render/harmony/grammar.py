"""Grammars of complete Harmony answers, for engines with constrained decoding: reasoning first, then a call or an
answer.

    (<|channel|>analysis<|message|> … <|end|><|start|>assistant)* then one call, or the answer

Two forms exist: a Lark grammar in the llguidance dialect (llama.cpp) with control tokens by number, and an xgrammar
structural tag (vLLM, SGLang) with control tokens by name, in which the last token is left to the engine.
"""

import json
from collections.abc import Iterable, Sequence

from antiphon.core.harmony import CALL, CHANNEL, CONSTRAIN, END, FUNCTIONS_NAMESPACE, MESSAGE, START
from antiphon.core.prompt import Grammar, Json, StructuralTag

# xgrammar lets no stop token through: "" stands for the position where the engine stops by itself
_END_STRINGS = ["<|end|>", ""]


def build_lark_grammar(
    tools: Sequence[Json], schema: Json | None, *, allow_answer: bool = True, allow_reasoning: bool = True
) -> Grammar:
    """Build a Lark grammar of the answer.

    `schema` of the final answer; None allows any text. Without `allow_answer` the model must call a tool.
    """
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
    return f"%json {_to_json({**schema, 'x-guidance': {'whitespace_flexible': False}})}"


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

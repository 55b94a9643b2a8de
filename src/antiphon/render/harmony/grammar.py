"""Grammars of whole Harmony answers, for engines that hold a model to one: it may think first, then calls or answers.

    (<|channel|>analysis<|message|> … <|end|><|start|>assistant)* then one call, or the answer

As a Lark grammar in the dialect of llguidance (llama.cpp), control tokens by number; and as a structural tag in the
form of xgrammar (vLLM, SGLang), which knows them by name and leaves the last one to the engine.
"""

import json
from collections.abc import Iterable, Sequence

from antiphon.core.harmony import CALL, CHANNEL, CONSTRAIN, END, FUNCTIONS, MESSAGE, START
from antiphon.core.prompt import Grammar, Json, StructuralTag

_ENDS = ["<|end|>", ""]  # xgrammar lets no stop token through: "" is where the engine stops by itself


def grammar(tools: Sequence[Json], schema: Json | None, *, answers: bool = True, thinks: bool = True) -> Grammar:
    """`schema` of the answer; None: any text. Without `answers` it must call."""
    calls = [f"call_{number}" for number in range(len(tools))]
    lasts = [*calls, *(["answer"] if answers else [])]
    rules = [
        f"start: {'thought* ' if thinks else ''}preamble* ({' | '.join(lasts)})",
        *(_said("thought", "analysis") if thinks else ()),
        *_said("preamble", "commentary"),
        "TEXT: /(.|\\n)*/",
    ]
    for name, tool in zip(calls, tools, strict=True):
        rules += _call(name, tool["function"])
    if answers:
        form = "TEXT" if schema is None else _instance(schema)
        rules.append(f'answer: {_token(CHANNEL)} "final" typed? {_token(MESSAGE)} {form}')
    rules.append(f'typed: " "? {_token(CONSTRAIN)}? "json"')
    return Grammar("lark", "\n".join(rules))


def _said(rule: str, channel: str) -> Iterable[str]:
    yield f'{rule}: {_token(CHANNEL)} "{channel}" {_token(MESSAGE)} TEXT {_token(END)} {_token(START)} "assistant"'


def _call(rule: str, function: Json) -> Iterable[str]:
    to = _json(f" to={FUNCTIONS}.{function['name']}")
    channel = f'{_token(CHANNEL)} ("commentary" | "analysis")'
    arguments = _instance(function["parameters"])
    yield f"{rule}: ({channel} {to} | {to} {channel}) typed? {_token(MESSAGE)} {arguments} {_token(CALL)}"


def _instance(schema: Json) -> str:
    """Without white space, in which a model may lose itself."""
    return f"%json {_json({**schema, 'x-guidance': {'whitespace_flexible': False}})}"


def tag(tools: Sequence[Json], schema: Json | None, *, answers: bool = True, thinks: bool = True) -> StructuralTag:
    lasts = [one for tool in tools for one in _tagged_calls(tool["function"])]
    if answers:
        content = {"type": "any_text"} if schema is None else {"type": "json_schema", "json_schema": schema}
        starts = ("final",) if schema is None else ("final <|constrain|>json", "final")
        lasts += [_tagged(f"<|channel|>{start}<|message|>", content) for start in starts]
    before = [_optional("analysis")] if thinks else []
    elements = [*before, _optional("commentary"), {"type": "or", "elements": lasts}]
    return StructuralTag({"type": "structural_tag", "format": {"type": "sequence", "elements": elements}})


def _tagged_calls(function: Json) -> Iterable[Json]:
    content = {"type": "json_schema", "json_schema": function["parameters"]}
    to = f"to={FUNCTIONS}.{function['name']}"
    for channel in ("<|channel|>commentary", "<|channel|>analysis"):
        for kind in ("<|constrain|>json", "json"):
            yield _tagged(f"{channel} {to} {kind}<|message|>", content)
            yield _tagged(f" {to}{channel} {kind}<|message|>", content)


def _tagged(begin: str, content: Json, end: str | Sequence[str] = _ENDS) -> Json:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def _optional(channel: str) -> Json:
    said = _tagged(f"<|channel|>{channel}<|message|>", {"type": "any_text"}, "<|end|>")
    more = {"type": "const_string", "value": "<|start|>assistant"}
    return {"type": "optional", "content": {"type": "sequence", "elements": [said, more]}}


def _token(number: int) -> str:
    return f"<[{number}]>"


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))

"""Output constraints of models whose raw output is parsed here, and the matching parser settings.

    engine      tool_choice required or named       a format of the answer              strict tools, free choice
    lark        calls in the model's own format     reasoning, then JSON or a call      text that may contain a call
    json        a list of calls                     JSON                                not constrained
    none        not constrained                     not constrained                     not constrained

With JSON schemas only, the complete answer is JSON and the model does not reason first; engines that parse reasoning
themselves apply a schema only after it. Rules that are not enforced here are checked afterwards
(agent/output_gate.py).
"""

import json
from collections.abc import Mapping
from typing import Any, Final, Literal

from msgspec.structs import replace

from antiphon.core.prompt import ChatPrompt, Constraint, Grammar, Json, JsonSchema
from antiphon.parsers.base import ParserOptions
from antiphon.parsers.calls.base import CallShape, GrammarRequest, ReasoningPrefix
from antiphon.parsers.calls.grammar import JSON_LIST, MAX_CALLS, write_grammar
from antiphon.parsers.calls.registry import find_format
from antiphon.parsers.detection import ModelOutputFormat
from antiphon.parsers.raw import RawParser
from antiphon.parsers.reasoning import REASONING_FORMATS
from antiphon.protocol.schemas.schema_edits import edit_keywords
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import JsonObjectFormat, JsonSchemaFormat
from antiphon.render.harmony.system import ConstraintKind, list_required_tools
from antiphon.service.model_io.adapter import OutputSpec, make_constraint, name_tools

CALL_LIST_FORMAT: Final = "json"  # call format of any model that is constrained to a list of calls


class OutputConstraints:
    def __init__(
        self, request: CreateResponse, output_format: ModelOutputFormat, kinds: frozenset[ConstraintKind]
    ) -> None:
        self._request = request
        self._output_format = output_format
        # engines that also support structural tags have another Lark dialect
        self._lark = "lark" in kinds and "tag" not in kinds
        self._json = "json" in kinds

    def build(self, chat: ChatPrompt, parser_options: ParserOptions, opened: bool) -> OutputSpec:
        """Build the constraint. `parser_options`: those without one. `opened`: the prompt ends within reasoning."""
        text_format = self._request.text.format
        if isinstance(chat.tool_choice, dict):  # a named tool is called once
            chat = replace(chat, parallel_tool_calls=False)
        if required := list_required_tools(chat):
            return self._constrain_calls(chat, parser_options, name_tools(tuple(required)), opened)
        if isinstance(text_format, JsonSchemaFormat | JsonObjectFormat):
            return self._constrain_answer(chat, text_format, parser_options, opened)
        plain = make_constraint(self._request)
        is_strict = any(tool["function"].get("strict") for tool in chat.tools)
        if plain is None and is_strict and (grammar := self._make_grammar(chat, parser_options.tools, opened, "text")):
            return _make_constrained(parser_options, grammar, "calls")
        return _make_constrained(parser_options, plain)

    def find_unenforced_format(self, chat: ChatPrompt) -> JsonSchemaFormat | JsonObjectFormat | None:
        """Return the format of the answer if the engine cannot enforce it because the answer may contain calls."""
        text_format = self._request.text.format
        may_answer = bool(chat.tools) and not self._lark and not list_required_tools(chat)
        return text_format if may_answer and isinstance(text_format, JsonSchemaFormat | JsonObjectFormat) else None

    def _constrain_calls(
        self, chat: ChatPrompt, parser_options: ParserOptions, tools: Mapping[str, Json], opened: bool
    ) -> OutputSpec:
        native = self._make_grammar(chat, tools, opened)
        if grammar := native or self._make_grammar(chat, tools, opened, shape=JSON_LIST):
            calls = self._output_format.calls if native else CALL_LIST_FORMAT
            return _make_constrained(replace(parser_options, calls=calls, tools=tools), grammar, "calls")
        if self._json or self._lark:
            schema = make_call_list_schema(tools, parallel=chat.parallel_tool_calls)
            listed = replace(parser_options, calls=CALL_LIST_FORMAT, tools=tools, json_answer=True)
            return _make_constrained(listed, JsonSchema(schema, "calls", strict=False), "calls")
        return _make_constrained(parser_options, None)

    def _constrain_answer(
        self,
        chat: ChatPrompt,
        text_format: JsonSchemaFormat | JsonObjectFormat,
        parser_options: ParserOptions,
        opened: bool,
    ) -> OutputSpec:
        schema = text_format.schema if isinstance(text_format, JsonSchemaFormat) else {"type": "object"}
        if (parser_options.reasoning or parser_options.tools) and (
            grammar := self._make_grammar(chat, parser_options.tools, opened, schema)
        ):
            return _make_constrained(parser_options, grammar, "form", "calls")
        if parser_options.tools or not (self._json or self._lark):
            return _make_constrained(parser_options, None)
        return _make_constrained(replace(parser_options, json_answer=True), make_constraint(self._request), "form")

    def _make_grammar(
        self,
        chat: ChatPrompt,
        tools: Mapping[str, Json],
        opened: bool,
        answer: Json | Literal["text"] | None = None,
        shape: CallShape | None = None,
    ) -> Grammar | None:
        """Return a grammar with calls in this shape, by default the model's own; None if there is none.

        No grammar can close the reasoning of some models. Free text with calls has none if the marker is a control
        token, which text rules cannot match.
        """
        calls = self._output_format.calls
        thinking, own = self._make_thinking(opened), find_format(calls) if calls else None
        if not self._lark or (opened and thinking is None):
            return None
        if tools and own is not None and shape is None:
            shape = own.shape
            if shape is None or (answer == "text" and shape.marker in own.controls):
                return None
        call_count: Literal["one", "several"] = "several" if chat.parallel_tool_calls else "one"
        request = GrammarRequest(tools=tools, call_count=call_count, answer=answer, reasoning=thinking)
        return write_grammar(shape, request)

    def _make_thinking(self, opened: bool) -> ReasoningPrefix | None:
        if self._output_format.reasoning is None:
            return None
        markers = REASONING_FORMATS[self._output_format.reasoning]
        opening, closing = (
            _to_grammar_terminal(markers.opening[0], markers.control_tokens),
            _to_grammar_terminal(markers.closing[0], markers.control_tokens),
        )
        if closing is None or (opening is None and not opened):
            return None
        return ReasoningPrefix(opening=opening or "", closing=closing, is_open=opened)


def describe_format(chat: ChatPrompt, text_format: JsonSchemaFormat | JsonObjectFormat) -> ChatPrompt:
    """Add the required format to the system message, for a model that no constraint binds to it."""
    note = "Unless you call a tool, answer with JSON and nothing else."
    if isinstance(text_format, JsonSchemaFormat):
        note += f" It must be an instance of this JSON schema: {json.dumps(text_format.schema, ensure_ascii=False)}"
    first, *others = chat.messages or ({},)
    if first.get("role") == "system" and isinstance(first["content"], str):
        return replace(chat, messages=({**first, "content": f"{first['content']}\n\n{note}"}, *others))
    return replace(chat, messages=({"role": "system", "content": note}, *chat.messages))


def make_call_list_schema(tools: Mapping[str, Json], *, parallel: bool) -> Json:
    """Return the JSON schema of a list of calls. Local `$ref`s are rebased to `$defs` (JSON Schema 2020-12)."""
    definitions = {
        f"f{number}": _rebase_refs(tool["function"]["parameters"], f"f{number}")
        for number, tool in enumerate(tools.values())
    }
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "parameters": {"$ref": f"#/$defs/f{number}"}},
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
        for number, name in enumerate(tools)
    ]
    max_items = MAX_CALLS if parallel else 1
    return {"type": "array", "items": {"anyOf": calls}, "minItems": 1, "maxItems": max_items, "$defs": definitions}


def _rebase_refs(schema: Json, definition: str) -> Any:
    def rebase(keyword: str, value: str) -> str:
        return f"#/$defs/{definition}{value[1:]}" if keyword == "$ref" and value.startswith("#") else value

    return edit_keywords(schema, rebase)


def _make_constrained(
    parser_options: ParserOptions, output_constraint: Constraint | None, *parts: Literal["calls", "form"]
) -> OutputSpec:
    return OutputSpec(
        parser=RawParser, parser_options=parser_options, constraint=output_constraint, enforced=frozenset(parts)
    )


def _to_grammar_terminal(marker: str, controls: tuple[str, ...]) -> str | None:
    """Return the marker as a grammar terminal; Lark names control tokens in angle brackets. None: not expressible."""
    if not any(control in marker for control in controls):
        return json.dumps(marker)
    return marker if marker in controls and marker.startswith("<") and marker.endswith(">") else None

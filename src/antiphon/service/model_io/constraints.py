"""What a model whose words we read is held to by its engine, and how it is read then.

    means       tool_choice required or named       a format of the answer              strict tools, and a free choice
    lark        calls as the model writes them      thought, then JSON, or a call       text in which a call fits
    json        a list of calls                     JSON                                nothing
    none        nothing                             nothing                             nothing

Where only schemas are known the whole answer is JSON, and the model does not think first; but engines that know of
thoughts themselves hold a model to a schema only after its thought. What is left open here is looked at afterwards
(agent/output_retry.py).
"""

import json
from collections.abc import Mapping
from typing import Any, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.prompt import ChatPrompt, Constraint, Grammar, Json, JsonSchema
from antiphon.parsers.base import Reading
from antiphon.parsers.calls.base import Thinking, Wish
from antiphon.parsers.calls.grammar import JSON_LIST, MOST_CALLS, write_grammar
from antiphon.parsers.calls.registry import load_format
from antiphon.parsers.detection import Manner
from antiphon.parsers.reasoning.formats import THOUGHTS
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import JsonObjectFormat, JsonSchemaFormat
from antiphon.service.model_io.base import Held, Means
from antiphon.service.model_io.sampling import constraint

LIST: Final = "json"  # the calls format of any model that is made to write a list of calls
_VALUES: Final = frozenset({"const", "enum", "default", "examples"})  # keywords that hold instances, not schemas


class Demand(Struct, frozen=True, kw_only=True):
    reading: Reading
    constraint: Constraint | None = None
    held: Held = frozenset()  # to what it is held by that


class Demands:
    """Of one request."""

    def __init__(self, request: CreateResponse, manner: Manner, means: frozenset[Means]) -> None:
        self._request = request
        self._manner = manner
        self._lark = "lark" in means and "tag" not in means  # who knows tags too has another dialect of Lark
        self._json = "json" in means

    def of(self, chat: ChatPrompt, reading: Reading, opened: bool) -> Demand:
        """`reading`: how it is read if it is held to nothing; `opened`: the prompt ends within a thought."""
        form = self._request.text.format
        if isinstance(chat.tool_choice, dict):  # one that is named is called once
            chat = replace(chat, parallel_tool_calls=False)
        if names := must_call(chat):
            return self._calling(chat, reading, {name: reading.tools[name] for name in names}, opened)
        if isinstance(form, JsonSchemaFormat | JsonObjectFormat):
            return self._answering(chat, form, reading, opened)
        free = constraint(self._request)
        if free is None and self._lark and any(tool["function"].get("strict") for tool in chat.tools):
            return self._choosing(chat, reading, opened)
        return Demand(reading=reading, constraint=free)

    def unheld_form(self, chat: ChatPrompt) -> JsonSchemaFormat | JsonObjectFormat | None:
        """The form of the answer, if the engine cannot see to it because there may be calls too."""
        form = self._request.text.format
        free = bool(chat.tools) and not self._lark and not must_call(chat)
        return form if free and isinstance(form, JsonSchemaFormat | JsonObjectFormat) else None

    def _calling(self, chat: ChatPrompt, reading: Reading, tools: Mapping[str, Json], opened: bool) -> Demand:
        if self._lark and (wish := self._wish(chat, tools, opened)):
            own = self._grammar(wish)
            grammar = own or write_grammar(JSON_LIST, wish)
            calls = self._manner.calls if own else LIST
            return _held(replace(reading, calls=calls, tools=tools), grammar, "calls")
        if self._json or self._lark:
            schema = list_of_calls(tools, parallel=chat.parallel_tool_calls)
            listed = replace(reading, calls=LIST, tools=tools, brackets=True)
            return _held(listed, JsonSchema(schema, "calls", strict=False), "calls")
        return Demand(reading=reading)

    def _answering(
        self, chat: ChatPrompt, form: JsonSchemaFormat | JsonObjectFormat, reading: Reading, opened: bool
    ) -> Demand:
        schema = form.schema if isinstance(form, JsonSchemaFormat) else {"type": "object"}
        if self._lark and (reading.thoughts or reading.tools):
            wish = self._wish(chat, reading.tools, opened, schema)
            made = None if wish is None else self._grammar(wish)
            if made is not None:
                return _held(reading, made, "form", "calls")
        if reading.tools or not (self._json or self._lark):
            return Demand(reading=reading)
        return _held(replace(reading, brackets=True), constraint(self._request), "form")

    def _choosing(self, chat: ChatPrompt, reading: Reading, opened: bool) -> Demand:
        wish = self._wish(chat, reading.tools, opened, "text")
        made = None if wish is None else self._grammar(wish)
        return _held(reading, made, "calls") if made else Demand(reading=reading)

    def _grammar(self, wish: Wish) -> Grammar | None:
        """As the model writes its calls, if there are any to write."""
        calls = self._manner.calls
        return load_format(calls)(wish.tools).grammar(wish) if wish.tools and calls else write_grammar(None, wish)

    def _wish(self, chat: ChatPrompt, tools: Mapping[str, Json], opened: bool, answer: Any = None) -> Wish | None:
        """None: the prompt has opened a thought that no grammar can close."""
        thinking = self._thinking(opened)
        if opened and thinking is None:
            return None
        return Wish(
            tools=tools,
            most="several" if chat.parallel_tool_calls else "one",
            answer=answer,
            thinks_first=thinking,
        )

    def _thinking(self, opened: bool) -> Thinking | None:
        if self._manner.thoughts is None:
            return None
        marks = THOUGHTS[self._manner.thoughts]
        opening, closing = _written(marks.opening[0], marks.controls), _written(marks.closing[0], marks.controls)
        if closing is None or (opening is None and not opened):
            return None
        return Thinking(opening=opening or "", closing=closing, opened=opened)


def told_of_form(chat: ChatPrompt, form: JsonSchemaFormat | JsonObjectFormat) -> ChatPrompt:
    """For a model that nobody holds to it."""
    note = "Unless you call a tool, answer with JSON and nothing else."
    if isinstance(form, JsonSchemaFormat):
        note += f" It must be an instance of this JSON schema: {json.dumps(form.schema, ensure_ascii=False)}"
    first, *others = chat.messages or ({},)
    if first.get("role") == "system" and isinstance(first["content"], str):
        return replace(chat, messages=({**first, "content": f"{first['content']}\n\n{note}"}, *others))
    return replace(chat, messages=({"role": "system", "content": note}, *chat.messages))


def must_call(chat: ChatPrompt) -> list[str]:
    """The names of which it has to call one; none if it need not."""
    if isinstance(chat.tool_choice, dict):
        return [chat.tool_choice["function"]["name"]]
    return [tool["function"]["name"] for tool in chat.tools] if chat.tool_choice == "required" else []


def list_of_calls(tools: Mapping[str, Json], *, parallel: bool) -> Json:
    """The schema of a list of calls of them. What a schema refers to within itself it must find again."""
    defined = {
        f"f{number}": _moved(tool["function"]["parameters"], f"f{number}") for number, tool in enumerate(tools.values())
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
    most = MOST_CALLS if parallel else 1
    return {"type": "array", "items": {"anyOf": calls}, "minItems": 1, "maxItems": most, "$defs": defined}


def _moved(schema: Any, place: str) -> Any:
    if isinstance(schema, list):
        return [_moved(part, place) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: f"#/$defs/{place}{part[1:]}"
        if key == "$ref" and isinstance(part, str) and part.startswith("#")
        else part
        if key in _VALUES
        else _moved(part, place)
        for key, part in schema.items()
    }


def _held(reading: Reading, made: Constraint | None, *to: Literal["calls", "form"]) -> Demand:
    return Demand(reading=reading, constraint=made, held=frozenset(to))


def _written(mark: str, controls: tuple[str, ...]) -> str | None:
    """In a grammar, which knows control tokens by names in angle brackets; None: it cannot be written."""
    if not any(control in mark for control in controls):
        return json.dumps(mark)
    return mark if mark in controls and mark.startswith("<") and mark.endswith(">") else None

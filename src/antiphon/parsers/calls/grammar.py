"""Grammars of complete answers, for engines with constrained decoding: reasoning, then calls or an answer.

    text and calls      reasoning? (head call){0,8} text     a call follows wherever its marker is written
    calls only          reasoning? calls
    calls or JSON       reasoning? (calls | answer)

The grammars are written in llguidance's dialect of Lark. Arguments and answers are instances of their schemas. JSON
whitespace is fixed to the form that models usually write, because with flexible whitespace some never stop emitting it.
Schemas are `lenient`: keywords that llguidance does not support are ignored, so strict callers validate again.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from antiphon.core.prompt import Grammar, Json
from antiphon.parsers.calls.base import CallShape, GrammarRequest, ReasoningPrefix
from antiphon.protocol.schemas.schema_edits import bound_values, edit_keywords

MAX_CALLS: Final = 8  # consecutive calls; small models may not stop by themselves
_JSON_OPTIONS: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": True}
_LOOKAROUNDS: Final = ("(?=", "(?!", "(?<=", "(?<!", "\\1", "\\k")  # lookahead, lookbehind and backreferences
_SPACE_RULE: Final = "SPACE: /[ \\n]{1,4}/"
_REGEX_SPECIAL: Final = frozenset('\\.+*?()|[]{}^$#&-~/"')

JSON_LIST: Final = CallShape(before="[", between=", ", after="]", arguments="parameters")


def write_grammar(shape: CallShape | None, request: GrammarRequest) -> Grammar | None:
    """Return the grammar, or None if this shape has none for such answers. Without a shape no tool can be called."""
    tools = request.tools if shape is not None else {}
    if request.answer == "text":
        if shape is None or not shape.marker:
            return None
        rules = [*_render_free_text(shape, request), *_render_tools(shape, tools)]
    else:
        rules = [*_render_constrained(shape, request), *(_render_tools(shape, tools) if shape else ())]
    return Grammar("lark", "\n".join(rules))


def _render_free_text(shape: CallShape, request: GrammarRequest) -> Iterator[str]:
    """Yield the rules for free text in which each call marker is followed by a call."""
    reasoning = request.reasoning if request.reasoning and request.reasoning.closing.startswith("<") else None
    several = request.call_count == "several"
    answer = f"called{{0,{MAX_CALLS}}} text" if several else "called SPACE? | text"
    yield f"start: {_reference_reasoning(reasoning)}({answer})"
    if reasoning is not None:
        yield from _render_reasoning(reasoning, shape.marker)
    elif not several:
        yield _SPACE_RULE
    calls = "calls" if shape.before else "call"
    yield f"called: head {calls}"
    yield f"head[lazy]: /(?s:.*){_escape_regex(shape.marker)}/"
    yield "text: TEXT"
    yield "TEXT: /(?s:.*)/" + _exclude(shape.marker)
    yield from _render_calls(_strip_marker(shape), request)


def _strip_marker(shape: CallShape) -> CallShape:
    """Remove the marker, which the rule for the preceding text has already matched."""
    if shape.before:
        return replace(shape, before=shape.before.removeprefix(shape.marker))
    return replace(shape, begin=shape.begin.removeprefix(shape.marker))


def _render_constrained(shape: CallShape | None, request: GrammarRequest) -> Iterator[str]:
    alternatives = [
        *(["calls"] if request.tools and shape else []),
        *(["answer"] if request.answer is not None else []),
    ]
    yield f"start: {_reference_reasoning(request.reasoning)}({' | '.join(alternatives)})"
    if request.reasoning is not None:
        yield from _render_reasoning(request.reasoning, "" if shape is None or not request.tools else shape.marker)
    if request.tools and shape is not None:
        yield from _render_calls(shape, request)
    if isinstance(request.answer, dict):
        yield f"answer: {_render_instance(request.answer)}"


def _render_calls(shape: CallShape, request: GrammarRequest) -> Iterator[str]:
    more = f" ({json.dumps(shape.between)} call){{0,{MAX_CALLS - 1}}}" if request.call_count == "several" else ""
    tools = " | ".join([f"f{number}" for number in range(len(request.tools))])
    yield f"call: {json.dumps(shape.begin)} ({tools}) {json.dumps(shape.end)}"
    yield f"calls: {json.dumps(shape.before)} call{more} {json.dumps(shape.after)}"


def _render_tools(shape: CallShape, tools: Mapping[str, Json]) -> Iterator[str]:
    for number, (name, tool) in enumerate(tools.items()):
        opening = json.dumps(f'{{"name": {json.dumps(name)}, "{shape.arguments}": ')
        yield f'f{number}: {opening} {_render_instance(tool["function"]["parameters"])} "}}"'


def _reference_reasoning(reasoning: ReasoningPrefix | None) -> str:
    if reasoning is None:
        return ""
    return "rest SPACE? " if reasoning.is_open else "thought? "


def _render_reasoning(reasoning: ReasoningPrefix, marker: str) -> Iterator[str]:
    """Yield the rules for reasoning. It excludes the call marker, which parsers take for the end of the reasoning."""
    if not reasoning.is_open:
        yield f"thought: {reasoning.opening} rest SPACE?"
    if reasoning.closing.startswith("<"):  # a control token, which THOUGHT cannot match
        yield f"rest: THOUGHT {reasoning.closing}"
    else:
        yield f"rest[lazy]: THOUGHT {reasoning.closing}"
    yield "THOUGHT: /(?s:.*)/" + _exclude(marker)
    yield _SPACE_RULE


def _exclude(marker: str) -> str:
    return f" & ~/(?s:.*){_escape_regex(marker)}(?s:.*)/" if marker else ""


def _render_instance(schema: Json) -> str:
    return f"%json {json.dumps({**bound_values(strip_lookaround(schema)), 'x-guidance': _JSON_OPTIONS})}"


def strip_lookaround(schema: Any) -> Any:
    """Remove the `pattern` keywords that llguidance rejects; it accepts every other schema."""
    return edit_keywords(schema, _drop_lookaround)


def _drop_lookaround(keyword: str, value: str) -> str | UnsetType:
    return UNSET if keyword == "pattern" and any(construct in value for construct in _LOOKAROUNDS) else value


def _escape_regex(text: str) -> str:
    """Escape text for a regular expression between slashes."""
    return "".join([f"\\{char}" if char in _REGEX_SPECIAL else "\\n" if char == "\n" else char for char in text])

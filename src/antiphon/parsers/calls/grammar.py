"""Grammars of whole answers, for engines that hold a model to one: a thought, then calls or an answer.

    text and calls      head tail between it… text       a call begins wherever its mark is said
    calls alone         thought? calls
    calls or JSON       thought? (calls | answer)

They are written in llguidance's dialect of Lark. Arguments and answers are instances of their schemas, with just the
white space that models are used to: they lose themselves in more. A schema that goes beyond what llguidance knows is
kept as far as it does; who is strict looks again.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.prompt import Grammar, Json
from antiphon.parsers.calls.base import Thinking, Wish

MOST_CALLS: Final = 8  # one after the other: small models find no end
_SPACED: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": True}
_LOOKS: Final = ("(?=", "(?!", "(?<=", "(?<!", "\\1", "\\k")  # ahead, behind, and back at a group
_VALUES: Final = frozenset({"const", "enum", "default", "examples"})  # keywords that hold instances, not schemas
_SPACE: Final = "SPACE: /[ \\n]{1,4}/"
_SPECIAL: Final = frozenset('\\.+*?()|[]{}^$#&-~/"')


class Shape(Struct, frozen=True, kw_only=True):
    """How a family writes its calls: {"name": …, "arguments": {…}}, with what stands around them. `mark` begins all of
    them (`before`) or each (`begin`): text ends there. Without one a call is a whole answer."""

    before: str = ""  # all of them
    begin: str = ""  # each of them
    end: str = ""
    between: str = "\n"
    after: str = ""  # all of them
    arguments: str = "arguments"
    mark: str = ""


JSON_LIST: Final = Shape(before="[", between=", ", after="]", arguments="parameters")


def write_grammar(shape: Shape | None, wish: Wish) -> Grammar | None:
    """None: this shape has no grammar of such answers. Without a shape nothing can be called."""
    tools = wish.tools if shape is not None else {}
    if wish.answer == "text":
        if shape is None or not shape.mark:
            return None
        rules = [*_free(shape, wish), *_called(shape, tools)]
    else:
        rules = [*_bound(shape, wish), *(_called(shape, tools) if shape else ())]
    return Grammar("lark", "\n".join(rules))


def _free(shape: Shape, wish: Wish) -> Iterator[str]:
    """Text, in which the mark of a call is followed by one."""
    thinking = wish.thinks_first if wish.thinks_first and wish.thinks_first.closing.startswith("<") else None
    several = wish.most == "several"
    yield f"start: {_first(thinking)}({f'called{{0,{MOST_CALLS}}} text' if several else 'called SPACE? | text'})"
    if thinking is not None:
        yield from _thought(thinking, shape.mark)
    elif not several:
        yield _SPACE
    calls = "calls" if shape.before else "call"
    yield f"called: head {calls}"
    yield f"head[lazy]: /(?s:.*){_escaped(shape.mark)}/"
    yield "text: TEXT"
    yield "TEXT: /(?s:.*)/" + _without(shape.mark)
    yield from _calls(_unmarked(shape), wish)


def _unmarked(shape: Shape) -> Shape:
    """Without the mark, which was said already."""
    if shape.before:
        return replace(shape, before=shape.before.removeprefix(shape.mark))
    return replace(shape, begin=shape.begin.removeprefix(shape.mark))


def _bound(shape: Shape | None, wish: Wish) -> Iterator[str]:
    ways = [*(["calls"] if wish.tools and shape else []), *(["answer"] if wish.answer is not None else [])]
    yield f"start: {_first(wish.thinks_first)}({' | '.join(ways)})"
    if wish.thinks_first is not None:
        yield from _thought(wish.thinks_first, "" if shape is None or not wish.tools else shape.mark)
    if wish.tools and shape is not None:
        yield from _calls(shape, wish)
    if isinstance(wish.answer, dict):
        yield f"answer: {_instance(wish.answer)}"


def _calls(shape: Shape, wish: Wish) -> Iterator[str]:
    more = f" ({_quoted(shape.between)} call){{0,{MOST_CALLS - 1}}}" if wish.most == "several" else ""
    yield f"call: {_quoted(shape.begin)} ({_any(wish.tools)}) {_quoted(shape.end)}"
    yield f"calls: {_quoted(shape.before)} call{more} {_quoted(shape.after)}"


def _called(shape: Shape, tools: Mapping[str, Json]) -> Iterator[str]:
    for number, (name, tool) in enumerate(tools.items()):
        begin = _quoted(f'{{"name": {json.dumps(name)}, "{shape.arguments}": ')
        yield f'f{number}: {begin} {_instance(tool["function"]["parameters"])} "}}"'


def _first(thinking: Thinking | None) -> str:
    if thinking is None:
        return ""
    return "rest SPACE? " if thinking.opened else "thought? "


def _thought(thinking: Thinking, mark: str) -> Iterator[str]:
    """It says no mark of a call: whoever reads it would take that for the end of the thought."""
    if not thinking.opened:
        yield f"thought: {thinking.opening} rest SPACE?"
    if thinking.closing.startswith("<"):  # a control token, which is no text
        yield f"rest: THOUGHT {thinking.closing}"
    else:
        yield f"rest[lazy]: THOUGHT {thinking.closing}"
    yield "THOUGHT: /(?s:.*)/" + _without(mark)
    yield _SPACE


def _any(tools: Mapping[str, Json] | Sequence[str]) -> str:
    return " | ".join([f"f{number}" for number in range(len(tools))])


def _without(mark: str) -> str:
    return f" & ~/(?s:.*){_escaped(mark)}(?s:.*)/" if mark else ""


def _instance(schema: Json) -> str:
    return f"%json {json.dumps({**without_lookaround(schema), 'x-guidance': _SPACED})}"


def without_lookaround(schema: Any) -> Any:
    """The same schema without the patterns that llguidance cannot read; they are all that it stumbles over."""
    if isinstance(schema, list):
        return [without_lookaround(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: part if key in _VALUES else without_lookaround(part)
        for key, part in schema.items()
        if not (key == "pattern" and isinstance(part, str) and any(mark in part for mark in _LOOKS))
    }


def _quoted(text: str) -> str:
    return json.dumps(text) if text else '""'


def _escaped(text: str) -> str:
    """In a regular expression between slashes."""
    return "".join([f"\\{char}" if char in _SPECIAL else "\\n" if char == "\n" else char for char in text])

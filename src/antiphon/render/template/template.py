"""Chat messages → prompt text, by the model's own chat template.

The rule for control tokens: only what the template itself wrote may become one. Whatever came from a
client (contents, tool outputs, names, descriptions, arguments, template variables) ends in segments
that an engine must take as plain text, whatever it looks like.

How a chat template wants its messages. Templates do not say, so template.py tries.

A message that a template would refuse or pass over in silence is given to it in another form.
"""

import json
from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from itertools import groupby
from typing import Final

from jinja2 import Template as Jinja
from jinja2 import TemplateError, TemplateSyntaxError
from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.prompt import ChatPrompt, Json, Segment, Template, TextPrompt
from antiphon.errors import BadRequest, EngineFailed, StartupError
from antiphon.render.template.provenance_str import marks, merge, own
from antiphon.render.template.sandbox import compile_template

ROLES: Final = {role: own(role) for role in ("system", "developer", "user", "assistant", "tool")}


class Shape(Struct, frozen=True, kw_only=True):
    parts: bool = False  # contents as lists of parts only
    system: bool = True  # knows a system message; else it goes in front of what the user says
    strict: bool = False  # will not have two users' messages in a row
    silence: str | None = ""  # the content of a message that only calls tools
    objects: bool = True  # arguments of calls as objects, not as the text they were said in


def shaped(messages: Iterable[Json], shape: Shape) -> list[Json]:
    listed = list(messages)
    if not shape.system:
        listed = _without_system(listed)
    if shape.strict:
        listed = _alternating(listed)
    return [_shaped(message, shape) for message in listed]


def _without_system(messages: list[Json]) -> list[Json]:
    return [{**message, "role": "user"} if message["role"] == "system" else message for message in messages]


def _alternating(messages: list[Json]) -> list[Json]:
    """Neighbours that are all plain text of a user become one message."""
    joined: list[Json] = []
    for mergeable, run in groupby(messages, key=lambda m: m["role"] == "user" and isinstance(m["content"], str)):
        if mergeable:
            joined.append({"role": "user", "content": "\n\n".join([message["content"] for message in run])})
        else:
            joined += run
    return joined


def _shaped(message: Json, shape: Shape) -> Json:
    given = {**message, "role": ROLES.get(message["role"], message["role"])}
    if message.get("content") is None:
        given["content"] = shape.silence
    elif shape.parts and isinstance(message["content"], str):
        given["content"] = [{"type": "text", "text": message["content"]}]
    if shape.objects and "tool_calls" in message:
        given["tool_calls"] = [_with_object(call) for call in message["tool_calls"]]
    return given


def _with_object(call: Json) -> Json:
    """What is no JSON object stays as it was said."""
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call


LONGEST: Final = 64 * 1024 * 1024  # characters; three times the largest body a client may send by default
# What a template may raise about a conversation that it was not written for.
MISFITS: Final = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


def render_text(template: Template, chat: ChatPrompt, now: datetime) -> TextPrompt:
    known = _known(template.source)
    try:
        return TextPrompt(_segments(known, template, chat, now))
    except MISFITS as misfit:
        raise BadRequest(f"The model's chat template does not take this input: {_sentence(misfit)}", param="input")


def check_template(template: Template) -> None:
    """At start-up, so that a broken template is found before a request is."""
    try:
        _known(template.source)
    except EngineFailed as broken:
        raise StartupError(broken.message)


def thinks(template: Template) -> bool:
    """Whether the template knows of thinking, so that a reasoning effort means something."""
    return "enable_thinking" in template.source or "<think>" in template.source


def knows_tools(template: Template) -> bool:
    """Whether it tells the model what may be called, what was called and what came back."""
    return _known(template.source).tools


class _Known(Struct, frozen=True):
    jinja: Jinja
    shape: Shape
    tools: bool = False


@lru_cache(maxsize=64)
def _known(source: str) -> _Known:
    try:
        jinja = compile_template(source)
    except TemplateSyntaxError as broken:
        raise EngineFailed(f"The model's chat template does not compile: {broken.message} (line {broken.lineno}).")
    except RecursionError:
        raise EngineFailed("The model's chat template does not compile: it is nested too deeply.")
    shape = _tried(jinja)
    return _Known(jinja, shape, _tells_of_tools(jinja, shape))


ASKED: Final[Json] = {"role": "user", "content": "asked"}
TOLD: Final[Json] = {"role": "system", "content": "told"}
CALL: Final[Json] = {
    "id": "call12345",
    "type": "function",
    "function": {"name": "called", "arguments": '{"argued": 1}'},
}
CALLED: Final[Json] = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RETURNED: Final[Json] = {"role": "tool", "tool_call_id": "call12345", "name": "called", "content": "returned"}
OFFERED: Final[Json] = {
    "type": "function",
    "function": {"name": "offered", "description": "d", "parameters": {"type": "object", "properties": {}}},
}


def _tried(jinja: Jinja) -> Shape:
    """The first shape in which nothing of a message is lost; where all fail, the usual one."""
    plain = Shape()
    parts = not _shows(jinja, plain, [ASKED], "asked") and _shows(jinja, Shape(parts=True), [ASKED], "asked")
    base = Shape(
        parts=parts,
        system=_shows(jinja, Shape(parts=parts), [TOLD, ASKED], "told"),
        strict=not _shows(jinja, Shape(parts=parts), [ASKED, ASKED], "asked"),
    )
    ways = [replace(base, silence=silence, objects=objects) for objects in (True, False) for silence in ("", None)]
    return next((way for way in ways if _shows(jinja, way, [ASKED, CALLED], "called", "argued")), base)


def _tells_of_tools(jinja: Jinja, shape: Shape) -> bool:
    offers = _shows(jinja, shape, [ASKED], "offered", tools=(OFFERED,))
    return offers and _shows(jinja, shape, [ASKED, CALLED, RETURNED], "called", "argued", "returned", tools=(OFFERED,))


def _shows(jinja: Jinja, shape: Shape, messages: list[Json], *words: str, tools: tuple[Json, ...] = ()) -> bool:
    """Whether these words get into the prompt."""
    chat = ChatPrompt(tuple(messages), tools)
    try:
        segments = _segments(_Known(jinja, shape), Template(source=""), chat, datetime(2026, 1, 1))
    except MISFITS:
        return False
    text = "".join([segment.text for segment in segments])
    return all(word in text for word in words)


def _segments(known: _Known, template: Template, chat: ChatPrompt, now: datetime) -> tuple[Segment, ...]:
    variables: Json = {
        **chat.template_kwargs,
        "messages": shaped(chat.messages, known.shape),
        "tools": list(chat.tools) or None,
        "add_generation_prompt": True,
        "bos_token": own(template.bos),
        "eos_token": own(template.eos),
        "strftime_now": now.strftime,
    }
    segments: list[Segment] = []
    length = 0
    for piece in known.jinja.root_render_func(known.jinja.new_context(variables)):
        length += len(piece)
        if length > LONGEST:
            raise ValueError(f"the rendered prompt is longer than {LONGEST} characters")
        segments += marks(piece)
    return merge(segments)


def _sentence(misfit: Exception) -> str:
    if isinstance(misfit, TemplateError) and misfit.message:
        return misfit.message
    return f"{type(misfit).__name__}: {misfit}"

"""Chat messages → prompt text, rendered with the model's own chat template.

Control tokens: only text that the template itself wrote may become one. All client data (contents, tool outputs, names,
descriptions, arguments, template variables) ends up in segments that an engine must tokenize as plain text.

Templates do not declare which message forms they accept, so each template is probed once. Messages that it would reject
or silently skip are passed to it in another form (`MessageShape`).

A reasoning effort sets every effort variable that the template reads. Values from the client's chat_template_kwargs
take precedence. A template without such a variable ignores the effort.
"""

import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import lru_cache
from itertools import groupby, product
from typing import Final

from jinja2 import Template as Jinja
from jinja2 import TemplateError, TemplateSyntaxError, meta
from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.prompt import IMAGE_MARKER, ChatPrompt, ChatTemplate, Json, Segment, TextPrompt
from antiphon.errors import BadRequest, EngineFailed
from antiphon.render.template.provenance_str import get_segments, join_traced, merge_segments, trust
from antiphon.render.template.sandbox import Sandbox, compile_template

ROLES: Final = {role: trust(role) for role in ("system", "developer", "user", "assistant", "tool")}


class MessageShape(Struct, frozen=True, kw_only=True):
    """The form in which a chat template accepts messages."""

    content_as_parts: bool = False  # accepts contents only as lists of parts
    supports_system: bool = True  # accepts a system message; otherwise it becomes a user message
    merge_user_messages: bool = False  # rejects two user messages in a row
    empty_content: str | None = ""  # content of a message that only calls tools
    arguments_as_objects: bool = True  # accepts arguments of calls as objects, not as JSON text


def shape_messages(messages: Iterable[Json], shape: MessageShape) -> list[Json]:
    """Convert messages to the form that the template accepts."""
    result = list(messages)
    if not shape.supports_system:
        result = [{**message, "role": "user"} if message["role"] == "system" else message for message in result]
    if shape.merge_user_messages:
        result = _merge_user_messages(result)
    return [_shape_message(message, shape) for message in result]


def _merge_user_messages(messages: list[Json]) -> list[Json]:
    """Merge adjacent plain-text user messages into one."""
    joined: list[Json] = []
    for mergeable, run in groupby(messages, key=lambda m: m["role"] == "user" and isinstance(m["content"], str)):
        if mergeable:
            joined.append({"role": "user", "content": "\n\n".join([message["content"] for message in run])})
        else:
            joined += run
    return joined


def _shape_message(message: Json, shape: MessageShape) -> Json:
    result = {**message, "role": ROLES.get(message["role"], message["role"])}
    content = message.get("content")
    if isinstance(content, list) and any(part["type"] == "image_url" for part in content):
        result["content"] = content = _mark_images(content)
    if content is None:
        result["content"] = shape.empty_content
    elif shape.content_as_parts and isinstance(content, str):
        result["content"] = [{"type": "text", "text": content}]
    if shape.arguments_as_objects and "tool_calls" in message:
        result["tool_calls"] = [_decode_arguments(call) for call in message["tool_calls"]]
    return result


def _mark_images(parts: list[Json]) -> str:
    """Join parts as text, with markers for images: the engine puts the model's own tokens around each image."""
    return join_traced([trust(IMAGE_MARKER) if part["type"] == "image_url" else part["text"] for part in parts], "\n")


def _decode_arguments(call: Json) -> Json:
    """Decode the arguments of a call; arguments that are not a JSON object stay text."""
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call


MAX_PROMPT_LENGTH: Final = 64 * 1024 * 1024  # characters; three times the default limit of a request body
# Exceptions that a template may raise for a conversation it was not written for.
RENDER_ERRORS: Final = (
    TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


def render_text(template: ChatTemplate, chat: ChatPrompt, now: datetime) -> TextPrompt:
    """Render a chat with the template. Raises BadRequest if the template rejects it."""
    compiled = _compile(template.source)
    try:
        segments = _render_segments(compiled, template, chat, now)
    except RENDER_ERRORS as error:
        raise BadRequest(f"The model's chat template does not take this input: {_describe_error(error)}", param="input")
    images = tuple(_list_images(chat.messages))
    if images and sum(segment.text.count(IMAGE_MARKER) for segment in segments if segment.control) != len(images):
        raise BadRequest("The model's chat template does not take an image at this place.", param="input")
    return TextPrompt(segments, images)


def _list_images(messages: Iterable[Json]) -> Iterator[str]:
    for message in messages:
        if isinstance(parts := message.get("content"), list):
            yield from (part["image_url"]["url"] for part in parts if part["type"] == "image_url")


def supports_tools(template: ChatTemplate) -> bool:
    """Return whether the template renders tool declarations, calls and outputs."""
    return _compile(template.source).supports_tools


class _CompiledTemplate(Struct, frozen=True):
    jinja: Jinja
    shape: MessageShape
    supports_tools: bool = False


@lru_cache(maxsize=64)
def _compile(source: str) -> _CompiledTemplate:
    try:
        jinja = compile_template(source)
    except TemplateSyntaxError as error:
        raise EngineFailed(f"The model's chat template does not compile: {error.message} (line {error.lineno}).")
    except RecursionError:
        raise EngineFailed("The model's chat template does not compile: it is nested too deeply.")
    shape = _detect_shape(jinja)
    return _CompiledTemplate(jinja, shape, _renders_tools(jinja, shape))


PROBE_USER: Final[Json] = {"role": "user", "content": "asked"}
PROBE_SYSTEM: Final[Json] = {"role": "system", "content": "told"}
PROBE_CALL: Final[Json] = {
    "id": "call12345",
    "type": "function",
    "function": {"name": "called", "arguments": '{"argued": 1}'},
}
PROBE_ASSISTANT: Final[Json] = {"role": "assistant", "content": None, "tool_calls": [PROBE_CALL]}
PROBE_OUTPUT: Final[Json] = {"role": "tool", "tool_call_id": "call12345", "name": "called", "content": "returned"}
PROBE_TOOL: Final[Json] = {
    "type": "function",
    "function": {"name": "offered", "description": "d", "parameters": {"type": "object", "properties": {}}},
}


def _detect_shape(jinja: Jinja) -> MessageShape:
    """Find the first shape in which no content of a message is lost; fall back to the default shape."""
    shape, parts = MessageShape(), MessageShape(content_as_parts=True)
    if not _renders(jinja, shape, [PROBE_USER], "asked") and _renders(jinja, parts, [PROBE_USER], "asked"):
        shape = parts
    shape = replace(
        shape,
        supports_system=_renders(jinja, shape, [PROBE_SYSTEM, PROBE_USER], "told"),
        merge_user_messages=not _renders(jinja, shape, [PROBE_USER, PROBE_USER], "asked"),
    )
    for as_objects, empty in product((True, False), ("", None)):
        candidate = replace(shape, empty_content=empty, arguments_as_objects=as_objects)
        if _renders(jinja, candidate, [PROBE_USER, PROBE_ASSISTANT], "called", "argued"):
            return candidate
    return shape


def _renders_tools(jinja: Jinja, shape: MessageShape) -> bool:
    offers = _renders(jinja, shape, [PROBE_USER], "offered", tools=(PROBE_TOOL,))
    return offers and _renders(
        jinja, shape, [PROBE_USER, PROBE_ASSISTANT, PROBE_OUTPUT], "called", "argued", "returned", tools=(PROBE_TOOL,)
    )


def _renders(
    jinja: Jinja, shape: MessageShape, messages: list[Json], *probes: str, tools: tuple[Json, ...] = ()
) -> bool:
    """Return whether all of these strings appear in the rendered prompt."""
    chat = ChatPrompt(tuple(messages), tools)
    try:
        segments = _render_segments(
            _CompiledTemplate(jinja, shape), ChatTemplate(source=""), chat, datetime(2026, 1, 1)
        )
    except RENDER_ERRORS:
        return False
    text = "".join([segment.text for segment in segments])
    return all(probe in text for probe in probes)


def _render_segments(
    compiled: _CompiledTemplate, template: ChatTemplate, chat: ChatPrompt, now: datetime
) -> tuple[Segment, ...]:
    variables: Json = {
        **chat.template_kwargs,
        "messages": shape_messages(chat.messages, compiled.shape),
        "tools": list(chat.tools) or None,
        "add_generation_prompt": True,
        "bos_token": trust(template.bos),
        "eos_token": trust(template.eos),
        "strftime_now": now.strftime,
    }
    segments: list[Segment] = []
    length = 0
    for piece in compiled.jinja.root_render_func(compiled.jinja.new_context(variables)):
        length += len(piece)
        if length > MAX_PROMPT_LENGTH:
            raise ValueError(f"the rendered prompt is longer than {MAX_PROMPT_LENGTH} characters")
        segments += get_segments(piece)
    return merge_segments(segments)


def _describe_error(error: Exception) -> str:
    if isinstance(error, TemplateError) and error.message:
        return error.message
    return f"{type(error).__name__}: {error}"


EFFORT_VARIABLES: Final = frozenset(
    {"enable_thinking", "thinking", "thinking_mode", "thinking_budget", "reasoning_effort", "thinking_effort"}
)
# values of Hunyuan templates; all other efforts are "high"
_HUNYUAN_EFFORTS: Final = {"none": "no_think", "minimal": "low", "low": "low"}
# values of Kimi templates; all other efforts are "max"
_KIMI_EFFORTS: Final = {"minimal": "low", "low": "low", "medium": "high", "high": "high"}


@lru_cache(maxsize=64)
def find_effort_variables(source: str) -> frozenset[str]:
    try:
        return EFFORT_VARIABLES.intersection(meta.find_undeclared_variables(Sandbox().parse(source)))
    except (TemplateSyntaxError, RecursionError):
        return frozenset()


def build_effort_variables(effort: str | None, source: str) -> Json:
    if effort is None:
        return {}
    return {
        name: value
        for name in find_effort_variables(source)
        if (value := _effort_value(name, effort, source)) is not None
    }


def _effort_value(name: str, effort: str, source: str) -> bool | int | str | None:
    reasoning_enabled = effort != "none"
    match name:
        case "enable_thinking" | "thinking":
            return reasoning_enabled
        case "thinking_mode":
            return "enabled" if reasoning_enabled else "disabled"
        case "thinking_budget":
            return None if reasoning_enabled else 0
        case "thinking_effort":
            return _KIMI_EFFORTS.get(effort, "max") if reasoning_enabled else None
        case _:
            return _HUNYUAN_EFFORTS.get(effort, "high") if "'no_think'" in source else effort

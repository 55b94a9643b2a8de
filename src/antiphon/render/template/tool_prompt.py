r"""Tools as text, for chat templates without tool support: the system message declares them in the Hermes format.

    system       # Tools … <tools> a JSON schema on each line </tools> …
    assistant    <tool_call> {"name": …, "arguments": …} </tool_call>
    user         <tool_response> output </tool_response>

The template sees only the roles system, user and assistant. The markers are plain text, so no other text may contain
one: in JSON the `<` of a marker is written as `\u003c`, and in any other text a zero-width space follows it.
"""

import json
from collections.abc import Iterable
from itertools import groupby
from typing import Any, Final

from msgspec.structs import replace

from antiphon.core.multi_match import MultiStringMatcher
from antiphon.core.prompt import ChatPrompt, Json

CALL_FORMAT: Final = "hermes"  # format of the calls in the model's output
MARKERS: Final = ("<tools>", "</tools>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

_MARKER_MATCHER: Final = MultiStringMatcher(MARKERS)
_TOOLS_TEXT: Final = """\
# Tools

You can call these functions to help the user. Each line between <tools> and </tools> describes one of them:
<tools>
{tools}
</tools>

To call a function, write a JSON object with its name and its arguments between <tool_call> and </tool_call>, like this:
<tool_call>
{{"name": "name of the function", "arguments": {{"name of a parameter": "its value"}}}}
</tool_call>
Then stop: what the function gives comes back between <tool_response> and </tool_response>. \
Call a function only if it helps; otherwise answer the user."""
_SINGLE_CALL_TEXT: Final = "Call one function at a time."
_PARALLEL_CALLS_TEXT: Final = (
    "To call several functions at once, write one such object after the other, each between its own marks."
)
_REQUIRED_TEXT: Final = "Now you must call a function."
_REQUIRED_NAME_TEXT: Final = "Now you must call the function {name}."


def render_tools_as_text(chat: ChatPrompt) -> ChatPrompt:
    """Rewrite tools, calls and outputs as text; returns the same chat if it involves no tools."""
    if not chat.tools and not any((message["role"] == "tool" or "tool_calls" in message) for message in chat.messages):
        return chat
    messages = list(_rewrite_messages(chat.messages))
    if chat.tools:
        messages = _add_to_system(messages, _tools_section(chat))
    return replace(chat, messages=tuple(messages), tools=(), tool_choice="auto")


def _tools_section(chat: ChatPrompt) -> str:
    schemas = "\n".join([_to_json(tool) for tool in chat.tools])
    sentences = [
        _TOOLS_TEXT.format(tools=schemas),
        _PARALLEL_CALLS_TEXT if chat.parallel_tool_calls else _SINGLE_CALL_TEXT,
    ]
    match chat.tool_choice:
        case "required":
            sentences.append(_REQUIRED_TEXT)
        case {"function": {"name": name}}:
            sentences.append(_REQUIRED_NAME_TEXT.format(name=name))
    return " ".join(sentences)


def _add_to_system(messages: list[Json], section: str) -> list[Json]:
    """Append the section to the instructions; without instructions it becomes the system message."""
    if not messages or messages[0]["role"] not in ("system", "developer"):
        return [{"role": "system", "content": section}, *messages]
    head = messages[0]
    return [{**head, "content": join_text([*_to_parts(head["content"]), text_part(f"\n\n{section}")])}, *messages[1:]]


def _rewrite_messages(messages: Iterable[Json]) -> Iterable[Json]:
    """Rewrite messages; adjacent outputs become one user message."""
    for are_outputs, run in groupby(messages, key=lambda message: message["role"] == "tool"):
        if are_outputs:
            parts = [part for message in run for part in _output_parts(message["content"])]
            yield {"role": "user", "content": join_text([*parts[:-1], text_part(parts[-1]["text"].rstrip("\n"))])}
        else:
            yield from map(_rewrite_message, run)


def _output_parts(content: Any) -> list[Json]:
    return [text_part("<tool_response>\n"), *_escape_content(content), text_part("\n</tool_response>\n")]


def _rewrite_message(message: Json) -> Json:
    """Escape markers in a message and append its calls as text."""
    calls = "\n".join([_call_text(call["function"]) for call in message.get("tool_calls", ())])
    others = {key: value for key, value in message.items() if key != "tool_calls"}
    parts = _escape_content(message["content"])
    if calls:
        parts.append(text_part(f"\n{calls}" if parts else calls))
    return {**others, "content": join_text(parts)}


def _call_text(function: Json) -> str:
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        arguments = function["arguments"]
    return f"<tool_call>\n{_to_json({'name': function['name'], 'arguments': arguments})}\n</tool_call>"


def _to_json(value: Any) -> str:
    """Encode as JSON with markers escaped: they can only occur within strings, where the escape is equivalent."""
    return _MARKER_MATCHER.replace_first_chars(json.dumps(value, ensure_ascii=False), "\\u003c")


def _escape_content(content: Any) -> list[Json]:
    """Escape markers; adjacent texts are joined first, since a marker may be split across them."""
    escaped: list[Json] = []
    for is_text, run in groupby(_to_parts(content), key=lambda part: part["type"] == "text"):
        parts = list(run)
        escaped += (
            [text_part(_MARKER_MATCHER.insert_gaps("".join([part["text"] for part in parts])))] if is_text else parts
        )
    return escaped


def _to_parts(content: Any) -> list[Json]:
    if isinstance(content, str):
        return [text_part(content)] if content else []
    return list(content or ())


def join_text(parts: list[Json], separator: str = "") -> str | list[Json]:
    is_text = all(part["type"] == "text" for part in parts)
    return separator.join([part["text"] for part in parts]) if is_text else parts


def text_part(text: str) -> Json:
    return {"type": "text", "text": text}

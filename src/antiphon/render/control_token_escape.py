"""Escapes control tokens in chats for engines that render the chat template themselves.

Such an engine joins template text and client text into one string and tokenizes every string that looks like a control
token as one. So no string in a chat may look like one: all of it comes from clients, tools and files, or from a model
influenced by them. A zero-width space is inserted after the first character; the text stays readable for the model and
the space is invisible.
"""

import json
from functools import lru_cache, partial
from importlib.resources import files
from itertools import chain
from operator import is_
from typing import Any, Final, cast

import msgspec
from msgspec.structs import replace

from antiphon.core.multi_match import GAP, MultiStringMatcher
from antiphon.core.prompt import ChatPrompt, Json
from antiphon.protocol.types.shared_list import SharedTuple, derive


def _load_control_strings() -> dict[str, tuple[str, ...]]:
    """Return the strings of `control_strings.txt` by family."""
    text = files("antiphon.render").joinpath("control_strings.txt").read_text("utf-8")
    found: dict[str, tuple[str, ...]] = {}
    for line in text.replace("\n    ", " ").splitlines():
        name, colon, strings = line.partition(": ")
        if colon and not line.startswith("#"):
            found[name] = tuple(chain.from_iterable(found.get(string, (string,)) for string in strings.split()))
    return {name: strings for name, strings in found.items() if not name.startswith("@")}


CONTROL_STRINGS_BY_FAMILY: Final = _load_control_strings()
CONTROL_STRINGS: Final = frozenset(chain.from_iterable(CONTROL_STRINGS_BY_FAMILY.values()))

_CONTROL: Final = MultiStringMatcher(CONTROL_STRINGS)
_CONTROL_IN_JSON: Final = MultiStringMatcher(text.replace('"', '\\"') for text in CONTROL_STRINGS)
_PREFIXES: Final = frozenset(text[:end] for text in CONTROL_STRINGS for end in range(1, len(text)))
_MAX_LENGTH: Final = max(map(len, CONTROL_STRINGS))


def escape_control_tokens(chat: ChatPrompt) -> ChatPrompt:
    """Escape every control string in the chat; returns the same object if there is none."""
    messages = [_escape_message(message) for message in chat.messages]
    tools = derive(chat.tools, escape_control_tokens, partial(_escape_tools, chat.tools))
    variables = chat.template_kwargs if _is_clean(chat.template_kwargs) else _escape_value(chat.template_kwargs)
    if tools is chat.tools and variables is chat.template_kwargs and all(map(is_, messages, chat.messages)):
        return chat
    return replace(chat, messages=tuple(messages), tools=tools, template_kwargs=variables)


def _escape_tools(tools: tuple[Json, ...]) -> tuple[Json, ...]:
    return tools if _is_clean(tools) else SharedTuple(map(_escape_value, tools))


def escape_text(text: str) -> str:
    """Insert a zero-width space into each control string of the text."""
    return _CONTROL.insert_gaps(text)


def escape_reasoning_markers(chat: ChatPrompt, opening: tuple[str, ...], closing: tuple[str, ...]) -> ChatPrompt:
    """Escape reasoning markers in the content of assistant messages.

    Chat templates search for them there and treat all text before them as reasoning. Content that begins with an
    opening marker, as raw model output does, is left alone: it probably is reasoning.
    """
    contents = [message["content"] for message in chat.messages if message["role"] == "assistant"]
    if not any(isinstance(text, str) and any(marker in text for marker in (*opening, *closing)) for text in contents):
        return chat
    markers = _build_matcher((*opening, *closing))
    messages = [_escape_answer_markers(message, opening, markers) for message in chat.messages]
    return replace(chat, messages=tuple(messages))


_build_matcher: Final = lru_cache(maxsize=64)(MultiStringMatcher)


def _escape_answer_markers(message: Json, opening: tuple[str, ...], markers: MultiStringMatcher) -> Json:
    text = message["content"]
    if message["role"] != "assistant" or not isinstance(text, str) or text.lstrip().startswith(opening):
        return message
    return {**message, "content": markers.insert_gaps(text)}


def _is_clean(value: Any) -> bool:
    """Check the JSON encoding, which is faster than visiting each string."""
    return not value or not _CONTROL_IN_JSON.has_match(msgspec.json.encode(value).decode())


def _escape_message(message: Json) -> Json:
    changed: Json = {}
    for key, value in message.items():
        if key == "content" and isinstance(value, list):
            if (parts := _escape_parts(value)) != value:
                changed[key] = parts
        elif isinstance(value, str):
            if (escaped := escape_text(value)) is not value:
                changed[key] = escaped
        elif key == "tool_calls":
            if (calls := [_escape_call(call) for call in value]) != value:
                changed[key] = calls
        elif value and not _is_clean(value):
            changed[key] = _escape_value(value)
    return {**message, **changed} if changed else message


def _escape_call(call: Json) -> Json:
    """Escape a call. Engines decode and encode the arguments, which would reveal control strings in \\u escapes."""
    escaped, function = _escape_value(call), call["function"]
    if "\\u" in function["arguments"]:
        try:
            decoded = json.loads(function["arguments"])
        except (ValueError, RecursionError):
            return cast(Json, escaped)
        if (arguments := _escape_value(decoded)) != decoded:
            escaped["function"]["arguments"] = json.dumps(arguments, ensure_ascii=False)
    return cast(Json, escaped)


def _escape_parts(parts: list[Json]) -> list[Json]:
    """Escape text parts, also control strings split across two parts: a template puts nothing between them."""
    escaped = [{**part, "text": escape_text(part["text"])} if "text" in part else part for part in parts]
    for part in escaped[:-1]:
        if _ends_with_prefix(part.get("text", "")):
            part["text"] += GAP
    return escaped


def _ends_with_prefix(text: str) -> bool:
    """Return whether the text ends with the beginning of a control string."""
    return any(text[at:] in _PREFIXES for at in range(max(0, len(text) - _MAX_LENGTH), len(text)))


def _escape_value(value: Any) -> Any:
    match value:
        case str():
            return escape_text(value)
        case dict():
            return {_escape_value(key): _escape_value(item) for key, item in value.items()}
        case list() | tuple():
            return [_escape_value(item) for item in value]
    return value

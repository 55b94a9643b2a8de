"""Chats for engines that render them themselves: whatever looks like a control token is broken up.

Such an engine makes one text of the template's words and everybody else's, and control tokens of whatever looks like
one. So nothing in a chat may: all of it was written by clients, tools and files, or by a model that was told by them.
A space without width is put after the first character, by which a model still can read it, and nobody sees it.
"""

import json
from functools import lru_cache
from operator import is_
from typing import Any, Final, cast

import msgspec
from msgspec.structs import replace

from antiphon.core.multi_match import Occurrences
from antiphon.core.prompt import ChatPrompt, Json
from antiphon.core.zero_width import GAP as GAP
from antiphon.render.control_strings import CONTROL_STRINGS

_CONTROL: Final = Occurrences(CONTROL_STRINGS)
_IN_JSON: Final = Occurrences(text.replace('"', '\\"') for text in CONTROL_STRINGS)
_UNFINISHED: Final = frozenset(text[:end] for text in CONTROL_STRINGS for end in range(1, len(text)))
_LONGEST: Final = max(map(len, CONTROL_STRINGS))


def break_up(chat: ChatPrompt, harmless: bool | None = None) -> ChatPrompt:
    """The same chat if nothing in it looks like a control token. `harmless`: whether it is
    (`is_harmless`); None: that has to be found out."""
    messages = [_message(message) for message in chat.messages]
    if is_harmless(chat) if harmless is None else harmless:
        same = all(map(is_, messages, chat.messages))
        return chat if same else replace(chat, messages=tuple(messages))
    tools, variables = tuple(map(_broken, chat.tools)), _broken(chat.template_kwargs)
    return replace(chat, messages=tuple(messages), tools=tools, template_kwargs=variables)


def is_harmless(chat: ChatPrompt) -> bool:
    """Nothing but its messages may look like a control token."""
    return _harmless(chat.tools) and _harmless(chat.template_kwargs)


def broken(text: str) -> str:
    return _CONTROL.broken(text, GAP)


def quote(chat: ChatPrompt, opening: tuple[str, ...], closing: tuple[str, ...]) -> ChatPrompt:
    """The marks of thoughts in what an assistant said are broken up: templates look for them there, and take all before
    them for a thought. Where it begins with one, as a model's raw output does, it may well be a thought."""
    said = [message["content"] for message in chat.messages if message["role"] == "assistant"]
    if not any(isinstance(text, str) and any(mark in text for mark in (*opening, *closing)) for text in said):
        return chat
    marks = _occurrences((*opening, *closing))
    messages = [_quoting(message, opening, marks) for message in chat.messages]
    return replace(chat, messages=tuple(messages))


_occurrences: Final = lru_cache(maxsize=64)(Occurrences)


def _quoting(message: Json, opening: tuple[str, ...], marks: Occurrences) -> Json:
    text = message["content"]
    if message["role"] != "assistant" or not isinstance(text, str) or text.lstrip().startswith(opening):
        return message
    return {**message, "content": marks.broken(text, GAP)}


def _harmless(value: Any) -> bool:
    """Told from its JSON, which is sooner done than to look at each string in it."""
    return not value or not _IN_JSON.any_in(msgspec.json.encode(value).decode())


def _message(message: Json) -> Json:
    changed: Json = {}
    for key, value in message.items():
        if key == "content" and isinstance(value, list):
            if (parts := _parts(value)) != value:
                changed[key] = parts
        elif isinstance(value, str):
            if (made := broken(value)) is not value:
                changed[key] = made
        elif key == "tool_calls":
            if (calls := [_call(call) for call in value]) != value:
                changed[key] = calls
        elif value and not _harmless(value):
            changed[key] = _broken(value)
    return {**message, **changed} if changed else message


def _call(call: Json) -> Json:
    """Engines read the arguments and write them anew, without the escapes that something may be hidden in."""
    made, function = _broken(call), call["function"]
    if "\\u" in function["arguments"]:
        try:
            said = json.loads(function["arguments"])
        except (ValueError, RecursionError):
            return cast(Json, made)
        if (meant := _broken(said)) != said:
            made["function"]["arguments"] = json.dumps(meant, ensure_ascii=False)
    return cast(Json, made)


def _parts(parts: list[Json]) -> list[Json]:
    """What one text begins another may end: a template puts nothing between them."""
    made = [{**part, "text": broken(part["text"])} if "text" in part else part for part in parts]
    for part in made[:-1]:
        if _is_unfinished(part.get("text", "")):
            part["text"] += GAP
    return made


def _is_unfinished(text: str) -> bool:
    return any(text[at:] in _UNFINISHED for at in range(max(0, len(text) - _LONGEST), len(text)))


def _broken(value: Any) -> Any:
    match value:
        case str():
            return broken(value)
        case dict():
            return {_broken(key): _broken(item) for key, item in value.items()}
        case list() | tuple():
            return [_broken(item) for item in value]
    return value

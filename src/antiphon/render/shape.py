"""How a chat template wants its messages. Templates do not say, so template.py tries.

A message that a template would refuse or pass over in silence is given to it in another form.
"""

import json
from collections.abc import Iterable
from itertools import groupby
from typing import Final

from msgspec import Struct

from antiphon.core.prompt import Json
from antiphon.render.traced import own

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

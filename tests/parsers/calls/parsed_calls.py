"""What a call format made of an answer, with neighbouring pieces joined."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from antiphon.core.deltas import CallDelta, CallDone, CallStarted
from antiphon.core.prompt import Json
from antiphon.parsers.calls.base import CallFormat, Piece, Said

STRING = {"type": "string"}


def tool(name: str, **properties: Json) -> dict[str, Json]:
    parameters = {"type": "object", "properties": properties}
    return {name: {"type": "function", "function": {"name": name, "parameters": parameters}}}


def read(form: type[CallFormat], parts: Iterable[str], tools: Mapping[str, Json]) -> list[tuple[str, str]]:
    """Pairs: ("", text) and (name of a call, its arguments)."""
    reader = form(tools)
    pieces = [piece for part in parts for piece in reader.feed(part)]
    return joined([*pieces, *reader.finish()])


def joined(pieces: Iterable[Piece]) -> list[tuple[str, str]]:
    told: list[tuple[str, str]] = []
    is_open = False
    for piece in pieces:
        match piece:
            case Said(text=text) if told and not told[-1][0]:
                told[-1] = "", told[-1][1] + text
            case Said(text=text):
                assert not is_open
                told.append(("", text))
            case CallStarted(name=name):
                assert not is_open
                is_open = True
                told.append((name, ""))
            case CallDelta(text=text):
                told[-1] = told[-1][0], told[-1][1] + text
            case CallDone():
                assert is_open
                is_open = False
    assert not is_open
    return told


def arguments(form: type[CallFormat], text: str, tools: Mapping[str, Json]) -> Any:
    """Of the only call that there is."""
    (call,) = [told for told in read(form, [text], tools) if told[0]]
    return json.loads(call[1])

"""The result of a call format for an answer, with neighbouring pieces joined."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from antiphon.core.deltas import CallDelta, CallDone, CallStarted
from antiphon.core.prompt import Json
from antiphon.parsers.calls.base import Piece, TextPiece
from antiphon.parsers.calls.registry import load_format

STRING = {"type": "string"}


def make_tool(name: str, **properties: Json) -> dict[str, Json]:
    parameters = {"type": "object", "properties": properties}
    return {name: {"type": "function", "function": {"name": name, "parameters": parameters}}}


def parse_calls(form: str, parts: Iterable[str], tools: Mapping[str, Json]) -> list[tuple[str, str]]:
    """Return pairs: ("", text) and (name of a call, its arguments)."""
    reader = load_format(form)(tools)
    pieces = [piece for part in parts for piece in reader.feed(part)]
    return join_pieces([*pieces, *reader.finish()])


def join_pieces(pieces: Iterable[Piece]) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    is_open = False
    for piece in pieces:
        match piece:
            case TextPiece(text=text) if pairs and not pairs[-1][0]:
                pairs[-1] = "", pairs[-1][1] + text
            case TextPiece(text=text):
                assert not is_open
                pairs.append(("", text))
            case CallStarted(name=name):
                assert not is_open
                is_open = True
                pairs.append((name, ""))
            case CallDelta(text=text):
                pairs[-1] = pairs[-1][0], pairs[-1][1] + text
            case CallDone():
                assert is_open
                is_open = False
    assert not is_open
    return pairs


def parse_arguments(form: str, text: str, tools: Mapping[str, Json]) -> Any:
    """Return the decoded arguments of the only call."""
    (call,) = [pair for pair in parse_calls(form, [text], tools) if pair[0]]
    return json.loads(call[1])

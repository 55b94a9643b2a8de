"""Tool calls as engines really send them, and what is made of them."""

from typing import Any

import msgspec
import pytest

from antiphon.engines.http.readers.call_repair import MOST_CALLS, Calls
from antiphon.engines.http.readers.wire import ToolCall
from antiphon.errors import EngineFailed

Json = dict[str, Any]


def call(name: str | None = None, arguments: Any = None, **more: Any) -> Json:
    return {**more, "function": {"name": name, "arguments": arguments}}


def told(*deltas: Json | list[Json]) -> list[tuple[str, str]]:
    """The calls that come of it, in order; each must be named once, in its first piece."""
    calls = Calls()
    found: dict[int, tuple[str, str]] = {}
    for delta in deltas:
        together = msgspec.convert(delta if isinstance(delta, list) else [delta], list[ToolCall])
        for piece in calls.pieces(together):
            name, arguments = found.get(piece.index, ("", ""))
            assert bool(piece.name) != (piece.index in found), "a name belongs into the first piece alone"
            found[piece.index] = name or piece.name, arguments + piece.arguments
    assert list(found) == list(range(len(found)))
    return [found[number] for number in sorted(found)]


AB = [("a", '{"x":1}'), ("b", "{}")]

HABITS: dict[str, tuple[list[Json | list[Json]], list[tuple[str, str]]]] = {
    "as it should be": (
        [
            call("a", "", index=0, id="1"),
            call(None, '{"x"', index=0),
            call(None, ":1}", index=0),
            call("b", "{}", index=1, id="2"),
        ],
        AB,
    ),
    "whole calls at once": ([[call("a", '{"x":1}', index=0, id="1"), call("b", "{}", index=1, id="2")]], AB),
    "no index": ([call("a", '{"x"', id="1"), call(None, ":1}"), call("b", "{}", id="2")], AB),
    "no index and no id": ([call("a", '{"x"'), call(None, ":1}"), call("b", "{}")], AB),
    "one index for all": ([call("a", '{"x":1}', index=0, id="1"), call("b", "{}", index=0, id="2")], AB),
    "one index for all and no id": ([call("a", '{"x":1}', index=0), call("b", "{}", index=0)], AB),
    "the same function twice, one index": (
        [call("a", "{}", index=0), call("a", '{"x":1}', index=0)],
        [("a", "{}"), ("a", '{"x":1}')],
    ),
    "the name in every piece": (
        [call("a", '{"x"', index=0, id="1"), call("a", ":1}", index=0, id="1"), call("b", "{}", index=1, id="2")],
        AB,
    ),
    "the name in every piece, no id": ([call("a", '{"x"', index=0), call("a", ":1}", index=0), call("b", "{}")], AB),
    "an empty name after the first": ([call("a", '{"x"', index=0), call("", ":1}", index=0), call("b", "{}")], AB),
    "the name late": (
        [
            call(None, "", index=0, id="1"),
            call(None, '{"x"', index=0),
            call("a", ":1}", index=0),
            call("b", "{}", index=1),
        ],
        AB,
    ),
    "arguments as an object": ([[call("a", {"x": 1}, index=0), call("b", {}, index=1)]], AB),
    "arguments that are null": ([call("a", None, index=0), call(None, None, index=0)], [("a", "")]),
    "no function": ([{"index": 0, "id": "1"}, call("a", "{}", index=0)], [("a", "{}")]),
    "in turns": (
        [
            call("a", '{"x"', index=0, id="1"),
            call("b", "{", index=1, id="2"),
            call(None, ":1}", index=0),
            call(None, "}", index=1),
        ],
        AB,
    ),
    "indexes that begin at one": ([call("a", '{"x":1}', index=1, id="1"), call("b", "{}", index=2, id="2")], AB),
}


@pytest.mark.parametrize("habit", HABITS)
def test_calls_are_put_right(habit: str) -> None:
    deltas, expected = HABITS[habit]
    assert told(*deltas) == expected


def test_a_call_that_gets_no_name_is_noticed() -> None:
    calls = Calls()
    assert not list(calls.pieces([ToolCall(index=0)]))
    assert calls.nameless()


def test_calls_without_an_end_are_an_error() -> None:
    with pytest.raises(EngineFailed, match="without an end"):
        told(*[call("a", "{}", index=number) for number in range(MOST_CALLS + 1)])

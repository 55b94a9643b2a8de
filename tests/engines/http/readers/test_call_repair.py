"""Repair of tool calls as engines really send them."""

from typing import Any

import msgspec
import pytest

from antiphon.engines.http.readers.call_repair import MAX_CALLS, CallRepairer
from antiphon.engines.http.readers.wire import WireToolCall
from antiphon.errors import EngineFailed

Json = dict[str, Any]


def make_call(name: str | None = None, arguments: Any = None, **more: Any) -> Json:
    return {**more, "function": {"name": name, "arguments": arguments}}


def repair_calls(*deltas: Json | list[Json]) -> list[tuple[str, str]]:
    """Return the repaired calls in order; each must be named once, in its first piece."""
    calls = CallRepairer()
    found: dict[int, tuple[str, str]] = {}
    for delta in deltas:
        tool_calls = msgspec.convert(delta if isinstance(delta, list) else [delta], list[WireToolCall])
        for piece in calls.repair(tool_calls):
            name, arguments = found.get(piece.index, ("", ""))
            assert bool(piece.name) != (piece.index in found), "only the first piece carries the name"
            found[piece.index] = name or piece.name, arguments + piece.arguments
    assert list(found) == list(range(len(found)))
    return [found[number] for number in sorted(found)]


AB = [("a", '{"x":1}'), ("b", "{}")]

CASES: dict[str, tuple[list[Json | list[Json]], list[tuple[str, str]]]] = {
    "regular": (
        [
            make_call("a", "", index=0, id="1"),
            make_call(None, '{"x"', index=0),
            make_call(None, ":1}", index=0),
            make_call("b", "{}", index=1, id="2"),
        ],
        AB,
    ),
    "whole calls at once": ([[make_call("a", '{"x":1}', index=0, id="1"), make_call("b", "{}", index=1, id="2")]], AB),
    "no index": ([make_call("a", '{"x"', id="1"), make_call(None, ":1}"), make_call("b", "{}", id="2")], AB),
    "no index and no id": ([make_call("a", '{"x"'), make_call(None, ":1}"), make_call("b", "{}")], AB),
    "one index for all": ([make_call("a", '{"x":1}', index=0, id="1"), make_call("b", "{}", index=0, id="2")], AB),
    "one index for all and no id": ([make_call("a", '{"x":1}', index=0), make_call("b", "{}", index=0)], AB),
    "the same function twice, one index": (
        [make_call("a", "{}", index=0), make_call("a", '{"x":1}', index=0)],
        [("a", "{}"), ("a", '{"x":1}')],
    ),
    "the name in every piece": (
        [
            make_call("a", '{"x"', index=0, id="1"),
            make_call("a", ":1}", index=0, id="1"),
            make_call("b", "{}", index=1, id="2"),
        ],
        AB,
    ),
    "the name in every piece, no id": (
        [make_call("a", '{"x"', index=0), make_call("a", ":1}", index=0), make_call("b", "{}")],
        AB,
    ),
    "an empty name after the first": (
        [make_call("a", '{"x"', index=0), make_call("", ":1}", index=0), make_call("b", "{}")],
        AB,
    ),
    "a late name": (
        [
            make_call(None, "", index=0, id="1"),
            make_call(None, '{"x"', index=0),
            make_call("a", ":1}", index=0),
            make_call("b", "{}", index=1),
        ],
        AB,
    ),
    "arguments as an object": ([[make_call("a", {"x": 1}, index=0), make_call("b", {}, index=1)]], AB),
    "arguments that are null": ([make_call("a", None, index=0), make_call(None, None, index=0)], [("a", "")]),
    "no function": ([{"index": 0, "id": "1"}, make_call("a", "{}", index=0)], [("a", "{}")]),
    "interleaved": (
        [
            make_call("a", '{"x"', index=0, id="1"),
            make_call("b", "{", index=1, id="2"),
            make_call(None, ":1}", index=0),
            make_call(None, "}", index=1),
        ],
        AB,
    ),
    "indexes that begin at one": (
        [make_call("a", '{"x":1}', index=1, id="1"), make_call("b", "{}", index=2, id="2")],
        AB,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_irregular_calls_are_repaired(case: str) -> None:
    deltas, expected = CASES[case]
    assert repair_calls(*deltas) == expected


def test_a_call_without_a_name_is_detected() -> None:
    calls = CallRepairer()
    assert not list(calls.repair([WireToolCall(index=0)]))
    assert calls.has_nameless()


def test_too_many_calls_are_an_error() -> None:
    with pytest.raises(EngineFailed, match="too many tool calls"):
        repair_calls(*[make_call("a", "{}", index=number) for number in range(MAX_CALLS + 1)])

"""What can happen to the events of a stream, one way in each function: dropped, mixed up, mistyped, far too large."""

import random
from collections.abc import Callable
from typing import Any

import msgspec

from tests.engines.http.stubs.recorded_streams import WIRES

Change = Callable[[list[bytes], random.Random], list[bytes]]

MEGABYTE = 1 << 20
NAMES = sorted(WIRES)


def events_of(body: bytes) -> list[bytes]:
    return [event for event in body.split(b"\n\n") if event]


def dropped(events: list[bytes], chance: random.Random) -> list[bytes]:
    gone = set(chance.sample(range(len(events)), chance.randint(1, min(3, len(events)))))
    return [event for at, event in enumerate(events) if at not in gone]


def doubled(events: list[bytes], chance: random.Random) -> list[bytes]:
    at = chance.randrange(len(events))
    return [*events[:at], *[events[at]] * chance.choice((2, 2, 3, 300)), *events[at + 1 :]]


def swapped(events: list[bytes], chance: random.Random) -> list[bytes]:
    some = list(events)
    for _ in range(chance.randint(1, 4)):
        one, other = chance.randrange(len(some)), chance.randrange(len(some))
        some[one], some[other] = some[other], some[one]
    return some


def mixed(events: list[bytes], chance: random.Random) -> list[bytes]:
    """With those of another stream."""
    others = events_of(WIRES[chance.choice(NAMES)].body)
    return [event for pair in zip(events, chance.choices(others, k=len(events)), strict=True) for event in pair]


def halved(events: list[bytes], chance: random.Random) -> list[bytes]:
    at = chance.randrange(len(events))
    return [*events[:at], events[at][: chance.randrange(len(events[at]))], *events[at + 1 :]]


def split(events: list[bytes], chance: random.Random) -> list[bytes]:
    """An event over two lines, as the format allows and nobody does, or an empty line within it."""
    at = chance.randrange(len(events))
    inside = chance.randrange(7, max(8, len(events[at])))
    between = chance.choice((b"\ndata: ", b"\ndata:", b"\n\n", b"\n"))
    return [*events[:at], events[at][:inside] + between + events[at][inside:], *events[at + 1 :]]


def giant(events: list[bytes], chance: random.Random) -> list[bytes]:
    at = chance.randrange(len(events) + 1)
    text = b"x" * chance.choice((70_000, 300_000, 300_000, MEGABYTE, 5 * MEGABYTE))
    return [*events[:at], b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}' % text, *events[at:]]


def garbage(events: list[bytes], chance: random.Random) -> list[bytes]:
    at = chance.randrange(len(events) + 1)
    junk = chance.choice(
        (
            b"data: " + chance.randbytes(40).replace(b"\n", b""), b"data: <html>502</html>", b"data:", b"data: null",
            b"data: []", b"data: 7", b'data: "text"', b"data: {", b"data: [DONE]", b"<html>", b"event: error",
            b'event: error\ndata: {"message":"boom"}', b'data: {"error":{"message":"boom","code":500}}',
            b'data: {"error":{"message":"slow down","code":429}}', b'data: {"object":"error","message":"boom"}',
            b": comment", b"retry: 1", b"id: 7\nevent: message", b"\xef\xbb\xbfdata: {}", b"\x00\x00\x00",
        )
    )  # fmt: skip
    return [*events[:at], junk, *events[at:]]


def unended(events: list[bytes], chance: random.Random) -> list[bytes]:
    """Without [DONE], without what is before it, or without an end at all."""
    return events[: len(events) - chance.randint(1, min(4, len(events) - 1))]


def mistyped(events: list[bytes], chance: random.Random) -> list[bytes]:
    """A value somewhere in an event is something else."""
    wrong: Any = chance.choice(
        (None, True, 7, -1, 1.5, "text", "", [], {}, [None], [[]], {"a": 1}, [{"index": "x"}], 10**40, "stop", "abort")
    )
    return _changed(events, chance, lambda at, key: _put(at, key, wrong))


def huge(events: list[bytes], chance: random.Random) -> list[bytes]:
    """A number that is none, or too large, or too long; or text that no text may be."""
    raw = chance.choice(
        (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b"9" * 400, b"-" + b"9" * 30, b"0." + b"1" * 5000,
         b"1e-999", b"00", b"0x10", b'"\\ud800"', b'"\xff\xfe"', b'"\xc3("', b'"\x00"', b'"\\u0000"', b'"\t"', b"tru")
    )  # fmt: skip
    return _changed(events, chance, lambda at, key: _put(at, key, "@raw@"), lambda text: text.replace(b'"@raw@"', raw))


def deep(events: list[bytes], chance: random.Random) -> list[bytes]:
    depth = chance.choice((10, 100, 1_000, 20_000))
    raw = chance.choice((b"[", b'{"a":')) * depth + chance.choice((b"", b"1" + b"]" * depth))
    return _changed(events, chance, lambda at, key: _put(at, key, "@raw@"), lambda text: text.replace(b'"@raw@"', raw))


def flooded(events: list[bytes], chance: random.Random) -> list[bytes]:
    """Many calls, many choices, many candidates, many names."""
    number = chance.choice((50, 300, 3_000))
    call = b'{"index":%d,"id":"c%d","function":{"name":"a","arguments":"{}"}}'
    calls = b",".join(call % (at, at) for at in range(number))
    same = b",".join(b'{"function":{"name":"a","arguments":"{"}}' for _ in range(number))
    choices = b",".join(b'{"index":%d,"delta":{"content":"z"}}' % at for at in range(number))
    event = chance.choice(
        (
            b'data: {"choices":[{"index":0,"delta":{"tool_calls":[%b]}}]}' % calls,
            b'data: {"choices":[{"index":0,"delta":{"tool_calls":[%b]}}]}' % same,
            b'data: {"choices":[%b]}' % choices,
            b"data: {%b}" % b",".join(b'"k%d":{}' % at for at in range(number)),
        )
    )
    at = chance.randrange(len(events) + 1)
    return [*events[:at], event, *events[at:]]


CHANGES: tuple[Change, ...] = (
    dropped, doubled, swapped, mixed, halved, split, garbage, unended, mistyped, mistyped, huge, deep, flooded,
)  # fmt: skip


def _changed(
    events: list[bytes],
    chance: random.Random,
    put: Callable[[Any, Any], None],
    after: Callable[[bytes], bytes] = lambda text: text,
) -> list[bytes]:
    """One event with one value in it put otherwise; as it is, if it is no JSON (any more)."""
    at = chance.randrange(len(events))
    try:
        event = msgspec.json.decode(events[at].removeprefix(b"data: "))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return events
    if not (places := list(_places(event))):
        return events
    put(*chance.choice(places))
    return [*events[:at], after(b"data: " + msgspec.json.encode(event)), *events[at + 1 :]]


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in it where there is a value."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    return [found for key in keys for found in ((value, key), *_places(value[key]))]


def _put(holder: Any, key: Any, value: Any) -> None:
    holder[key] = value

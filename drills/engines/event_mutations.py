"""Mutations of the events of a recorded stream, one per function."""

import random
from collections.abc import Callable
from typing import Any

import msgspec

from tests.engines.http.stubs.recorded_streams import RECORDED_STREAMS

Mutation = Callable[[list[bytes], random.Random], list[bytes]]

MEGABYTE = 1 << 20
WIRE_NAMES = sorted(RECORDED_STREAMS)


def split_events(body: bytes) -> list[bytes]:
    return [event for event in body.split(b"\n\n") if event]


def drop_events(events: list[bytes], chance: random.Random) -> list[bytes]:
    gone = set(chance.sample(range(len(events)), chance.randint(1, min(3, len(events)))))
    return [event for at, event in enumerate(events) if at not in gone]


def repeat_event(events: list[bytes], chance: random.Random) -> list[bytes]:
    at = chance.randrange(len(events))
    return [*events[:at], *[events[at]] * chance.choice((2, 2, 3, 300)), *events[at + 1 :]]


def swap_events(events: list[bytes], chance: random.Random) -> list[bytes]:
    result = list(events)
    for _ in range(chance.randint(1, 4)):
        one, other = chance.randrange(len(result)), chance.randrange(len(result))
        result[one], result[other] = result[other], result[one]
    return result


def interleave_streams(events: list[bytes], chance: random.Random) -> list[bytes]:
    """Interleave the events with those of another stream."""
    others = split_events(RECORDED_STREAMS[chance.choice(WIRE_NAMES)].body)
    return [event for pair in zip(events, chance.choices(others, k=len(events)), strict=True) for event in pair]


def truncate_event(events: list[bytes], chance: random.Random) -> list[bytes]:
    at = chance.randrange(len(events))
    return [*events[:at], events[at][: chance.randrange(len(events[at]))], *events[at + 1 :]]


def split_event(events: list[bytes], chance: random.Random) -> list[bytes]:
    """Split an event into two lines, which SSE allows but no engine does, or insert an empty line."""
    at = chance.randrange(len(events))
    inside = chance.randrange(7, max(8, len(events[at])))
    between = chance.choice((b"\ndata: ", b"\ndata:", b"\n\n", b"\n"))
    return [*events[:at], events[at][:inside] + between + events[at][inside:], *events[at + 1 :]]


def giant(events: list[bytes], chance: random.Random) -> list[bytes]:
    at = chance.randrange(len(events) + 1)
    text = b"x" * chance.choice((70_000, 300_000, 300_000, MEGABYTE, 5 * MEGABYTE))
    return [*events[:at], b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}' % text, *events[at:]]


def insert_garbage(events: list[bytes], chance: random.Random) -> list[bytes]:
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


def remove_end(events: list[bytes], chance: random.Random) -> list[bytes]:
    """Remove `[DONE]`, the events before it, or the whole end."""
    return events[: len(events) - chance.randint(1, min(4, len(events) - 1))]


def mistype_value(events: list[bytes], chance: random.Random) -> list[bytes]:
    """Replace one value of an event by one of another type."""
    wrong: Any = chance.choice(
        (None, True, 7, -1, 1.5, "text", "", [], {}, [None], [[]], {"a": 1}, [{"index": "x"}], 10**40, "stop", "abort")
    )
    return _replace_value(events, chance, lambda at, key: _set_value(at, key, wrong))


def insert_invalid_literal(events: list[bytes], chance: random.Random) -> list[bytes]:
    """Replace one value by a number that is invalid, too large or too long, or by an invalid string."""
    raw = chance.choice(
        (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b"9" * 400, b"-" + b"9" * 30, b"0." + b"1" * 5000,
         b"1e-999", b"00", b"0x10", b'"\\ud800"', b'"\xff\xfe"', b'"\xc3("', b'"\x00"', b'"\\u0000"', b'"\t"', b"tru")
    )  # fmt: skip
    return _replace_value(
        events, chance, lambda at, key: _set_value(at, key, "@raw@"), lambda text: text.replace(b'"@raw@"', raw)
    )


def nest_value(events: list[bytes], chance: random.Random) -> list[bytes]:
    depth = chance.choice((10, 100, 1_000, 20_000))
    raw = chance.choice((b"[", b'{"a":')) * depth + chance.choice((b"", b"1" + b"]" * depth))
    return _replace_value(
        events, chance, lambda at, key: _set_value(at, key, "@raw@"), lambda text: text.replace(b'"@raw@"', raw)
    )


def insert_flood(events: list[bytes], chance: random.Random) -> list[bytes]:
    """Insert an event with many calls, choices or keys."""
    number = chance.choice((50, 300, 3_000))
    call = b'{"index":%d,"id":"c%d","function":{"name":"a","arguments":"{}"}}'
    calls = b",".join(call % (at, at) for at in range(number))
    repeated = b",".join(b'{"function":{"name":"a","arguments":"{"}}' for _ in range(number))
    choices = b",".join(b'{"index":%d,"delta":{"content":"z"}}' % at for at in range(number))
    event = chance.choice(
        (
            b'data: {"choices":[{"index":0,"delta":{"tool_calls":[%b]}}]}' % calls,
            b'data: {"choices":[{"index":0,"delta":{"tool_calls":[%b]}}]}' % repeated,
            b'data: {"choices":[%b]}' % choices,
            b"data: {%b}" % b",".join(b'"k%d":{}' % at for at in range(number)),
        )
    )
    at = chance.randrange(len(events) + 1)
    return [*events[:at], event, *events[at:]]


MUTATIONS: tuple[Mutation, ...] = (
    drop_events,
    repeat_event,
    swap_events,
    interleave_streams,
    truncate_event,
    split_event,
    insert_garbage,
    remove_end,
    mistype_value,
    mistype_value,
    insert_invalid_literal,
    nest_value,
    insert_flood,
)


def _replace_value(
    events: list[bytes],
    chance: random.Random,
    put: Callable[[Any, Any], None],
    after: Callable[[bytes], bytes] = lambda text: text,
) -> list[bytes]:
    """Replace one value in one event; events that are not JSON stay as they are."""
    at = chance.randrange(len(events))
    try:
        event = msgspec.json.decode(events[at].removeprefix(b"data: "))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return events
    if not (slots := list(_value_slots(event))):
        return events
    put(*chance.choice(slots))
    return [*events[:at], after(b"data: " + msgspec.json.encode(event)), *events[at + 1 :]]


def _value_slots(value: Any) -> list[tuple[Any, Any]]:
    """Return the container and key of every nested value."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    return [found for key in keys for found in ((value, key), *_value_slots(value[key]))]


def _set_value(holder: Any, key: Any, value: Any) -> None:
    holder[key] = value

"""Encodes events as server-sent events (WHATWG HTML §9.2). Only complete events; those ready together go in one write.

Never `id:`, `retry:` or an event without data: SDKs fail on them.
"""

from itertools import groupby

import msgspec
from msgspec import Struct

from antiphon.protocol.types.events import Event, Keepalive

DONE = b"data: [DONE]\n\n"
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]

_encode_lines = msgspec.json.Encoder().encode_lines


class _EventPrefixes(dict[type[Event], bytes]):
    """The bytes before an event's JSON, made once for each type of event."""

    def __missing__(self, kind: type[Event]) -> bytes:
        self[kind] = f"event: {kind.__struct_config__.tag}\ndata: ".encode()
        return self[kind]


_prefixes = _EventPrefixes()


def encode_events(events: list[Event]) -> bytes:
    """Encode events. Those of one type are encoded in one call, which costs more than the event of one token."""
    kind = type(events[0])
    prefix = _prefixes[kind]
    if len(events) == 1:
        return prefix + _encode_lines(events) + b"\n"
    if {*map(type, events)} == {kind}:
        return prefix + _encode_lines(events)[:-1].replace(b"\n", b"\n\n" + prefix) + b"\n\n"
    return b"".join([encode_events([*group]) for _, group in groupby(events, type)])


def encode_keepalive(last: Event | None) -> bytes:
    """Encode a keep-alive, which repeats the number of the last event; empty before the first event."""
    return b"" if last is None else encode_events([Keepalive(sequence_number=last.sequence_number)])


def encode_data(events: list[Struct]) -> bytes:
    """Encode events without a name, as chat and completions stream them."""
    return b"data: " + _encode_lines(events)[:-1].replace(b"\n", b"\n\ndata: ") + b"\n\n"


def encode_comment(last: Struct | None) -> bytes:
    """Encode a comment, which clients ignore, as a keep-alive."""
    return b": keep-alive\n\n"

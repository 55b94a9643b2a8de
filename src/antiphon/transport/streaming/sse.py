"""Events → server-sent events. Whole events only; those that are ready together go in one write.

Never `id:`, `retry:` or an event without data: SDKs break on them.
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

_lines = msgspec.json.Encoder().encode_lines


class _Beginnings(dict[type[Event], bytes]):
    """The bytes before an event's JSON, made once for each kind of event."""

    def __missing__(self, kind: type[Event]) -> bytes:
        self[kind] = f"event: {kind.__struct_config__.tag}\ndata: ".encode()
        return self[kind]


_beginnings = _Beginnings()


def frames(events: list[Event]) -> bytes:
    """Events of one kind are encoded in one go: each call of the encoder costs more than a token's event."""
    kind = type(events[0])
    beginning = _beginnings[kind]
    if len(events) == 1:
        return beginning + _lines(events) + b"\n"
    if {*map(type, events)} == {kind}:
        return beginning + _lines(events)[:-1].replace(b"\n", b"\n\n" + beginning) + b"\n\n"
    return b"".join([frames([*alike]) for _, alike in groupby(events, type)])


def keepalive(last: Event | None) -> bytes:
    """It repeats the number of the last event, and counts as none. Nothing before the first event."""
    return b"" if last is None else frames([Keepalive(sequence_number=last.sequence_number)])


def data_frames(told: list[Struct]) -> bytes:
    """Without an event's name, as chat and completions stream."""
    return b"data: " + _lines(told)[:-1].replace(b"\n", b"\n\ndata: ") + b"\n\n"


def comment(last: Struct | None) -> bytes:
    """Breaks the silence, and is no event."""
    return b": keep-alive\n\n"

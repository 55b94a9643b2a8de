"""Replay: the same events again, byte for byte, from the opening Response and the log.

A replay ends with its entries. A replay that was fed the log of a crashed process continues as a live emitter.
"""

from collections.abc import Iterable
from itertools import groupby
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from antiphon.core.deltas import Text
from antiphon.core.emitter.emitter import Emitter, EventLog
from antiphon.core.emitter.event_log import LogEntry, RunEnded, RunStarted
from antiphon.core.emitter.parts_in_progress import EventList
from antiphon.ids import ItemIds
from antiphon.protocol.types.response import Response

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[LogEntry])
_json_decoder = msgspec.json.Decoder(list[LogEntry])


def encode_entries(entries: list[LogEntry]) -> bytes:
    """Encode as MessagePack, or as JSON if an integer has more than 64 bits, which tool output may contain."""
    try:
        return _encoder.encode(entries)
    except OverflowError:
        return msgspec.json.encode(entries)


def decode_entries(batch: bytes) -> list[LogEntry]:
    return (_json_decoder if batch[:1] == b"[" else _decoder).decode(batch)


def reset_response(response: Response) -> Response:
    """Return the Response as it was when created, whatever its current state."""
    return replace(
        response,
        status="queued" if response.background else "in_progress",
        completed_at=None,
        error=None,
        incomplete_details=None,
        output=[],
        usage=None,
        output_messages=UNSET,
    )


class Replay:
    """Feeds log entries to an emitter. `emitter` has the state and the log after all entries fed so far."""

    def __init__(self, opening: Response, include_obfuscation: bool, log: EventLog | None = None) -> None:
        """`log` is the list that the emitter writes to; None creates a new one."""
        self.emitter = Emitter(opening, ItemIds(opening.id), include_obfuscation, log=[] if log is None else log)

    def open(self) -> EventList:
        return self.emitter.emit_created()

    def feed(self, entries: Iterable[LogEntry]) -> EventList:
        emitter = self.emitter
        out: EventList = []
        for kind, group in groupby(entries, type):
            run: list[Any] = [*group]
            if kind is RunStarted:
                out += emitter.emit_in_progress()
            elif kind is RunEnded:
                out += emitter.end(run[0])
            elif kind is Text:
                out += emitter.feed_text(run[:1]) + emitter.feed_text(run[1:])  # the first one may open a part
            else:
                out += emitter.feed(run)
        return out

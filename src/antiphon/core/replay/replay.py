"""The same events again, byte for byte, from the opening Response and the log.

A replay ends where its entries end. One that was fed what a dead owner left behind goes on as a living emitter.
"""

from collections.abc import Iterable
from itertools import groupby
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from antiphon.core.deltas import Text
from antiphon.core.emitter.emitter import Emitter, Log
from antiphon.core.emitter.event_log import Began, Ended, Entry
from antiphon.core.emitter.parts_in_progress import Out
from antiphon.ids import ItemIds
from antiphon.protocol.types.response import Response

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Entry])
_json = msgspec.json.Decoder(list[Entry])


def encode_entries(entries: list[Entry]) -> bytes:
    """MessagePack, which has no integers of more than 64 bits. What tools say may have some: then it is JSON."""
    try:
        return _encoder.encode(entries)
    except OverflowError:
        return msgspec.json.encode(entries)


def decode_entries(batch: bytes) -> list[Entry]:
    return (_json if batch[:1] == b"[" else _decoder).decode(batch)


def reopened(response: Response) -> Response:
    """The Response as it stood at its creation, however far it is by now."""
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
    """`emitter` is in the state after all that was fed, its log included."""

    def __init__(self, opening: Response, obfuscates: bool, log: Log | None = None) -> None:
        """`log`: where the emitter is to write; a list of its own if it is None."""
        self.emitter = Emitter(opening, ItemIds(opening.id), obfuscates, log=[] if log is None else log)

    def open(self) -> Out:
        return self.emitter.created()

    def feed(self, entries: Iterable[Entry]) -> Out:
        emitter = self.emitter
        out: Out = []
        for kind, alike in groupby(entries, type):
            run: list[Any] = [*alike]
            if kind is Began:
                out += emitter.in_progress()
            elif kind is Ended:
                out += emitter.end(run[0])
            elif kind is Text:
                out += emitter.say(run[:1]) + emitter.say(run[1:])  # the first may have to open a part
            else:
                out += emitter.feed(run)
        return out

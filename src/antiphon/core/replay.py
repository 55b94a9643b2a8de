"""Replay: the same events again, byte for byte, from the opening Response and the log. A replay ends with its entries;
one that was fed the log of a crashed process continues as a live emitter.

The entries of a running response are stored in batches. An ended response has a packed log: all entries as compressed
JSON. The output in the stored JSON of the response is the preset dictionary of the compression, since it contains
almost every text of the log. zlib verifies that the dictionary is the same when it decompresses (RFC 1950, section 2.2,
DICTID), so a log cannot be read with another response. Results of server items, which may be images, are not stored a
second time: they are read from the response. The log alone has what a model received of code and searches whose outputs
the client has not included; later responses show it to their models.

    version ─ zlib stream of the log
"""

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.core import deltas as dl
from antiphon.core.emitter.emitter import Emitter, EventLog
from antiphon.core.emitter.event_log import FoldedDeltas, LogEntry, RunEnded, RunStarted
from antiphon.core.emitter.parts_in_progress import EventList
from antiphon.core.emitter.server_item_kinds import is_server_item
from antiphon.core.emitter.tool_items import initial_view
from antiphon.ids import ItemIds
from antiphon.protocol.types import items as it
from antiphon.protocol.types.parts import InputText
from antiphon.protocol.types.response import Response


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
            elif kind is dl.Text:
                out += emitter.feed_text(run[:1]) + emitter.feed_text(run[1:])  # the first one may open a part
            else:
                out += emitter.feed(run)
        return out


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
        moderation=UNSET,
        output_messages=UNSET,
    )


# Version of the packed format and of the emitter together: it changes when the same log would produce other events.
VERSION = 3

MAX_FOUND_LENGTH = 4000  # characters of what a search has found, best first, that later responses show
_LEVEL = 1  # the texts are in the dictionary: level 6 takes twice the time to save 5 % of a stored response
# Base two logarithms of the window, which bounds the dictionary, and of the memory. zlib clears both for each log:
# one of a few hundred bytes takes 16 µs, and 70 µs with the default of 15 and 8.
_SMALL, _LARGE = (12, 5), (15, 8)
_SMALL_BYTES = 4096
_ID_BYTES = 64  # at the start of a Response's JSON; they contain its id


class UnreadableLog(Exception):
    """The packed log is damaged, or belongs to another response or version; it must not be replayed."""


class _PackedDeltas(Struct, frozen=True, array_like=True, tag="f"):
    """FoldedDeltas; `kind` is the tag of the deltas."""

    kind: Literal["t", "r"]
    text: str
    lengths: list[int]


class _PackedDone(Struct, frozen=True, array_like=True, tag="z"):
    """ServerItemDone; the item is the one at `output_index` in the response."""

    key: int
    output_index: int
    model_text: str = ""  # what the model read of it, if the item lacks it


class _PackedCommand(Struct, frozen=True, array_like=True, tag="y"):
    """CommandDone; the output is that of the command `number` of the item at `output_index`."""

    key: int
    output_index: int
    number: int


_PackedEntry = LogEntry | _PackedDeltas | _PackedDone | _PackedCommand


def _encode_folded(part: Any) -> list[_PackedDeltas]:
    return [_PackedDeltas("t" if part.kind is dl.Text else "r", part.text, part.lengths.tolist())]


_packed_encoder = msgspec.json.Encoder(enc_hook=_encode_folded)
_packed_decoder = msgspec.json.Decoder(list[list[_PackedEntry]])
_response_decoder = msgspec.json.Decoder(Response)


def pack(log: Sequence[Sequence[LogEntry]], response: Response, body: bytes) -> bytes:
    """Pack a complete log, RunEnded included. `response` is the terminal Response and `body` its JSON."""
    packed: Sequence[Sequence[_PackedEntry]] = log
    if any(map(is_server_item, response.output)):
        packed = _drop_results(log, response)
    entries = _packed_encoder.encode(packed)
    window_bits, memory = _SMALL if len(entries) < _SMALL_BYTES else _LARGE
    dictionary = _make_dictionary(body, window_bits)
    compressor = zlib.compressobj(_LEVEL, wbits=window_bits, memLevel=memory, zdict=dictionary)
    return bytes((VERSION,)) + compressor.compress(entries) + compressor.flush()


def unpack(packed: bytes, body: bytes) -> list[LogEntry]:
    """Restore the log entries. `body` is the JSON of the terminal Response. Raises UnreadableLog."""
    return [*_restore(_unpack_entries(packed, body), body)]


def read_tool_outputs(packed: bytes, body: bytes) -> dict[str, str]:
    """Return what the model received of code and searches, by item id, if the items lack it. Raises UnreadableLog."""
    calls = [entry for entry in _unpack_entries(packed, body) if isinstance(entry, _PackedDone) and entry.model_text]
    output = _response_decoder.decode(body).output if calls else []
    return {str(output[entry.output_index].id): entry.model_text for entry in calls}


def _unpack_entries(packed: bytes, body: bytes) -> list[_PackedEntry]:
    if packed[:1] != bytes((VERSION,)):
        raise UnreadableLog(f"The packed log does not have version {VERSION}.")
    window_bits = 8 + (packed[1] >> 4) if len(packed) > 1 else 0  # RFC 1950, section 2.2, CINFO
    decompressor = zlib.decompressobj(zdict=_make_dictionary(body, window_bits))
    try:
        parts = _packed_decoder.decode(decompressor.decompress(packed[1:]))
    except (zlib.error, msgspec.DecodeError) as error:
        raise UnreadableLog(f"The packed log is damaged or belongs to another response: {error}") from None
    if not decompressor.eof or decompressor.unused_data:
        raise UnreadableLog("The packed log is truncated or has data after its end.")
    return [entry for part in parts for entry in part]


def _make_dictionary(body: bytes, window_bits: int) -> bytes:
    start = body.find(b'"output":')
    return body[:_ID_BYTES] + body[start : start + (1 << window_bits) - _ID_BYTES]


def _drop_results(log: Sequence[Sequence[LogEntry]], response: Response) -> list[list[_PackedEntry]]:
    """Drop what server items got after their start. Items have the order in which they started."""
    indexes = iter([n for n, item in enumerate(response.output) if not isinstance(item, it.Message | it.Reasoning)])
    started: dict[int, int] = {}  # output index of the item last started under a key
    commands: Counter[int] = Counter()  # that have ended, by output index

    def shorten(entry: LogEntry) -> _PackedEntry:
        match entry:
            case dl.CallStarted(key=key):
                started[key] = next(indexes)
            case dl.ServerItemStarted(key=key, item=item):
                if isinstance(item, it.ShellCall):  # the item of its output is the next one
                    next(indexes)
                started[key] = next(indexes)
                return entry if isinstance(item, it.ShellCall) else dl.ServerItemStarted(key, initial_view(item))
            case dl.CommandDone(key=key):
                commands[started[key]] += 1
                return _PackedCommand(key, started[key], commands[started[key]] - 1)
            case dl.ServerItemDone(key=key, item=it.CodeInterpreterCall(outputs=None), model_output=content):
                return _PackedDone(key, started[key], _join_text(content))
            case dl.ServerItemDone(
                key=key, item=it.FileSearchCall(results=None) | it.WebSearchCall(), model_output=content
            ):
                return _PackedDone(key, started[key], _join_text(content)[:MAX_FOUND_LENGTH])
            case dl.ServerItemDone(key=key):
                return _PackedDone(key, started[key])
            case dl.ItemAdded():
                next(indexes)
        return entry

    return [[*map(shorten, part)] for part in log]


def _join_text(content: dl.ToolOutputContent) -> str:
    return content if isinstance(content, str) else "\n".join([x.text for x in content if isinstance(x, InputText)])


def _restore(entries: list[_PackedEntry], body: bytes) -> Iterator[LogEntry]:
    output: list[it.OutputItem] = []
    for entry in entries:
        if isinstance(entry, _PackedDeltas):
            yield from FoldedDeltas(dl.Text if entry.kind == "t" else dl.ReasoningDelta, entry.text, entry.lengths)
        elif isinstance(entry, _PackedDone):
            output = output or _response_decoder.decode(body).output
            item = output[entry.output_index]
            assert is_server_item(item)
            yield dl.ServerItemDone(entry.key, replace(item, id=UNSET), entry.model_text)
        elif isinstance(entry, _PackedCommand):
            output = output or _response_decoder.decode(body).output
            item = output[entry.output_index]
            assert isinstance(item, it.ShellCallOutput)
            yield dl.CommandDone(entry.key, item.output[entry.number])
        else:
            yield entry

"""The packed log of a response that has ended: the log without its text, which is in the terminal Response already.

The pieces of all deltas of one kind, joined in order, are the content that the output items have in that kind. A packed
log therefore holds only the order of the pieces and their lengths in characters. The pieces of a call are cut from the
call's own item, since calls may overlap. Calls and server items are taken from the terminal Response in the order in
which they started. A server item is stored only if it started with other fields than it ended with, for example a
search whose page was determined later.

    version ─ CRC-32 of the response id and the body ─ body: runs of pieces; RunEnded fields missing in the Response
"""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import Annotated, Any, Generic, TypeVar, get_args
from zlib import crc32

import msgspec
from msgspec import UNSET, Meta, Struct
from msgspec.structs import replace

from antiphon.core.deltas import (
    AddedItem,
    Break,
    CallDelta,
    CallDone,
    CallStarted,
    Citation,
    EncryptedReasoning,
    ItemAdded,
    Progress,
    ReasoningDelta,
    Refusal,
    ServerItem,
    ServerItemDone,
    ServerItemStarted,
    Summary,
    Text,
    TurnEnded,
)
from antiphon.core.emitter.client_tool_items import clear_call_id, is_client_item
from antiphon.core.emitter.event_log import FoldedDeltas, LogEntry, LoggedError, RunEnded, RunStarted
from antiphon.core.emitter.server_item_kinds import SERVER_ITEM_KINDS, is_server_item
from antiphon.core.emitter.tool_items import initial_view
from antiphon.protocol.types.items import (
    Annotation,
    CustomToolCall,
    FunctionCall,
    McpCall,
    Message,
    OutputItem,
    Phase,
    Reasoning,
)
from antiphon.protocol.types.parts import Logprob, OutputText, RefusalPart
from antiphon.protocol.types.response import Response

Openings = dict[int, ServerItem]  # by number among all started items
_START_TYPES = (CallStarted, ServerItemStarted, ItemAdded)
_MODEL_ITEM_TYPES = (Message, Reasoning)
_Content = TypeVar("_Content", str, tuple[Logprob, ...], tuple[Annotation, ...])


class UnreadableLog(Exception):
    """The packed log is damaged, or belongs to another response or version; it must not be replayed."""


def mismatch(reason: str) -> UnreadableLog:
    return UnreadableLog(f"The packed log does not match the response: {reason}.")


def find_openings(log: Iterable[Sequence[Any]], response: Response) -> Openings:
    """Return the initial items that cannot be derived from the final ones."""
    for item in response.output:
        if type(item) in SERVER_ITEM_KINDS:
            break
    else:
        return {}
    items = _started_items(response)
    started = [entry for part in log if type(part) is not FoldedDeltas for entry in part if type(entry) in _START_TYPES]
    numbers = [n for n in range(min(len(started), len(items))) if type(started[n]) is ServerItemStarted]
    first = {n: initial_view(started[n].item) for n in numbers}
    return {n: item for n, item in first.items() if not (is_server_item(end := items[n]) and item == initial_view(end))}


class ContentSlicer(Generic[_Content]):
    """Content that is consumed piece by piece."""

    def __init__(self, content: _Content) -> None:
        self._content: _Content = content
        self._position = 0

    def take(self, lengths: Iterable[int]) -> list[_Content]:
        edges = [*accumulate(lengths, initial=self._position)]
        self._position = edges[-1]
        return [self._content[start:end] for start, end in pairwise(edges)]

    @property
    def is_exhausted(self) -> bool:
        """Whether the pieces taken are together as long as the content."""
        return self._position == len(self._content)


class PackedItems:
    """The started items of the terminal Response, in order."""

    def __init__(self, response: Response, openings: Mapping[int, ServerItem]) -> None:
        self._items = enumerate(_started_items(response))
        self._openings = openings
        self._arguments: list[ContentSlicer[str]] = []
        self._calls: dict[int, ContentSlicer[str]] = {}
        self._server_items: dict[int, ServerItem] = {}

    @property
    def is_complete(self) -> bool:
        """Whether the arguments of every call were consumed completely."""
        return all(arguments.is_exhausted for arguments in self._arguments)

    def check_all_started(self) -> None:
        if next(self._items, None) is not None:
            raise mismatch("the response has more items")

    def start_call(self, key: int) -> CallStarted:
        match self._next_item()[1]:
            case FunctionCall(name=name, arguments=text) as item:
                started = CallStarted(key, name, "function", item.namespace or None)
            case CustomToolCall(name=name, input=text) as item:
                started = CallStarted(key, name, "custom", item.namespace or None)
            case McpCall(name=name, arguments=text) as item:
                started = CallStarted(key, name, "mcp", item.server_label, item.approval_request_id)
                self._server_items[key] = item
            case _:
                raise mismatch("expected a call item")
        self._calls[key] = arguments = ContentSlicer(text)
        self._arguments.append(arguments)
        return started

    def take_arguments(self, key: int, lengths: Iterable[int]) -> list[str]:
        if key not in self._calls:
            raise mismatch(f"no call has the key {key}")
        return self._calls[key].take(lengths)

    def start_server_item(self, key: int) -> ServerItemStarted:
        number, item = self._next_item()
        if not is_server_item(item):
            raise mismatch("expected a server item")
        self._server_items[key] = item
        return ServerItemStarted(key, self._openings.get(number, replace(item, id=UNSET)))

    def end_server_item(self, key: int) -> ServerItemDone:
        if key not in self._server_items:
            raise mismatch(f"no server item has the key {key}")
        return ServerItemDone(key, replace(self._server_items[key], id=UNSET))

    def add_item(self) -> ItemAdded:
        item = self._next_item()[1]
        if not isinstance(item, AddedItem):
            raise mismatch("expected an item that is added at once")
        added = replace(item, id=UNSET)
        return ItemAdded(clear_call_id(added) if is_client_item(added) else added)

    def _next_item(self) -> tuple[int, OutputItem]:
        found = next(self._items, None)
        if found is None:
            raise mismatch("the response has fewer items")
        return found


def _started_items(response: Response) -> list[OutputItem]:
    """Return the items that have a start delta of their own; messages and reasoning start with their first content."""
    return [item for item in response.output if type(item) not in _MODEL_ITEM_TYPES]


__all__ = ["VERSION", "UnreadableLog", "pack", "unpack"]

# Version of the packed format and of the emitter together: it changes when the same log would produce other events.
VERSION = 1

_HEADER = struct.Struct(">BI")  # version and checksum
_Lengths = list[Annotated[int, Meta(ge=0)]]
_PHASES: tuple[Phase | None, ...] = (None, "commentary", "final_answer")
_BREAKS = [Break(phase, cut) for cut in (False, True) for phase in _PHASES]  # a Break is stored as its index here
_STAGES = (
    "searching",
    "interpreting",
    "generating",
    "progress",
)  # the stage of a Progress is stored as its index here, in the field `lengths`; add new ones at the end


class _PackedRun(Struct, frozen=True, array_like=True):
    """Consecutive pieces of one kind. `kind` is their tag, `key` the call or paragraph they belong to."""

    kind: str
    lengths: _Lengths
    key: int = 0
    logprobs: _Lengths = []  # number of log probabilities per piece; empty if no piece has any


_RunTuple = tuple[str, _Lengths, int, _Lengths]  # a run to be encoded: a tuple is faster to create and encodes the same


class _PackedError(Struct, frozen=True, array_like=True):
    """Fields of a LoggedError that the Response does not have."""

    code: str | None
    param: str | None
    retry_after: float | None


class _PackedLog(Struct, frozen=True, array_like=True):
    runs: list[_PackedRun]
    at: int
    error: _PackedError | None
    openings: Openings = {}


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_PackedLog)


def pack(log: Sequence[Sequence[LogEntry]], response: Response) -> bytes:
    """Pack a complete log, RunEnded included. `response` is the terminal Response."""
    ended = log[-1][-1]
    assert type(ended) is RunEnded
    fault = ended.fault
    details = None if fault is None else _PackedError(fault.code, fault.param, fault.retry_after)
    body = _encoder.encode(
        (_pack_runs(log), ended.at, details, find_openings(log, response))
    )  # the fields of _PackedLog
    return _header(body, response) + body


def unpack(packed: bytes, response: Response) -> list[LogEntry]:
    """Restore the log entries. Raises UnreadableLog."""
    if packed[:1] != bytes((VERSION,)):
        raise UnreadableLog(f"The packed log does not have version {VERSION}.")
    body = packed[_HEADER.size :]
    if packed[: _HEADER.size] != _header(body, response):
        raise UnreadableLog("The packed log is damaged or belongs to another response.")
    try:
        log = _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise UnreadableLog(f"The packed log is damaged: {error}") from None
    reader = _RunReader(response, log.openings)
    entries = [entry for run in log.runs for entry in reader.read(run)]
    reader.check_complete()
    return [*entries, _read_ending(log, response)]


def _header(body: bytes, response: Response) -> bytes:
    return _HEADER.pack(VERSION, crc32(response.id.encode() + body))


def _read_ending(log: _PackedLog, response: Response) -> RunEnded:
    details = response.incomplete_details
    return RunEnded(
        status=response.status,
        reason=details.reason if details else None,
        fault=_read_error(log, response),
        usage=response.usage,
        at=log.at,
        allow_empty=response.status == "completed" and not response.output,
    )


def _read_error(log: _PackedLog, response: Response) -> LoggedError | None:
    error, details = response.error, log.error
    if error is None and details is None:
        return None
    if error is None or details is None:
        raise mismatch("only one of them failed")
    return LoggedError(
        type=error.type, code=details.code, message=error.message, param=details.param, retry_after=details.retry_after
    )


# ---- log → runs

_TAGS: dict[type, str] = {kind: str(kind.__struct_config__.tag) for kind in get_args(LogEntry)}
_TEXT_TAG = _TAGS[Text]
_STARTED_RUN: _RunTuple = (_TAGS[RunStarted], [], 0, [])  # every packed log has one
_RUN_KEYS: dict[type, Callable[[Any], int]] = {
    ReasoningDelta: lambda delta: 0,
    EncryptedReasoning: lambda delta: 0,
    Refusal: lambda delta: 0,
    Summary: attrgetter("part"),
    CallDelta: attrgetter("key"),
}


def _pack_runs(log: Iterable[Sequence[Any]]) -> list[_RunTuple]:
    """Group entries to runs: a piece joins the run before it if kind and key are the same."""
    runs: list[_RunTuple] = []
    last_kind, last_key = None, 0  # kind of the previous entry, key of the last piece
    lengths: _Lengths = []
    logprobs: _Lengths = []
    for part in log:
        entries: Sequence[Any] = (part,) if type(part) is FoldedDeltas else part
        for entry in entries:
            kind = type(entry)
            if kind is Text:
                if last_kind is not Text:
                    runs.append((_TEXT_TAG, lengths := [], 0, logprobs := []))
                if logprobs or entry.logprobs:
                    # pieces before the first one with log probabilities
                    logprobs += [0] * (len(lengths) - len(logprobs))
                    logprobs.append(len(entry.logprobs))
                lengths.append(len(entry.text))
            elif kind is RunStarted:
                runs.append(_STARTED_RUN)
            elif kind in _RUN_KEYS:
                key = _RUN_KEYS[kind](entry)
                if kind is not last_kind or key != last_key:
                    runs.append((_TAGS[kind], lengths := [], last_key := key, []))
                lengths.append(len(entry.text))
            elif kind is not RunEnded:
                runs += _pack_single(entry)
            last_kind = kind
    return runs


def _pack_single(entry: Any) -> list[_RunTuple]:
    """Pack an entry that is a run of its own. Unknown stages are dropped."""
    match entry:
        case FoldedDeltas(kind=kind, lengths=lengths):
            return [(_TAGS[kind], lengths.tolist(), 0, [])]
        case Progress(key=key, stage=stage):
            return [(_TAGS[Progress], [_STAGES.index(stage)], key, [])] if stage in _STAGES else []
        case Break():
            return [(_TAGS[Break], [], _BREAKS.index(entry), [])]
    return [(_TAGS[type(entry)], [], getattr(entry, "key", 0), [])]


# ---- runs → log


class _RunReader:
    """Reads runs back: the content of a Response's items by kind of delta."""

    def __init__(self, response: Response, openings: Openings) -> None:
        output = response.output
        parts = [part for item in output if isinstance(item, Message) for part in item.content]
        texts = [part for part in parts if isinstance(part, OutputText)]
        reasoning_items = [item for item in output if isinstance(item, Reasoning)]
        self.texts = ContentSlicer("".join([part.text for part in texts]))
        self.logprobs = ContentSlicer(tuple([one for part in texts for one in part.logprobs]))
        self.annotations = ContentSlicer(tuple([one for part in texts for one in part.annotations]))
        self.refusals = ContentSlicer("".join([part.refusal for part in parts if isinstance(part, RefusalPart)]))
        self.reasoning = ContentSlicer("".join([part.text for item in reasoning_items for part in item.content or ()]))
        self.summaries = ContentSlicer("".join([part.text for item in reasoning_items for part in item.summary]))
        self.encrypted = ContentSlicer("".join([item.encrypted_content or "" for item in reasoning_items]))
        self.items = PackedItems(response, openings)

    def read(self, run: _PackedRun) -> list[LogEntry]:
        if run.kind not in _READERS:
            raise mismatch(f"unknown kind {run.kind!r}")
        return _READERS[run.kind](self, run)

    def check_complete(self) -> None:
        texts = (self.texts, self.refusals, self.reasoning, self.summaries, self.encrypted)
        exhausted = (
            all(slicer.is_exhausted for slicer in texts)
            and self.logprobs.is_exhausted
            and self.annotations.is_exhausted
        )
        if not (exhausted and self.items.is_complete):
            raise mismatch("the lengths differ")
        self.items.check_all_started()


def _read_texts(reader: _RunReader, run: _PackedRun) -> list[LogEntry]:
    texts = reader.texts.take(run.lengths)
    if not run.logprobs:
        return [Text(text) for text in texts]
    if len(run.logprobs) != len(texts):
        raise mismatch("log probabilities of some pieces are missing")
    return [*map(Text, texts, reader.logprobs.take(run.logprobs))]


def _read_break(reader: _RunReader, run: _PackedRun) -> list[LogEntry]:
    if not 0 <= run.key < len(_BREAKS):
        raise mismatch("unknown phase")
    return [_BREAKS[run.key]]


def _read_stages(reader: _RunReader, run: _PackedRun) -> list[LogEntry]:
    if not all(index < len(_STAGES) for index in run.lengths):
        raise mismatch("unknown stage")
    return [Progress(run.key, _STAGES[index]) for index in run.lengths]


_READERS: dict[str, Callable[[_RunReader, _PackedRun], list[LogEntry]]] = {
    _TAGS[RunStarted]: lambda reader, run: [RunStarted()],
    _TAGS[Text]: _read_texts,
    _TAGS[ReasoningDelta]: lambda reader, run: [*map(ReasoningDelta, reader.reasoning.take(run.lengths))],
    _TAGS[Summary]: lambda reader, run: [Summary(text, run.key) for text in reader.summaries.take(run.lengths)],
    _TAGS[EncryptedReasoning]: lambda reader, run: [*map(EncryptedReasoning, reader.encrypted.take(run.lengths))],
    _TAGS[Refusal]: lambda reader, run: [*map(Refusal, reader.refusals.take(run.lengths))],
    _TAGS[Break]: _read_break,
    _TAGS[Citation]: lambda reader, run: [Citation(one) for few in reader.annotations.take([1]) for one in few],
    _TAGS[CallStarted]: lambda reader, run: [reader.items.start_call(run.key)],
    _TAGS[CallDelta]: lambda reader, run: [
        CallDelta(run.key, text) for text in reader.items.take_arguments(run.key, run.lengths)
    ],
    _TAGS[CallDone]: lambda reader, run: [CallDone(run.key)],
    _TAGS[ServerItemStarted]: lambda reader, run: [reader.items.start_server_item(run.key)],
    _TAGS[Progress]: _read_stages,
    _TAGS[ServerItemDone]: lambda reader, run: [reader.items.end_server_item(run.key)],
    _TAGS[ItemAdded]: lambda reader, run: [reader.items.add_item()],
    _TAGS[TurnEnded]: lambda reader, run: [TurnEnded()],
}

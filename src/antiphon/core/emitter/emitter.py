"""Deltas → events: assigns indexes, ids and sequence numbers, and closes every item it opens. Ids and time are passed
in.

    emit_created ─▶ emit_in_progress ─▶ feed* ─▶ finish ( ─▶ replace_end)

At most one message or reasoning item is open; calls may overlap each other, and server items may overlap everything.
`finish` closes what is open and returns exactly one terminal event, which is the last one. Everything the emitter is
fed goes to its log, from which `core/replay.py` produces the same events again. The events must therefore depend
on nothing but the opening Response and the log.

Deltas may be padded, so that an observer of an encrypted stream cannot learn token lengths. The padding depends on the
delta alone: a replay has the same bytes as the original stream.
"""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from sys import maxsize
from typing import Any, assert_never

from msgspec.structs import replace

from antiphon.core.deltas import (
    AddedItem,
    Break,
    CallDelta,
    CallDone,
    CallStarted,
    Citation,
    ClientItem,
    CommandDone,
    Delta,
    EncryptedReasoning,
    ImagePreview,
    ItemAdded,
    Progress,
    ReasoningDelta,
    Refusal,
    ServerDelta,
    ServerItemDone,
    ServerItemStarted,
    Summary,
    Text,
    TurnEnded,
)
from antiphon.core.emitter.event_log import FOLD_BATCH, LogEntry, RunEnded, RunStarted, fold_tail
from antiphon.core.emitter.fold import ResponseEnding, close_response, terminal_events, to_logged_error
from antiphon.core.emitter.items_in_progress import OpenCall, OpenMessage, OpenReasoning, Status, begin_message
from antiphon.core.emitter.parts_in_progress import EventList, OpenText
from antiphon.core.emitter.response_views import required_input
from antiphon.core.emitter.tool_items import (
    CALL_NOT_OPEN,
    OpenServerItem,
    OpenShellOutput,
    OpenStreamedCall,
    client_call_events,
    complete_item_events,
    has_no_answer,
)
from antiphon.errors import AntiphonError, EngineFailed
from antiphon.ids import Prefix
from antiphon.protocol.decoding.stored_items import PREFIXES
from antiphon.protocol.types import events as ev
from antiphon.protocol.types import tool_events as tool_ev
from antiphon.protocol.types.items import Phase, ShellCall
from antiphon.protocol.types.response import Response, Usage

_PADDING_BLOCK = 16
_ObfuscatedEvent = ev.OutputTextDelta | ev.PartDelta | ev.SummaryDelta | ev.ItemDelta | tool_ev.ShellCallCommandDelta


def obfuscate(events: Iterable[ev.Event]) -> None:
    """Pad the delta of each event to a multiple of the block size."""
    for event in events:
        if isinstance(event, _ObfuscatedEvent):
            event.obfuscation = "." * (-len(event.delta.encode()) % _PADDING_BLOCK)


NewId = Callable[[Prefix], str]
EventLog = list[Sequence[LogEntry]]
_Calls = dict[int, OpenCall]  # open calls that the client executes
_ServerItems = dict[int, OpenServerItem]

# The attributes that `end` changes. It replaces their values instead of modifying them, so that `replace_end` can
# restore them.
_END_STATE = ("last_response", "_output", "_sequence_number", "_item_count", "_open", "_calls", "_server_items")
_get_end_state = attrgetter(*_END_STATE)

_SERVER_CALL_PREFIXES: dict[str, Prefix] = {"mcp": "mcp", "code_interpreter": "ci"}
_KEY_IN_USE = "A call or server item was started under a key that is still in use."


class Emitter:
    """Converts the deltas of one response to the events that the client receives."""

    __slots__ = (
        "_calls", "_ids", "_include_obfuscation", "_item_count", "_new_id", "_open", "_output", "_output_changed",
        "_phase", "_sequence_number", "_server_items", "_state_before_end", "_text_part", "_unsent_events",
        "fold_threshold", "last_response", "log", "suppress_events",
    )  # fmt: skip

    def __init__(
        self, response: Response, new_id: NewId, include_obfuscation: bool = False, log: EventLog | None = None
    ) -> None:
        self.last_response = response  # the Response as the last event carried it; complete once the response has ended
        self._output = [*response.output]  # current output, including items newer than `last_response`
        self._output_changed = False  # `_output` differs from `last_response.output`
        self.log = log  # None for a response that is not stored
        self._new_id = new_id
        self._include_obfuscation = include_obfuscation
        self.suppress_events = (
            False  # set before any other call: events are not sent, and only few are created (`emit_created`)
        )
        # Length of the log from which on its last lists are folded. FOLD_BATCH keeps the log small; only possible if
        # the log is a plain list, since followers of a live log count its lists.
        self.fold_threshold = maxsize
        self._sequence_number = 0
        self._item_count = 0
        self._open: OpenMessage | OpenReasoning | None = None
        self._phase: Phase | None = None  # phase of the next message
        self._text_part: OpenText | None = None  # the part that the next text delta most likely belongs to
        self._calls: _Calls = {}
        self._server_items: _ServerItems = {}
        self._ids: dict[int, str] = {}
        self._unsent_events: EventList = []  # events that were not emitted; sent with the end
        self._state_before_end: tuple[Any, ...] = ()  # for `replace_end`

    @property
    def response(self) -> Response:
        """The current Response. It is never modified: later output goes into a new object."""
        if self._output_changed:
            self.last_response = replace(self.last_response, output=[*self._output])
            self._output_changed = False
        return self.last_response

    def get_item_id(self, key: int) -> str:
        """Return the id of the call or server item that was last started under this key."""
        return self._ids[key]

    @property
    def has_client_calls(self) -> bool:
        """Whether the output has a call, open or closed, that the client must execute."""
        return bool(self._calls) or bool(required_input(self._output))

    def emit_created(self) -> EventList:
        """Emit `response.created`, and `response.queued` for a queued response.

        Returns nothing if events are suppressed: then only the events that open and close items are created, so that
        the caller can see that there was output.
        """
        if self.suppress_events:
            return []
        response = self.response
        events: EventList = [ev.Created(response=response)]
        if response.status == "queued":
            events.append(ev.Queued(response=response))
        return self._number_events(events)

    def emit_in_progress(self) -> EventList:
        if self.log is not None:
            self.log.append((RunStarted(),))
        response = self.response if self._output_changed else self.last_response
        if response.status != "in_progress":
            self.last_response = response = replace(response, status="in_progress")
        return [] if self.suppress_events else self._number_events([ev.InProgress(response=response)])

    def feed(self, deltas: Iterable[Delta]) -> EventList:
        """Convert deltas to events. A list is stored in the log as it is and must not be modified afterwards."""
        batch = deltas if type(deltas) is list else [*deltas]
        if (log := self.log) is not None and batch:
            if len(log) >= self.fold_threshold:
                self._fold_log(log)
            log.append(batch)
        out: EventList = []
        remaining = iter(batch)
        try:
            for delta in remaining:
                if type(delta) is Text:
                    self._take_text(delta, out)
                else:
                    self._take_delta(delta, out)
                    self._text_part = self._open.text if isinstance(self._open, OpenMessage) else None
        except EngineFailed:
            self._unsent_events += self._number_events(out)
            if self.log is not None:  # the delta that failed and those after it were not applied
                self.log[-1] = self.log[-1][: -1 - len([*remaining])]
            raise
        return self._number_events(out)

    def feed_text(self, texts: Sequence[Text]) -> EventList:
        """Convert text deltas only. This is the token path: same events as `feed` at less than half the cost."""
        if self._include_obfuscation:
            return self.feed(texts)
        if (log := self.log) is not None:
            if len(log) >= self.fold_threshold:
                self._fold_log(log)
            log.append(texts)
        opening: EventList | None = None
        if (part := self._text_part) is None:
            opening = []
            part = self._text_part = self._open_message(opening).open_text(opening, self.suppress_events)
            self._number_events(opening)
        if self.suppress_events:
            part.append_silently(texts)
            return opening or []
        out = part.take(texts, self._sequence_number)
        self._sequence_number += len(out)
        return out if opening is None else opening + out

    def send_with_end(self, events: EventList) -> None:
        """Send events that `feed` returned, but that were not emitted, with those of the end."""
        self._unsent_events += events

    def finish(self, ending: ResponseEnding, usage: Usage | None, at: int) -> EventList:
        fault = None if ending.error is None else to_logged_error(ending.error)
        ended = RunEnded(
            status=ending.status,
            reason=ending.reason,
            fault=fault,
            usage=usage,
            at=at,
            allow_empty=ending.allow_empty,
            moderation=ending.moderation,
        )
        return self.end(ended)

    def end(self, ended: RunEnded) -> EventList:
        """Like `finish`, with a log entry as the argument."""
        if self.log is not None:
            self.log.append((ended,))
        self._state_before_end = _get_end_state(self)
        self._output = output = [*self._output]
        out: EventList = []
        completed = ended.status == "completed"
        if completed and self._open is None and not (self._server_items or ended.allow_empty) and has_no_answer(output):
            self._take_text(Text(""), out)
        self._close_model_items("completed" if completed else "incomplete", out)
        for item in self._server_items.values():
            item.cut(out)
        self._server_items = {}
        self._number_events(out)
        self.last_response, self._output_changed = close_response(self.last_response, self._output, ended), False
        return (
            []
            if self.suppress_events
            else self._unsent_events + out + self._number_events(terminal_events(self.last_response, ended))
        )

    def replace_end(self, error: AntiphonError, at: int) -> EventList:
        """Replace the events of `finish`, none of which was sent, because the end could not be stored."""
        usage, moderation = self.last_response.usage, self.last_response.moderation or None
        for name, value in zip(_END_STATE, self._state_before_end, strict=True):
            setattr(self, name, value)
        if self.log is not None:
            self.log.pop()
        fault = to_logged_error(error)
        return self.end(RunEnded(status="failed", fault=fault, usage=usage, at=at, moderation=moderation))

    def _take_text(self, delta: Text, out: EventList) -> None:
        if (part := self._text_part) is None:
            part = self._text_part = self._open_message(out).open_text(out, self.suppress_events)
        if self.suppress_events:
            part.append_silently((delta,))
        else:
            out += part.take((delta,), 0)

    def _take_delta(self, delta: Delta, out: EventList) -> None:
        match delta:  # most frequent deltas first; text is handled before
            case ReasoningDelta() | Summary() | EncryptedReasoning():
                self._open_reasoning(out).take(delta, out)
            case CallDelta(key=key, text=text):
                self._get_call(key).take(text, out)
            case Refusal() | Citation():
                self._open_message(out).take(delta, out)
            case CallStarted():
                self._start_call(delta, out)
            case CallDone(key=key):
                self._end_call(key, out)
            case Break(phase=phase, cut=cut):
                self._close_open("incomplete" if cut else "completed", out)
                self._phase = phase
            case Text():
                self._take_text(delta, out)
            case _:
                self._take_server_delta(delta, out)

    def _take_server_delta(self, delta: ServerDelta, out: EventList) -> None:
        """Handle server items and the boundary between them and the model output."""
        match delta:
            case Progress(key=key, stage=stage):
                self._get_server_item(key).advance(stage, out)
            case CommandDone(key=key, output=output):
                self._get_server_item(key).take_output(output, out)
            case ImagePreview(key=key):
                self._get_server_item(key).show_preview(delta, out)
            case ServerItemStarted():
                self._start_server_item(delta, out)
            case ServerItemDone(key=key, item=item):
                self._get_server_item(key).close(item, out)
                del self._server_items[key]
            case ItemAdded(item=item):
                self._add_item(item, out)
            case TurnEnded():
                self._close_all(out)
                self._phase = None
            case _:
                assert_never(delta)

    def _open_message(self, out: EventList) -> OpenMessage:
        if not isinstance(self._open, OpenMessage):
            if self._item_count:
                self._close_all(out)
            self._open = begin_message(self._new_id("msg"), self._item_count, self._phase, out)
            self._item_count += 1
            self._phase = None
        return self._open

    def _open_reasoning(self, out: EventList) -> OpenReasoning:
        if not isinstance(self._open, OpenReasoning):
            self._close_all(out)
            self._open = OpenReasoning(self._new_id("rs"), self._next_index(), out)
        return self._open

    def _start_call(self, started: CallStarted, out: EventList) -> None:
        key = started.key
        if key in self._server_items:
            raise EngineFailed(_KEY_IN_USE)
        self._close_open("completed", out)
        self._close_call(key, out)
        if (prefix := _SERVER_CALL_PREFIXES.get(started.kind)) is not None:
            self._ids[key] = item_id = self._new_id(prefix)
            self._server_items[key] = OpenStreamedCall(item_id, self._next_index(), started)
            self._server_items[key].open(out)
            return
        self._ids[key] = item_id = self._new_id("fc" if started.kind == "function" else "ctc")
        self._calls[key] = OpenCall(item_id, self._new_id("call"), self._next_index(), started)
        self._calls[key].open(out)

    def _start_server_item(self, started: ServerItemStarted, out: EventList) -> None:
        key, item = started.key, started.item
        if key in self._server_items or key in self._calls:
            raise EngineFailed(_KEY_IN_USE)
        self._close_open("completed", out)
        if isinstance(item, ShellCall):
            position, call_id = (self._new_id("sh"), self._next_index()), self._new_id("call")
            out += client_call_events(item, position, call_id)
            self._ids[key] = item_id = self._new_id("sho")
            self._server_items[key] = OpenShellOutput(item_id, self._next_index(), item, call_id)
        else:
            self._ids[key] = item_id = self._new_id(PREFIXES[type(item)])
            self._server_items[key] = OpenServerItem(item_id, self._next_index(), item)
        self._server_items[key].open(out)

    def _add_item(self, item: AddedItem, out: EventList) -> None:
        self._close_open("completed", out)
        position = self._new_id(PREFIXES.get(type(item), "item")), self._next_index()
        out += (
            client_call_events(item, position, self._new_id("call"))
            if isinstance(item, ClientItem)
            else complete_item_events(item, position)
        )

    def _get_call(self, key: int) -> OpenCall | OpenServerItem:
        call = self._calls.get(key) or self._server_items.get(key)
        if call is None:
            raise EngineFailed(CALL_NOT_OPEN)
        return call

    def _get_server_item(self, key: int) -> OpenServerItem:
        if key not in self._server_items:
            raise EngineFailed("A server item received a delta before it was started or after it was done.")
        return self._server_items[key]

    def _end_call(self, key: int, out: EventList) -> None:
        if key in self._server_items:
            self._server_items[key].complete_arguments(out)
        else:
            self._close_call(key, out)

    def _close_call(self, key: int, out: EventList) -> None:
        if (call := self._calls.pop(key, None)) is not None:
            call.close("completed", out)

    def _next_index(self) -> int:
        self._item_count += 1
        return self._item_count - 1

    def _close_all(self, out: EventList) -> None:
        """Close all items of the model. Server items stay open, but their arguments are complete."""
        self._close_model_items("completed", out)
        for item in self._server_items.values():
            item.complete_arguments(out)

    def _close_model_items(self, status: Status, out: EventList) -> None:
        self._close_open(status, out)
        if self._calls:
            for call in self._calls.values():
                call.close(status, out)
            self._calls = {}

    def _close_open(self, status: Status, out: EventList) -> None:
        if self._open is not None:
            self._open.close(status, out)
            self._open = None

    def _fold_log(self, log: EventLog) -> None:
        if fold_tail(log) and self._text_part is not None:
            self._text_part.fold_pieces(FOLD_BATCH)
        self.fold_threshold = len(log) + FOLD_BATCH

    def _number_events(self, out: EventList) -> EventList:
        """Number the events and update the output."""
        number = self._sequence_number
        for event in out:
            event.sequence_number = number
            number += 1
            if type(event) is ev.OutputItemAdded:
                self._output.append(event.item)
                self._output_changed = True
            elif type(event) is ev.OutputItemDone:
                self._output[event.output_index] = event.item
                self._output_changed = True
        self._sequence_number = number
        if self._include_obfuscation:
            obfuscate(out)
        return out

"""Deltas → events: indexes, ids, numbers, and an end for every beginning. Ids and time are handed in.

    created ─▶ in_progress ─▶ feed* ─▶ finish ( ─▶ instead)

At most one message or reasoning item is open; calls may overlap one another, and what the server does may overlap
everything. `finish` closes what is open and gives exactly one terminal event, the last one ever. Whatever it is fed
goes to its log, from which replay.py makes the same events again: nothing but the opening Response and the log may have
a say in them.

Padding for deltas, so that who watches an encrypted stream does not learn how long its tokens are.

It depends on the delta alone: a replay has the same bytes as the first sending.
"""

from collections.abc import Callable, Iterable, Sequence
from sys import maxsize
from typing import assert_never

from msgspec.structs import replace

from antiphon.core.deltas import (
    Break,
    CallDelta,
    CallDone,
    CallStarted,
    Citation,
    Delta,
    Opened,
    Put,
    PutItem,
    Ran,
    Refusal,
    Sealed,
    Stage,
    Summary,
    Text,
    Thought,
    Turned,
)
from antiphon.core.emitter.event_log import EVERY, Began, Ended, Entry, gather
from antiphon.core.emitter.fold import Ending, closing, fault_of, terminal
from antiphon.core.emitter.items_in_progress import (
    GONE_ON,
    OpenCall,
    OpenMcpCall,
    OpenMessage,
    OpenReasoning,
    OpenServerItem,
    Status,
    begin_message,
)
from antiphon.core.emitter.parts_in_progress import OpenText, Out
from antiphon.core.emitter.response_views import required_input
from antiphon.core.emitter.tool_items import called, is_clients, put, says_nothing
from antiphon.errors import AntiphonError, EngineFailed
from antiphon.ids import Prefix
from antiphon.protocol.decoding.stored_items import PREFIXES
from antiphon.protocol.types import events as ev
from antiphon.protocol.types.items import OutputItem, Phase
from antiphon.protocol.types.response import Response, Usage

_BLOCK = 16
_Padded = (
    ev.OutputTextDelta
    | ev.RefusalDelta
    | ev.ReasoningTextDelta
    | ev.ReasoningSummaryTextDelta
    | ev.FunctionCallArgumentsDelta
    | ev.CustomToolCallInputDelta
    | ev.McpCallArgumentsDelta
    | ev.CodeInterpreterCallCodeDelta
    | ev.ShellCallCommandDelta
)


def obfuscate(events: Iterable[ev.Event]) -> None:
    for event in events:
        if isinstance(event, _Padded):
            event.obfuscation = "." * (-len(event.delta.encode()) % _BLOCK)


NewId = Callable[[Prefix], str]
Log = list[Sequence[Entry]]
_Calls = dict[int, OpenCall]  # that the client is to carry out
_Served = dict[int, OpenServerItem]
_State = tuple[Response, list[OutputItem], int, int, OpenMessage | OpenReasoning | None, _Calls, _Served]

_TWICE = "Something began under the key of what the server still does."


class Emitter:
    """The one who turns what a model did into what a client is told."""

    __slots__ = (
        "_before", "_calls", "_grown", "_ids", "_items", "_new_id", "_number", "_obfuscates", "_open", "_output",
        "_phase", "_served", "_text", "_untold", "gathers", "hushed", "log", "told",
    )  # fmt: skip

    def __init__(self, response: Response, new_id: NewId, obfuscates: bool = False, log: Log | None = None) -> None:
        self.told = response  # as an event told of it last: of one that has ended, all
        self._output = [*response.output]  # what was said since included
        self._grown = False  # beyond the Response
        self.log = log  # None for a response that nobody keeps
        self._new_id = new_id
        self._obfuscates = obfuscates
        self.hushed = False  # True, before anything else: nobody hears the events, and few are made (`created`)
        # Lists of the log from which on the last ones are folded. With EVERY it takes little room, as long as it is a
        # plain list: nobody counts its lists.
        self.gathers = maxsize
        self._number = 0
        self._items = 0
        self._open: OpenMessage | OpenReasoning | None = None
        self._phase: Phase | None = None  # of the message that comes next
        self._text: OpenText | None = None  # the part that the next piece of text most likely belongs to
        self._calls: _Calls = {}
        self._served: _Served = {}
        self._ids: dict[int, str] = {}
        self._untold: Out = []  # what a `feed` that raised had made; goes out with the end
        self._before: _State | None = None  # the end

    @property
    def response(self) -> Response:
        """As it stands. Nobody changes it: what is said next is in another one."""
        if self._grown:
            self.told = replace(self.told, output=[*self._output])
            self._grown = False
        return self.told

    def item_id(self, key: int) -> str:
        """Of the call, or of what the server did, that began last under this key."""
        return self._ids[key]

    @property
    def calling(self) -> bool:
        """Is or was something called that the client is to carry out?"""
        return bool(self._calls) or bool(required_input(self._output))

    def created(self) -> Out:
        """Nothing if it is hushed: then the Response is all, and of events only those of items that begin and end are
        made, so that whoever feeds it knows that something was said."""
        if self.hushed:
            return []
        response = self.response
        events: Out = [ev.Created(response=response)]
        if response.status == "queued":
            events.append(ev.Queued(response=response))
        return self._numbered(events)

    def in_progress(self) -> Out:
        if self.log is not None:
            self.log.append((Began(),))
        response = self.response if self._grown else self.told
        if response.status != "in_progress":
            self.told = response = replace(response, status="in_progress")
        return [] if self.hushed else self._numbered([ev.InProgress(response=response)])

    def feed(self, deltas: Iterable[Delta]) -> Out:
        """A list is kept as it is in the log: nobody may change it afterwards."""
        given = deltas if type(deltas) is list else [*deltas]
        if (log := self.log) is not None and given:
            if len(log) >= self.gathers:
                self._gather(log)
            log.append(given)
        out: Out = []
        rest = iter(given)
        try:
            for delta in rest:
                if type(delta) is Text:
                    self._take_text(delta, out)
                else:
                    self._take(delta, out)
                    self._text = self._open.text if isinstance(self._open, OpenMessage) else None
        except EngineFailed:
            self._untold += self._sealed(out)
            self._forget(1 + len([*rest]))
            raise
        return self._sealed(out)

    def say(self, texts: Sequence[Text]) -> Out:
        """Text and nothing else, the token path: the same events as from `feed` at less than half the cost."""
        if self._obfuscates:
            return self.feed(texts)
        if (log := self.log) is not None:
            if len(log) >= self.gathers:
                self._gather(log)
            log.append(texts)
        begun: Out | None = None
        if (part := self._text) is None:
            begun = []
            part = self._text = self._message(begun).open_text(begun, self.hushed)
            self._sealed(begun)
        if self.hushed:
            part.keep(texts)
            return begun or []
        out = part.take(texts, self._number)
        self._number += len(out)
        return out if begun is None else begun + out

    def finish(self, ending: Ending, usage: Usage | None, at: int) -> Out:
        fault = None if ending.error is None else fault_of(ending.error)
        ended = Ended(status=ending.status, reason=ending.reason, fault=fault, usage=usage, at=at, silent=ending.silent)
        return self.end(ended)

    def end(self, ended: Ended) -> Out:
        """`finish`, in the words of the log."""
        if self.log is not None:
            self.log.append((ended,))
        output = [*self._output]
        self._before = self.told, output, self._number, self._items, self._open, self._calls, self._served
        out: Out = []
        completed = ended.status == "completed"
        if completed and self._open is None and not (self._served or ended.silent) and says_nothing(output):
            self._take_text(Text(""), out)
        self._close_said("completed" if completed else "incomplete", out)
        if self._served:
            self._cut_served(out)
        self._sealed(out)
        self.told, self._grown = closing(self.told, self._output, ended), False
        return [] if self.hushed else self._untold + out + self._numbered(terminal(self.told, ended))

    def instead(self, error: AntiphonError, at: int) -> Out:
        """The end could not be kept, so nobody was told of it: all that `finish` gave is replaced by these events."""
        assert self._before is not None
        usage = self.told.usage
        self.told, self._output, self._number, self._items, self._open, self._calls, self._served = self._before
        if self.log is not None:
            self.log.pop()
        return self.end(Ended(status="failed", fault=fault_of(error), usage=usage, at=at))

    def _take_text(self, delta: Text, out: Out) -> None:
        part = self._text
        if part is None:
            part = self._text = self._message(out).open_text(out, self.hushed)
        if self.hushed:
            part.keep((delta,))
        else:
            out += part.take((delta,), 0)

    def _take(self, delta: Delta, out: Out) -> None:
        match delta:  # what comes most often comes first; text is taken before
            case Thought() | Summary() | Sealed():
                self._reasoning(out).take(delta, out)
            case CallDelta(key=key, text=text):
                self._call(key).take(text, out)
            case Refusal() | Citation():
                self._message(out).take(delta, out)
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
                self._take_served(delta, out)

    def _take_served(self, delta: Opened | Stage | Ran | Put | Turned, out: Out) -> None:
        """What the server does, and the seam between that and what the model says."""
        match delta:
            case Stage(key=key, word=word):
                self._served_item(key).stage(word, out)
            case Opened():
                self._serve(delta, out)
            case Ran(key=key, item=item):
                self._served_item(key).close(item, out)
                del self._served[key]
            case Put(item=item):
                self._put(item, out)
            case Turned():
                self._close_all(out)
                self._phase = None
            case _:
                assert_never(delta)

    def _message(self, out: Out) -> OpenMessage:
        if not isinstance(self._open, OpenMessage):
            if self._items:
                self._close_all(out)
            self._open = begin_message(self._new_id("msg"), self._items, self._phase, out)
            self._items += 1
            self._phase = None
        return self._open

    def _reasoning(self, out: Out) -> OpenReasoning:
        if not isinstance(self._open, OpenReasoning):
            self._close_all(out)
            self._open = OpenReasoning(self._new_id("rs"), self._next_index(), out)
        return self._open

    def _start_call(self, started: CallStarted, out: Out) -> None:
        key = started.key
        if key in self._served:
            raise EngineFailed(_TWICE)
        self._close_open("completed", out)
        self._close_call(key, out)
        if started.kind == "mcp":
            self._ids[key] = item_id = self._new_id("mcp")
            self._served[key] = OpenMcpCall(item_id, self._next_index(), started)
            self._served[key].open(out)
            return
        self._ids[key] = item_id = self._new_id("fc" if started.kind == "function" else "ctc")
        self._calls[key] = OpenCall(item_id, self._new_id("call"), self._next_index(), started)
        self._calls[key].open(out)

    def _serve(self, opened: Opened, out: Out) -> None:
        key, item = opened.key, opened.item
        if key in self._served or key in self._calls:
            raise EngineFailed(_TWICE)
        self._close_open("completed", out)
        self._ids[key] = item_id = self._new_id(PREFIXES[type(item)])
        self._served[key] = OpenServerItem(item_id, self._next_index(), item)
        self._served[key].open(out)

    def _put(self, item: PutItem, out: Out) -> None:
        self._close_open("completed", out)
        place = self._new_id(PREFIXES.get(type(item), "item")), self._next_index()
        out += called(item, place, self._new_id("call")) if is_clients(item) else put(item, place)

    def _call(self, key: int) -> OpenCall | OpenServerItem:
        call = self._calls.get(key) or self._served.get(key)
        if call is None:
            raise EngineFailed(GONE_ON)
        return call

    def _served_item(self, key: int) -> OpenServerItem:
        if key not in self._served:
            raise EngineFailed("Something that the server does went on before it began, or after it was over.")
        return self._served[key]

    def _end_call(self, key: int, out: Out) -> None:
        if key in self._served:
            self._served[key].settle(out)
        else:
            self._close_call(key, out)

    def _close_call(self, key: int, out: Out) -> None:
        if (call := self._calls.pop(key, None)) is not None:
            call.close("completed", out)

    def _next_index(self) -> int:
        self._items += 1
        return self._items - 1

    def _close_all(self, out: Out) -> None:
        """The model has done with it. What the server is to run stays open, and is whole."""
        self._close_said("completed", out)
        for item in self._served.values():
            item.settle(out)

    def _close_said(self, status: Status, out: Out) -> None:
        if self._open is not None:
            self._open.close(status, out)
            self._open = None
        if self._calls:
            for call in self._calls.values():
                call.close(status, out)
            self._calls = {}

    def _cut_served(self, out: Out) -> None:
        for item in self._served.values():
            item.cut(out)
        self._served = {}

    def _close_open(self, status: Status, out: Out) -> None:
        if self._open is not None:
            self._open.close(status, out)
            self._open = None

    def _gather(self, log: Log) -> None:
        if gather(log) and self._text is not None:
            self._text.fold(EVERY)
        self.gathers = len(log) + EVERY

    def _forget(self, count: int) -> None:
        """The last deltas that were fed never took place."""
        if self.log is not None:
            self.log[-1] = self.log[-1][:-count]

    def _sealed(self, out: Out) -> Out:
        """Number the events and let the output keep up with them."""
        number = self._number
        for event in out:
            event.sequence_number = number
            number += 1
            if type(event) is ev.OutputItemAdded:
                self._output.append(event.item)
                self._grown = True
            elif type(event) is ev.OutputItemDone:
                self._output[event.output_index] = event.item
                self._grown = True
        self._number = number
        if self._obfuscates:
            obfuscate(out)
        return out

    def _numbered(self, out: Out) -> Out:
        """The same for events that carry the Response, as it stands."""
        for event in out:
            event.sequence_number = self._number
            self._number += 1
        return out

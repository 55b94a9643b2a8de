"""Events as clients of other servers know them: under other names, and with more of them in between.

Only what is sent changes: logs, numbers and replays stay as they are. What stands beside an event has its number.
One for each stream, which is told to it from its first event on; of what its client has already nothing is given.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import asdict

from antiphon.protocol.types import events as ev
from antiphon.protocol.types import legacy_events as older
from antiphon.protocol.types.builtin_items import CodeInterpreterCall, SearchAction, WebSearchCall
from antiphon.protocol.types.event_bases import Event
from antiphon.protocol.types.items import CustomToolCall, FunctionCall, OutputItem, Reasoning
from antiphon.protocol.types.parts import ReasoningText
from antiphon.protocol.types.tools import Json

ReasoningNames = Literal["openai", "open-responses", "legacy"]
LegacyEvents = Literal["off", "on", "strings"]
Rename = Callable[[Any], Event]


class Beside(Struct, frozen=True, kw_only=True):
    """What a stream tells beyond its events, once it has begun."""

    image_urls: Sequence[str] = ()
    rate_limits: Sequence[older.RateLimit] = ()
    after: int = -1  # the number of the last event that the client has


class Retelling:
    def __init__(self, names: ReasoningNames, legacy: LegacyEvents, beside: Beside) -> None:
        self._renames = _RENAMES[names]
        self._legacy = _Legacy(beside, legacy == "strings") if legacy != "off" else None
        self._after = beside.after

    def __call__(self, events: list[Event]) -> list[Event]:
        out: list[Event] = []
        for index, event in enumerate(events):
            rename = self._renames.get(type(event))
            told = [event if rename is None else rename(event)]
            if self._legacy is not None:
                told = [*self._legacy.tell(told[0], events, index)]
            if event.sequence_number > self._after:
                out += told
        return out


class _Legacy:
    def __init__(self, beside: Beside, strings: bool) -> None:
        self._beside = beside
        self._strings = strings
        self._response_id = ""
        self._calls: dict[str, Json] = {}  # what is told with each piece of their arguments, by the ids of the items

    def tell(self, told: Event, events: Sequence[Event], index: int) -> Iterator[Event]:
        """One of these that came together; `told` as it is named by now."""
        event = events[index]
        match event:
            case ev.Error():
                yield older.OlderError(**_fields(event))
            case ev.CodeInterpreterCallCompleted():
                yield _with_outputs(event, events[index + 1 :])
            case _:
                yield told
        for beside in self._beside_of(event):
            beside.sequence_number = event.sequence_number
            yield beside

    def _beside_of(self, event: Event) -> Iterator[Event]:
        match event:
            case ev.Created(response=response):
                self._response_id = response.id
                yield from self._begun()
            case ev.OutputItemAdded(item=FunctionCall() | CustomToolCall() as item):
                self._calls[str(item.id)] = {"id": item.id, "call_id": item.call_id, "name": item.name}
            case ev.FunctionCallArgumentsDelta() | ev.CustomToolCallInputDelta() if event.item_id in self._calls:
                yield self._called(event.item_id, event.delta)
            case ev.OutputItemDone(item=item):
                yield from _context(item)

    def _begun(self) -> Iterator[Event]:
        if self._beside.image_urls:
            yield older.ImagesContext(image_urls=[*self._beside.image_urls])
        if self._beside.rate_limits:
            yield older.RateLimitsUpdated(rate_limits=[*self._beside.rate_limits])

    def _called(self, item_id: str, arguments: str) -> Event:
        call: Any = {"type": "tool_call", **self._calls[item_id], "arguments": arguments}
        content = [msgspec.json.encode(call).decode() if self._strings else call]
        return older.ToolCallDelta(response=older.Named(id=self._response_id), delta=older.CallsDelta(content=content))


def _context(item: OutputItem) -> Iterator[Event]:
    match item:
        case Reasoning(encrypted_content=str() as sealed):
            yield older.SealedContext(encrypted_content=sealed)
        case WebSearchCall(action=SearchAction(sources=list() as sources)):
            yield older.SourcesContext(sources=sources)


def _with_outputs(event: ev.CodeInterpreterCallCompleted, rest: Sequence[Event]) -> Event:
    """Its item is done in the same breath."""
    for later in rest:
        if isinstance(later, ev.OutputItemDone) and later.output_index == event.output_index:
            item = later.item
            outputs = item.outputs if isinstance(item, CodeInterpreterCall) else None
            return older.OlderCodeCompleted(**_fields(event), outputs=outputs or [])
    return event


def _fields(event: Event) -> dict[str, Any]:
    return {name: value for name, value in asdict(event).items() if value is not UNSET}


def _as(kind: type[Event]) -> Rename:
    """The same under another name."""
    return lambda event: kind(**_fields(event))


def _part_as(kind: type[Event]) -> Rename:
    """Of parts, those of reasoning alone."""
    return lambda event: kind(**_fields(event)) if isinstance(event.part, ReasoningText) else event


_OPEN_RESPONSES: Final[dict[type[Event], Rename]] = {
    ev.ReasoningTextDelta: _as(older.ReasoningDelta),
    ev.ReasoningTextDone: _as(older.ReasoningDone),
}
_RENAMES: Final[dict[ReasoningNames, dict[type[Event], Rename]]] = {
    "openai": {},
    "open-responses": _OPEN_RESPONSES,
    "legacy": {
        **_OPEN_RESPONSES,
        ev.ContentPartAdded: _part_as(older.ReasoningPartAdded),
        ev.ContentPartDone: _part_as(older.ReasoningPartDone),
        ev.ReasoningSummaryPartAdded: _as(older.SummaryAdded),
        ev.ReasoningSummaryTextDelta: _as(older.SummaryDelta),
    },
}

"""Adapts events for clients of other servers: other event names, and additional events in between.

Only what is sent changes: logs, sequence numbers and replays stay the same. An additional event has the number of the
event it accompanies. There is one adapter per stream. It must see the stream from its first event on, and drops the
events that its client already has.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import asdict

from antiphon.protocol.types import events as ev
from antiphon.protocol.types import items as it
from antiphon.protocol.types import legacy_events as older
from antiphon.protocol.types import tool_events as tool_ev
from antiphon.protocol.types.events import Event
from antiphon.protocol.types.parts import ReasoningText
from antiphon.protocol.types.tools import Json

ReasoningNames = Literal["openai", "open-responses", "legacy"]
LegacyEvents = Literal["off", "on", "strings"]
Rename = Callable[[Any], Event]


class LegacyEventContext(Struct, frozen=True, kw_only=True):
    """Data of additional events that are sent at the start of a stream."""

    image_urls: Sequence[str] = ()
    rate_limits: Sequence[older.RateLimit] = ()
    after_sequence: int = -1  # number of the last event that the client already has


class LegacyEventAdapter:
    """Renames events and adds the legacy events that are enabled."""

    def __init__(self, names: ReasoningNames, legacy: LegacyEvents, context: LegacyEventContext) -> None:
        self._renames = _RENAMES[names]
        self._legacy = legacy
        self._context = context
        self._response_id = ""
        self._calls: dict[str, Json] = {}  # fields sent with each piece of arguments, by item id

    def __call__(self, events: list[Event]) -> list[Event]:
        out: list[Event] = []
        for index, event in enumerate(events):
            rename = self._renames.get(type(event))
            adapted = [event if rename is None else rename(event)]
            if self._legacy != "off":
                adapted = [*self._expand(adapted[0], events, index)]
            if event.sequence_number > self._context.after_sequence:
                out += adapted
        return out

    def _expand(self, renamed: Event, events: Sequence[Event], index: int) -> Iterator[Event]:
        """Yield an event and those that accompany it.

        `events` are those emitted together, `index` is the current one, and `renamed` is its adapted form.
        """
        event = events[index]
        match event:
            case ev.Error():
                yield older.LegacyError(**_fields(event))
            case tool_ev.CodeInterpreterCallCompleted():
                yield _add_outputs(event, events[index + 1 :])
            case _:
                yield renamed
        for extra in self._extra_events(event):
            extra.sequence_number = event.sequence_number
            yield extra

    def _extra_events(self, event: Event) -> Iterator[Event]:
        match event:
            case ev.Created(response=response):
                self._response_id = response.id
                yield from self._initial_events()
            case ev.OutputItemAdded(item=it.FunctionCall() | it.CustomToolCall() as item):
                self._calls[str(item.id)] = {"id": item.id, "call_id": item.call_id, "name": item.name}
            case ev.FunctionCallArgumentsDelta() | ev.CustomToolCallInputDelta() if event.item_id in self._calls:
                yield self._call_delta(event.item_id, event.delta)
            case ev.OutputItemDone(item=item):
                yield from _context_events(item)

    def _initial_events(self) -> Iterator[Event]:
        if self._context.image_urls:
            yield older.ImagesContext(image_urls=[*self._context.image_urls])
        if self._context.rate_limits:
            yield older.RateLimitsUpdated(rate_limits=[*self._context.rate_limits])

    def _call_delta(self, item_id: str, arguments: str) -> Event:
        call: Any = {"type": "tool_call", **self._calls[item_id], "arguments": arguments}
        content = [msgspec.json.encode(call).decode() if self._legacy == "strings" else call]
        return older.ToolCallDelta(
            response=older.ResponseRef(id=self._response_id), delta=older.CallsDelta(content=content)
        )


def _context_events(item: it.OutputItem) -> Iterator[Event]:
    match item:
        case it.Reasoning(encrypted_content=str() as encrypted):
            yield older.EncryptedContext(encrypted_content=encrypted)
        case it.WebSearchCall(action=it.SearchAction(sources=list() as sources)):
            yield older.SourcesContext(sources=sources)


def _add_outputs(event: ev.ItemEvent, later_events: Sequence[Event]) -> Event:
    """Add the outputs of the item, whose done event is emitted together with this event."""
    for later in later_events:
        if isinstance(later, ev.OutputItemDone) and later.output_index == event.output_index:
            item = later.item
            outputs = item.outputs if isinstance(item, it.CodeInterpreterCall) else None
            return older.LegacyCodeCompleted(**_fields(event), outputs=outputs or [])
    return event


def _fields(event: Event) -> dict[str, Any]:
    return {name: value for name, value in asdict(event).items() if value is not UNSET}


def _rename_to(kind: type[Event]) -> Rename:
    """Convert an event to another type with the same fields."""
    return lambda event: kind(**_fields(event))


def _rename_reasoning_part(kind: type[Event]) -> Rename:
    """Convert part events of reasoning only."""
    return lambda event: kind(**_fields(event)) if isinstance(event.part, ReasoningText) else event


_OPEN_RESPONSES: Final[dict[type[Event], Rename]] = {
    ev.ReasoningTextDelta: _rename_to(older.LegacyReasoningDelta),
    ev.ReasoningTextDone: _rename_to(older.LegacyReasoningDone),
}
_RENAMES: Final[dict[ReasoningNames, dict[type[Event], Rename]]] = {
    "openai": {},
    "open-responses": _OPEN_RESPONSES,
    "legacy": {
        **_OPEN_RESPONSES,
        ev.ContentPartAdded: _rename_reasoning_part(older.ReasoningPartAdded),
        ev.ContentPartDone: _rename_reasoning_part(older.ReasoningPartDone),
        ev.ReasoningSummaryPartAdded: _rename_to(older.SummaryAdded),
        ev.ReasoningSummaryTextDelta: _rename_to(older.LegacySummaryDelta),
    },
}

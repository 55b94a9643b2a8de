"""The Response to which the events of a stream fold: what clients know after the last event.

Deltas change nothing: the `done` events carry the complete content.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from antiphon.protocol.types import events as ev
from antiphon.protocol.types.response import Response


def _apply_event(response: Response, event: ev.Event) -> Response:
    """Return the Response after an event."""
    output = [*response.output]
    if type(event) is ev.OutputItemAdded:
        output.append(event.item)
    elif type(event) is ev.OutputItemDone:
        output[event.output_index] = event.item
    else:  # other events that change a Response carry all of it
        return event.response if isinstance(event, ev.ResponseEvent) else response
    return replace(response, output=output)


def fold_events(events: Iterable[ev.Event]) -> Response:
    """Return the Response at the end of a stream, which starts with `response.created`."""
    stream = iter(events)
    first = next(stream)
    assert isinstance(first, ev.Created)
    response = first.response
    for event in stream:
        response = _apply_event(response, event)
    return response

"""What a Response becomes: by an event (`apply`), by all of a stream (`fold`), and at its end (`closing`).

The emitter lets its output grow as `apply` does, without another Response for each item. Deltas change nothing here:
the `done` events carry what they add up to. A Response handed out in an event is never changed afterwards, so an event
can be encoded at any later time.
"""

from collections.abc import Iterable
from typing import Literal

from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.core.entries import Ended, Fault
from antiphon.core.response_messages import output_messages
from antiphon.errors import AntiphonError
from antiphon.protocol import events as ev
from antiphon.protocol.items import OutputItem
from antiphon.protocol.response import IncompleteDetails, Response, ResponseError


class Ending(Struct, frozen=True, kw_only=True):
    """How a response ended: by itself, cut short, by an error, or by someone's wish."""

    status: Literal["completed", "incomplete", "failed", "cancelled"]
    reason: Literal["max_output_tokens", "content_filter", "steered"] | None = None
    error: AntiphonError | None = None
    silent: bool = False  # nothing was to be said


def apply(response: Response, event: ev.Event) -> Response:
    output = [*response.output]
    if type(event) is ev.OutputItemAdded:
        output.append(event.item)
    elif type(event) is ev.OutputItemDone:
        output[event.output_index] = event.item
    else:  # the others that change a Response carry all of it
        return event.response if isinstance(event, ev.ResponseEvent) else response
    return replace(response, output=output)


def fold(events: Iterable[ev.Event]) -> Response:
    """The Response that a stream amounts to; it starts with `response.created`."""
    stream = iter(events)
    first = next(stream)
    assert isinstance(first, ev.Created)
    response = first.response
    for event in stream:
        response = apply(response, event)
    return response


def closing(response: Response, output: list[OutputItem], ended: Ended) -> Response:
    """`output`: all of it. It is the Response's from now on."""
    return replace(
        response,
        output=output,
        status=ended.status,
        completed_at=ended.at if ended.status == "completed" else None,
        incomplete_details=IncompleteDetails(reason=ended.reason) if ended.reason else None,
        error=_error(ended.fault) if ended.fault else None,
        usage=ended.usage,
        output_messages=UNSET if response.input_messages is UNSET else output_messages(output),
    )


def _error(fault: Fault) -> ResponseError:
    return ResponseError(code=fault.code or fault.type, message=fault.message, type=fault.type)

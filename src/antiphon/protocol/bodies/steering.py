"""`response.steer`: user messages for a running response, and the events that report their outcome.

Steering accepts user messages only. A failed submission is returned as received. The events exist only on a WebSocket.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal, TypeGuard

from msgspec import UNSET, Struct, UnsetType

from antiphon.errors import AntiphonError
from antiphon.ids import new_id
from antiphon.limits import Limits
from antiphon.protocol.bodies.websocket import SocketMessage
from antiphon.protocol.decoding.codec import RequestFields, read_create
from antiphon.protocol.types.events import Event
from antiphon.protocol.types.items import InputItem
from antiphon.protocol.types.items import Message as MessageItem


class Steer(Struct, kw_only=True):
    id: str
    previous_response_id: str


class FailedSteer(Struct, kw_only=True):
    """A submission that was not accepted, with its input, so that the client can send it again."""

    id: str | UnsetType = UNSET
    previous_response_id: str
    input: str | list[dict[str, Any]]


class SteerError(Struct, kw_only=True):
    type: Literal["invalid_request_error"] = "invalid_request_error"
    code: str
    message: str


class SteerAccepted(Event, tag="response.steer.accepted", kw_only=True):
    steer: Steer


class SteerPending(Event, tag="response.steer.pending", kw_only=True):
    steer: Steer
    reason: str = "waiting_for_required_input"
    required_input: list[dict[str, Any]]


class SteerFailed(Event, tag="response.steer.failed", kw_only=True):
    steer: FailedSteer
    error: SteerError


SteerEvent = SteerAccepted | SteerPending | SteerFailed


_ALLOWED_FIELDS: Final = frozenset({"previous_response_id", "input"})


class SteerSubmission(Struct, frozen=True, eq=False):
    """Input that is submitted to a running response."""

    id: str
    previous_response_id: str
    raw_input: Any  # the input as received; returned to the client on failure
    items: Sequence[InputItem]
    size: int  # of the message, in bytes


class Unsteerable(Exception):
    """The reason why a submission is rejected."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def read_steer(message: SocketMessage, limits: Limits) -> SteerSubmission:
    raw = message.fields.raw
    previous_response_id, raw_input = raw.get("previous_response_id"), raw.get("input")
    if message.stream_id is not None or raw.keys() - _ALLOWED_FIELDS:
        raise Unsteerable("invalid_input", "response.steer accepts only `previous_response_id` and `input`.")
    if not isinstance(previous_response_id, str) or not raw_input or not isinstance(raw_input, str | list):
        raise Unsteerable("invalid_input", "response.steer needs a `previous_response_id` and an `input`.")
    items = _parse_messages(raw_input, message.size, limits)
    returned_input = raw_input if isinstance(raw_input, str) else [{"type": "message", **item} for item in raw_input]
    return SteerSubmission(new_id("steer"), previous_response_id, returned_input, items, message.size)


def _parse_messages(raw_input: Any, size: int, limits: Limits) -> list[InputItem]:
    try:
        items = read_create(RequestFields({"input": _copy(raw_input)}), size, limits).request.input
    except AntiphonError as error:
        raise Unsteerable("invalid_input", error.message) from None
    if not all(isinstance(item, MessageItem) and item.role == "user" for item in items):
        raise Unsteerable("invalid_input", "Steering accepts only user messages.")
    return items


def _copy(value: Any) -> Any:
    """Copy JSON deeply: decoding normalises in place, and a failed submission is returned as received."""
    if isinstance(value, list):
        return [_copy(entry) for entry in value]
    return {name: _copy(entry) for name, entry in value.items()} if isinstance(value, dict) else value


def make_steer_accepted(steer: SteerSubmission, sequence_number: int) -> SteerAccepted:
    """Make the event. `sequence_number` is that of the last event sent for the response.

    Like a keep-alive, events of steering are not numbered themselves.
    """
    event = SteerAccepted(steer=Steer(id=steer.id, previous_response_id=steer.previous_response_id))
    event.sequence_number = sequence_number
    return event


def make_steer_pending(
    steer: SteerSubmission, required_input: list[dict[str, Any]], sequence_number: int
) -> SteerPending:
    submitted = Steer(id=steer.id, previous_response_id=steer.previous_response_id)
    event = SteerPending(steer=submitted, required_input=required_input)
    event.sequence_number = sequence_number
    return event


def make_steer_failed(steer: SteerSubmission, code: str, message: str, sequence_number: int) -> SteerFailed:
    failed = FailedSteer(id=steer.id, previous_response_id=steer.previous_response_id, input=steer.raw_input)
    event = SteerFailed(steer=failed, error=SteerError(code=code, message=message))
    event.sequence_number = sequence_number
    return event


def make_steer_rejected(message: SocketMessage, error: Unsteerable) -> SteerFailed:
    """Make the failure event of a message that was rejected before it got an id."""
    previous_response_id, raw_input = message.fields.raw.get("previous_response_id"), message.fields.raw.get("input")
    failed = FailedSteer(
        previous_response_id=previous_response_id if isinstance(previous_response_id, str) else "",
        input=raw_input if _is_input(raw_input) else "",
    )
    event = SteerFailed(steer=failed, error=SteerError(code=error.code, message=error.message))
    event.sequence_number = 0
    return event


def _is_input(value: Any) -> TypeGuard[str | list[dict[str, Any]]]:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, dict) for item in value))

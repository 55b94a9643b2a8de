"""`response.steer`: what a user says while a response runs, and the events that tell what becomes of it.

Steering is said with messages of the user alone. What is refused is given back as it came.

Events of steering, which only a WebSocket has.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal, TypeGuard

from msgspec import UNSET, Struct, UnsetType

from antiphon.errors import AntiphonError
from antiphon.ids import new_id
from antiphon.limits import Limits
from antiphon.protocol.bodies.websocket import Message
from antiphon.protocol.decoding.codec import read_create
from antiphon.protocol.types.events import Event
from antiphon.protocol.types.items import InputItem
from antiphon.protocol.types.items import Message as MessageItem


class Steer(Struct, kw_only=True):
    id: str
    previous_response_id: str


class FailedSteer(Struct, kw_only=True):
    """The submission that was not taken, with what it said, so that the client can keep it."""

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


_FIELDS: Final = frozenset({"previous_response_id", "input"})


class Submission(Struct, frozen=True, eq=False):
    """Something that is to be said to a response that runs."""

    id: str
    previous: str
    given: Any  # as it came, and is given back if it cannot be used
    items: Sequence[InputItem]
    size: int  # of the message, in bytes


class Unsteerable(Exception):
    """Why it is refused."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def read_steer(message: Message, limits: Limits) -> Submission:
    raw = message.raw
    previous, given = raw.get("previous_response_id"), raw.get("input")
    if message.stream_id is not None or raw.keys() - _FIELDS:
        raise Unsteerable("invalid_input", "response.steer takes `previous_response_id` and `input`, and no more.")
    if not isinstance(previous, str) or not given or not isinstance(given, str | list):
        raise Unsteerable("invalid_input", "response.steer needs a `previous_response_id` and an `input`.")
    items = _messages(given, message.size, limits)
    said = given if isinstance(given, str) else [{"type": "message", **item} for item in given]
    return Submission(new_id("steer"), previous, said, items, message.size)


def _messages(given: Any, size: int, limits: Limits) -> list[InputItem]:
    try:
        items = read_create({"input": _copied(given)}, size, limits).request.input
    except AntiphonError as error:
        raise Unsteerable("invalid_input", error.message) from None
    if not all(isinstance(item, MessageItem) and item.role == "user" for item in items):
        raise Unsteerable("invalid_input", "Steering takes messages of the user only.")
    return items


def _copied(given: Any) -> Any:
    """Reading brings it into shape where it stands; what is given back is as it came."""
    if isinstance(given, list):
        return [_copied(each) for each in given]
    return {name: _copied(held) for name, held in given.items()} if isinstance(given, dict) else given


def steer_accepted(steer: Submission, number: int) -> SteerAccepted:
    """`number`: of the last event of the response that was told; like a keep-alive this is none of them."""
    event = SteerAccepted(steer=Steer(id=steer.id, previous_response_id=steer.previous))
    event.sequence_number = number
    return event


def steer_pending(steer: Submission, required: list[dict[str, Any]], number: int) -> SteerPending:
    submitted = Steer(id=steer.id, previous_response_id=steer.previous)
    event = SteerPending(steer=submitted, required_input=required)
    event.sequence_number = number
    return event


def steer_failed(steer: Submission, code: str, message: str, number: int) -> SteerFailed:
    failed = FailedSteer(id=steer.id, previous_response_id=steer.previous, input=steer.given)
    event = SteerFailed(steer=failed, error=SteerError(code=code, message=message))
    event.sequence_number = number
    return event


def steer_refused(message: Message, error: Unsteerable) -> SteerFailed:
    """It never got an id."""
    previous, given = message.raw.get("previous_response_id"), message.raw.get("input")
    failed = FailedSteer(
        previous_response_id=previous if isinstance(previous, str) else "",
        input=given if _is_input(given) else "",
    )
    event = SteerFailed(steer=failed, error=SteerError(code=error.code, message=error.message))
    event.sequence_number = 0
    return event


def _is_input(given: Any) -> TypeGuard[str | list[dict[str, Any]]]:
    return isinstance(given, str) or (isinstance(given, list) and all(isinstance(item, dict) for item in given))

"""Messages of a client on a WebSocket, and events that only a WebSocket has: errors with a status, expiry, steering.

A message is one JSON object. `response.create` is the body of POST /responses with `type`, and with `stream_id` for a
named lane. `stream` is ignored, since responses are always streamed, and `background` is rejected. `response.steer`
holds user messages for a running response; a failed submission is returned as received. `response.cancel` names a
running response.
"""

import re
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, Final, Literal, TypeGuard

from msgspec import UNSET, Struct, UnsetType

from antiphon.errors import AntiphonError, InvalidStreamId, InvalidValue, UnknownEventType, UnsupportedParameter
from antiphon.ids import new_id
from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import CREATE_PARTS, DecodedRequest, RequestFields, decode_fields, read_create
from antiphon.protocol.decoding.part_cache import TenantParts
from antiphon.protocol.types.events import ErrorBody, Event
from antiphon.protocol.types.items import InputItem
from antiphon.protocol.types.items import Message as MessageItem

CREATE: Final = "response.create"
STEER: Final = "response.steer"
CANCEL: Final = "response.cancel"

_STREAM_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_MAX_SHOWN_CHARS = 64  # limit for values of the client in error messages


class SocketMessage(Struct, frozen=True):
    """A message whose type and lane are parsed; `fields` holds the other fields."""

    kind: str
    stream_id: str | None
    fields: RequestFields
    size: int


class SocketError(Struct, kw_only=True, tag_field="type", tag="error"):
    """An error with its HTTP status: Codex ignores errors without one."""

    status: int
    error: ErrorBody
    retry_after: float | UnsetType = UNSET


class ConnectionExpiring(Struct, kw_only=True, tag_field="type", tag="connection_expiring"):
    """Sent a configured time before the connection is closed."""

    expires_at: int


def read_message(body: bytes, limits: Limits) -> SocketMessage:
    """Parse the type and the lane. Errors raised here belong to no lane."""
    fields = decode_fields(body, limits, CREATE_PARTS)
    raw = fields.raw
    kind, stream_id = raw.pop("type", None), raw.pop("stream_id", None)
    if kind not in (CREATE, STEER, CANCEL):
        raise UnknownEventType(f"Unsupported event {_describe_type(kind)}. Send {CREATE}.", param="type")
    if stream_id is not None and not (type(stream_id) is str and _STREAM_ID.fullmatch(stream_id)):
        raise InvalidStreamId(
            "`stream_id` must have 1 to 256 characters of A-Z, a-z, 0-9, '_', '.' and '-'.", param="stream_id"
        )
    return SocketMessage(kind, stream_id, fields, len(body))


def read_socket_create(message: SocketMessage, limits: Limits, cache: TenantParts | None = None) -> DecodedRequest:
    decoded = read_create(message.fields, message.size, limits, cache)
    if decoded.request.background:
        raise UnsupportedParameter("A WebSocket has no background responses: use POST.", param="background")
    if (decoded.request.n or 1) > 1:
        raise InvalidValue("Only one answer can be streamed: send 'n': 1, or use POST.", param="n")
    decoded.request.stream = True
    return decoded


def read_cancel(message: SocketMessage) -> str:
    """Return the id of the response. Raises InvalidValue."""
    raw = message.fields.raw
    response_id = raw.get("response_id")
    if not isinstance(response_id, str) or len(raw) > 1:
        raise InvalidValue("response.cancel needs the `response_id` of a running response alone.", param="response_id")
    return response_id


def to_socket_error(error: AntiphonError) -> SocketError:
    body = ErrorBody(type=error.type, code=error.code, message=error.message, param=error.param)
    return SocketError(
        status=error.status, error=body, retry_after=UNSET if error.retry_after is None else error.retry_after
    )


def _describe_type(kind: object) -> str:
    return repr(kind[:_MAX_SHOWN_CHARS]) if type(kind) is str else "without a `type`"


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
    try:  # a copy: decoding normalises in place, and a failed submission is returned as received
        items = read_create(RequestFields({"input": deepcopy(raw_input)}), size, limits).request.input
    except AntiphonError as error:
        raise Unsteerable("invalid_input", error.message) from None
    if not all(isinstance(item, MessageItem) and item.role == "user" for item in items):
        raise Unsteerable("invalid_input", "Steering accepts only user messages.")
    return items


def make_steer_accepted(steer: SteerSubmission, sequence_number: int) -> SteerAccepted:
    """Make the event. It repeats the last `sequence_number` of the response, as keep-alives do."""
    submitted = Steer(id=steer.id, previous_response_id=steer.previous_response_id)
    return SteerAccepted(steer=submitted, sequence_number=sequence_number)


def make_steer_pending(
    steer: SteerSubmission, required_input: list[dict[str, Any]], sequence_number: int
) -> SteerPending:
    submitted = Steer(id=steer.id, previous_response_id=steer.previous_response_id)
    return SteerPending(steer=submitted, required_input=required_input, sequence_number=sequence_number)


def make_steer_failed(steer: SteerSubmission, code: str, message: str, sequence_number: int) -> SteerFailed:
    failed = FailedSteer(id=steer.id, previous_response_id=steer.previous_response_id, input=steer.raw_input)
    return SteerFailed(steer=failed, error=SteerError(code=code, message=message), sequence_number=sequence_number)


def make_steer_rejected(message: SocketMessage, error: Unsteerable) -> SteerFailed:
    """Make the failure event of a message that was rejected before it got an id."""
    previous_response_id, raw_input = message.fields.raw.get("previous_response_id"), message.fields.raw.get("input")
    failed = FailedSteer(
        previous_response_id=previous_response_id if isinstance(previous_response_id, str) else "",
        input=raw_input if _is_input(raw_input) else "",
    )
    return SteerFailed(steer=failed, error=SteerError(code=error.code, message=error.message), sequence_number=0)


def _is_input(value: Any) -> TypeGuard[str | list[dict[str, Any]]]:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, dict) for item in value))

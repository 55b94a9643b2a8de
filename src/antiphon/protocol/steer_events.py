"""Events of steering, which only a WebSocket has."""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from antiphon.protocol.events import Event


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

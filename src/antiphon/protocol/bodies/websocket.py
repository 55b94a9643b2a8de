"""Messages of a client on a WebSocket, and events that only a WebSocket has: errors with a status, and its expiry.

A message is one JSON object. `response.create` is the body of POST /responses with `type`, and with `stream_id` for a
named lane. `stream` is ignored, since responses are always streamed, and `background` is rejected.
"""

import re
from typing import Final

from msgspec import UNSET, Struct, UnsetType

from antiphon.errors import AntiphonError, InvalidStreamId, InvalidValue, UnknownEventType, UnsupportedParameter
from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import CREATE_PARTS, DecodedRequest, RequestFields, decode_fields, read_create
from antiphon.protocol.decoding.part_cache import TenantParts
from antiphon.protocol.types.events import ErrorBody

CREATE: Final = "response.create"
STEER: Final = "response.steer"

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
    if kind not in (CREATE, STEER):
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


def to_socket_error(error: AntiphonError) -> SocketError:
    body = ErrorBody(type=error.type, code=error.code, message=error.message, param=error.param)
    return SocketError(
        status=error.status,
        error=body,
        retry_after=UNSET if error.retry_after is None else error.retry_after,
    )


def _describe_type(kind: object) -> str:
    return repr(kind[:_MAX_SHOWN_CHARS]) if type(kind) is str else "without a `type`"

"""What a client sends over a WebSocket, and what only a WebSocket tells: errors with their status, and its end.

A message is one JSON object. `response.create` is the body of POST /responses with `type`, and `stream_id` if it is for
a named lane; `stream` says nothing here, and nothing runs in the background.
"""

import re
from typing import Final

from msgspec import UNSET, Struct, UnsetType

from antiphon.errors import AntiphonError, InvalidStreamId, InvalidValue, UnknownEventType, UnsupportedParameter
from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import Decoded, decode_object, read_create
from antiphon.protocol.types.events import ErrorBody
from antiphon.protocol.types.tools import Json

CREATE: Final = "response.create"
STEER: Final = "response.steer"

_STREAM_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_SHOWN = 64  # characters of what was sent


class Message(Struct, frozen=True):
    """As far as it is known whom it is for."""

    kind: str
    stream_id: str | None
    raw: Json
    size: int


class SocketError(Struct, kw_only=True, tag_field="type", tag="error"):
    """Codex takes no notice of one without a status."""

    status: int
    error: ErrorBody
    retry_after: float | UnsetType = UNSET


class ConnectionExpiring(Struct, kw_only=True, tag_field="type", tag="connection_expiring"):
    """Sent some time before the connection is closed."""

    expires_at: int


def read_message(body: bytes, limits: Limits) -> Message:
    """Raises what is wrong with it before it is known for which lane it was."""
    raw = decode_object(body, limits)
    kind, lane = raw.pop("type", None), raw.pop("stream_id", None)
    if kind not in (CREATE, STEER):
        raise UnknownEventType(f"There is no event {_shown(kind)}. Send {CREATE}.", param="type")
    if lane is not None and not (type(lane) is str and _STREAM_ID.fullmatch(lane)):
        raise InvalidStreamId(
            "`stream_id` has 1 to 256 characters of A-Z, a-z, 0-9, '_', '.' and '-'.", param="stream_id"
        )
    return Message(kind, lane, raw, len(body))


def read_socket_create(message: Message, limits: Limits) -> Decoded:
    decoded = read_create(message.raw, message.size, limits)
    if decoded.request.background:
        raise UnsupportedParameter("Nothing runs in the background of a WebSocket: use POST.", param="background")
    if (decoded.request.n or 1) > 1:
        raise InvalidValue("Only one answer can be streamed: send 'n': 1, or use POST.", param="n")
    decoded.request.stream = True
    return decoded


def socket_error(error: AntiphonError) -> SocketError:
    body = ErrorBody(type=error.type, code=error.code, message=error.message, param=error.param)
    return SocketError(
        status=error.status,
        error=body,
        retry_after=UNSET if error.retry_after is None else error.retry_after,
    )


def _shown(kind: object) -> str:
    return repr(kind[:_SHOWN]) if type(kind) is str else "without a `type`"

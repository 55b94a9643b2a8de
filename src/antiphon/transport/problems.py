"""The one table from an error to what a client sees of it: HTTP body and headers. Inside of a stream the
emitter tells it as an event.

An unknown exception becomes a neutral sentence; what it says of itself goes to the log alone.
"""

import math

import msgspec
from msgspec import Struct

from antiphon.errors import AntiphonError, Internal, MethodNotAllowed, NotAuthenticated, UpgradeRequired
from antiphon.protocol.events import ErrorBody
from antiphon.transport.http import Header

NEUTRAL = "The server had an error while processing your request. Give its operator the request id {}."

_encode = msgspec.json.Encoder().encode


class Problem(Struct, kw_only=True):
    """The body of every error: `{"error": {"message", "type", "param", "code"}}`."""

    error: ErrorBody


def as_client_error(exc: BaseException, request_id: str) -> AntiphonError:
    return exc if isinstance(exc, AntiphonError) else Internal(NEUTRAL.format(request_id))


def body(error: AntiphonError) -> bytes:
    return _encode(Problem(error=_error_body(error)))


def headers(error: AntiphonError) -> list[Header]:
    match error:
        case MethodNotAllowed():
            return [(b"allow", error.allow.encode())]
        case NotAuthenticated():
            return [(b"www-authenticate", b"Bearer")]
        case UpgradeRequired():
            return [(b"upgrade", b"HTTP/1.1"), (b"connection", b"close")]
    if error.retry_after is None:
        return []
    seconds = max(error.retry_after, 0.001)
    return [
        (b"retry-after", b"%d" % max(1, math.ceil(seconds))),
        (b"retry-after-ms", b"%d" % math.ceil(seconds * 1000)),
    ]


def _error_body(error: AntiphonError) -> ErrorBody:
    return ErrorBody(message=error.message, type=error.type, param=error.param, code=error.code)

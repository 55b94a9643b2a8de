"""The one table from an error to what a client sees of it: HTTP body and headers. Inside of a stream the
emitter tells it as an event. On the paths of Anthropic's API it has the shape of that API.

An unknown exception becomes a neutral sentence; what it says of itself goes to the log alone.
"""

import math

import msgspec
from msgspec import Struct

from antiphon.errors import AntiphonError, Internal, MethodNotAllowed, NotAuthenticated, UpgradeRequired
from antiphon.protocol.types.anthropic.events import problem
from antiphon.protocol.types.events import ErrorBody
from antiphon.transport.http.channel import CLOSE
from antiphon.transport.http.request import Header, Request

NEUTRAL = "The server had an error while processing your request. Give its operator the request id {}."

REQUEST_ID = b"request-id"  # what clients of Anthropic's API read

_MESSAGES = (b"/messages", b"/messages/count_tokens")
_encode = msgspec.json.Encoder().encode


class Problem(Struct, kw_only=True):
    """The body of every error: `{"error": {"message", "type", "param", "code"}}`."""

    error: ErrorBody


def as_client_error(exc: BaseException, request_id: str) -> AntiphonError:
    return exc if isinstance(exc, AntiphonError) else Internal(NEUTRAL.format(request_id))


def body(error: AntiphonError, request: Request | None = None) -> bytes:
    """`request`: the one that it answers, if it became one."""
    if request is not None and _of_messages(request):
        return _encode(problem(error, request.id))
    return _encode(Problem(error=_error_body(error)))


def headers(error: AntiphonError, request: Request | None = None) -> list[Header]:
    named = request is not None and _of_messages(request) and REQUEST_ID not in dict(request.reply_headers)
    return [*([(REQUEST_ID, request.id.encode())] if request and named else []), *_headers(error)]


def _of_messages(request: Request) -> bool:
    return request.path.endswith(_MESSAGES) and request.path.removeprefix(b"/v1").removeprefix(b"/v3") in _MESSAGES


def _headers(error: AntiphonError) -> list[Header]:
    match error:
        case MethodNotAllowed():
            return [(b"allow", error.allow.encode())]
        case NotAuthenticated():
            return [(b"www-authenticate", b"Bearer")]
        case UpgradeRequired():
            return [(b"upgrade", b"HTTP/1.1"), CLOSE]
    if error.retry_after is None:
        return []
    seconds = max(error.retry_after, 0.001)
    return [
        (b"retry-after", b"%d" % max(1, math.ceil(seconds))),
        (b"retry-after-ms", b"%d" % math.ceil(seconds * 1000)),
    ]


def _error_body(error: AntiphonError) -> ErrorBody:
    return ErrorBody(message=error.message, type=error.type, param=error.param, code=error.code)

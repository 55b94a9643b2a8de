"""Maps an error to its HTTP body and headers. Inside a stream the emitter sends it as an event instead.

On the paths of Anthropic's API, errors have the format of that API. An unknown exception becomes a neutral sentence;
its details only go to the log.
"""

import math

import msgspec
from msgspec import Struct

from antiphon import errors
from antiphon.ids import new_id
from antiphon.protocol.types.anthropic.events import to_problem
from antiphon.protocol.types.events import ErrorBody
from antiphon.transport.http.channel import CLOSE, Header
from antiphon.transport.http.request import JSON, Request

INTERNAL_MESSAGE = "The server had an error while processing your request. Give its operator the request id {}."

REQUEST_ID = b"request-id"  # the header that clients of Anthropic's API read

_REFUSALS: dict[int, type[errors.AntiphonError]] = {
    kind.status: kind for kind in (errors.TooSlow, errors.HeadersTooLarge, errors.Internal)
}
_ANTHROPIC_PATHS = (b"/messages", b"/messages/count_tokens")
_encode = msgspec.json.Encoder().encode


class Problem(Struct, kw_only=True):
    """The body of every error: `{"error": {"message", "type", "param", "code"}}`."""

    error: ErrorBody


def to_client_error(exc: BaseException, request_id: str) -> errors.AntiphonError:
    return exc if isinstance(exc, errors.AntiphonError) else errors.Internal(INTERNAL_MESSAGE.format(request_id))


def render_body(error: errors.AntiphonError, request: Request | None = None) -> bytes:
    """Render the body. `request`: the request that it answers, if there is one."""
    if request is not None and _is_anthropic(request):
        return _encode(to_problem(error, request.id))
    body = ErrorBody(message=error.message, type=error.type, param=error.param, code=error.code)
    return _encode(Problem(error=body))


def render_headers(error: errors.AntiphonError, request: Request | None = None) -> list[Header]:
    needs_id = request is not None and _is_anthropic(request) and REQUEST_ID not in dict(request.reply_headers)
    return [*([(REQUEST_ID, request.id.encode())] if request and needs_id else []), *_error_headers(error)]


def render_refusal(status: int, message: str) -> tuple[list[Header], bytes]:
    """Render the headers and the body for a request that the server refused, and that never became a Request."""
    error = _REFUSALS.get(status, errors.BadRequest)(message)
    request_id = (b"x-request-id", new_id("req").encode())
    return [JSON, request_id, (b"openai-processing-ms", b"0")], render_body(error)


def _is_anthropic(request: Request) -> bool:
    return (
        request.path.endswith(_ANTHROPIC_PATHS)
        and request.path.removeprefix(b"/v1").removeprefix(b"/v3") in _ANTHROPIC_PATHS
    )


def _error_headers(error: errors.AntiphonError) -> list[Header]:
    match error:
        case errors.MethodNotAllowed():
            return [(b"allow", error.allow.encode())]
        case errors.NotAuthenticated():
            return [(b"www-authenticate", b"Bearer")]
        case errors.UpgradeRequired():
            return [(b"upgrade", b"HTTP/1.1"), CLOSE]
    if error.retry_after is None:
        return []
    seconds = max(error.retry_after, 0.001)
    return [
        (b"retry-after", b"%d" % max(1, math.ceil(seconds))),
        (b"retry-after-ms", b"%d" % math.ceil(seconds * 1000)),
    ]

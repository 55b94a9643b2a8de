"""What Anthropic's API calls an error: the one table from a status to its type there.

An error has no `param` in that API, so its sentence begins with the field, unless it names it anyway.
"""

from typing import Final

from msgspec import UNSET

from antiphon.errors import AntiphonError
from antiphon.protocol.messages_events import MessageError, MessageProblem

TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}  # any other is an invalid_request_error


def problem(error: AntiphonError, request_id: str) -> MessageProblem:
    kind = TYPES.get(error.status, "invalid_request_error")
    return MessageProblem(error=MessageError(type=kind, message=_sentence(error)), request_id=request_id or UNSET)


def _sentence(error: AntiphonError) -> str:
    if error.param is None or error.param in error.message:
        return error.message
    return f"{error.param}: {error.message}"

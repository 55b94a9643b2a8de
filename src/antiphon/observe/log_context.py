"""The request that is being processed, as a context variable, for log lines and the access log.

Tasks started for a request inherit its context. It is filled in as values become available; nothing in it comes from
clients except the identifiers of their end users.
"""

from contextvars import ContextVar

from msgspec import Struct


class LogContext(Struct):
    """Identifiers and token counts of the current request."""

    request_id: str = ""
    response_id: str = ""
    connection_id: str = ""  # of a WebSocket
    trace_id: str = ""  # in hexadecimal digits
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    user_fields: dict[str, str] = {}  # end user identifiers from the request, by field name

    def get_ids(self) -> dict[str, str]:
        """Return the ids that are set, by log field name."""
        ids = {
            "request_id": self.request_id,
            "response_id": self.response_id,
            "connection_id": self.connection_id,
            "trace_id": self.trace_id,
        }
        return {name: value for name, value in ids.items() if value}


LOG_CONTEXT: ContextVar[LogContext | None] = ContextVar("about", default=None)


def set_response_id(response_id: str) -> None:
    """Set the response that the current context works on."""
    context = LOG_CONTEXT.get()
    if context is None:
        LOG_CONTEXT.set(LogContext(response_id=response_id))
    else:
        context.response_id = response_id

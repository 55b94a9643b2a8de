"""A span and an access log line for each request, where they are enabled.

The trace of a client (W3C Trace Context, header `traceparent`) is continued, and propagated to engines and tools even
if nothing is traced here.
"""

from time import perf_counter, time

from antiphon.observe.logs import LOG_CONTEXT, AccessLog, AccessLogEntry, LogContext
from antiphon.observe.spans import CURRENT_SPAN, ActiveSpan, AttributeValue, Tracer, parse_traceparent
from antiphon.transport.http.channel import WEBSOCKET
from antiphon.transport.http.request import Request

TRACEPARENT = b"traceparent"
_SERVER_ERROR = 500


class RequestTracing:
    """Traces requests, and writes them to the access log. Either may be off."""

    def __init__(self, tracer: Tracer | None = None, access_log: AccessLog | None = None) -> None:
        self._tracer = tracer
        self._access_log = access_log

    def start_request(self, request: Request) -> ActiveSpan | None:
        """Read the client's trace and start the span of a request. Of a WebSocket, each message has one."""
        log_context, parent = request.log_context, None
        if TRACEPARENT in request.headers:
            header = request.get_single_header(TRACEPARENT) or b""
            parent = parse_traceparent(header, request.headers.get(b"tracestate", b""))
        CURRENT_SPAN.set(parent)
        if parent is not None:
            log_context.trace_id = f"{parent.trace_id:032x}"
        if self._tracer is None or request.method == WEBSOCKET:
            return None
        return self.start_span(request, request.method, log_context)

    def start_span(self, request: Request, method: str, log_context: LogContext) -> ActiveSpan | None:
        """Start the span of a request, or of one message of a WebSocket."""
        if self._tracer is None:
            return None
        attributes: dict[str, AttributeValue] = {"http.request.method": method, "antiphon.request.id": request.id}
        span = ActiveSpan(self._tracer, method, "server", attributes).__enter__()
        log_context.trace_id = f"{span.span.context.trace_id:032x}"
        return span

    def finish(
        self, request: Request, route: str, status: int, span: ActiveSpan | None, started_at: float | None = None
    ) -> None:
        """End the span and write the access log line.

        `started_at`: of a message, by the performance counter; None for a request as a whole.
        """
        log_context = LOG_CONTEXT.get() or request.log_context
        if span is not None:
            attributes = span.span.attributes
            span.span.name = f"{request.method} {route}" if request.method != WEBSOCKET else route
            attributes["http.route"] = route
            attributes["http.response.status_code"] = status
            if status >= _SERVER_ERROR:
                attributes["error.type"] = span.span.error = str(status)
            span.__exit__(None, None, None)
        if self._access_log is not None:
            seconds = perf_counter() - (request.began if started_at is None else started_at)
            self._access_log.record(_make_log_line(request, route, status, log_context, seconds))
        if started_at is None:
            CURRENT_SPAN.set(None)


PROPAGATE_ONLY = RequestTracing()  # without spans and log; a client's trace is still propagated


def _make_log_line(
    request: Request, route: str, status: int, log_context: LogContext, seconds: float
) -> AccessLogEntry:
    principal = getattr(request, "principal", None)  # missing if the request was rejected before authentication
    return {
        "time": time() - seconds,
        "request_id": request.id,
        "method": request.method,
        "route": route,  # the route template, never the path
        "status": status,
        "seconds": seconds,
        "tenant": "" if principal is None else principal.tenant,
        "key": "" if principal is None else principal.key,
        "response_id": log_context.response_id,
        "connection_id": log_context.connection_id,
        "trace_id": log_context.trace_id,
        "input_tokens": log_context.input_tokens,
        "cached_tokens": log_context.cached_tokens,
        "output_tokens": log_context.output_tokens,
        **log_context.user_fields,
    }

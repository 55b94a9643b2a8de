"""Requests as those see them who watch the server: a span of each, and a line in the access log. Off, there is neither.

A client's own trace is gone on with, and handed on by whoever asks others for it, also where nothing is traced here.
"""

from time import perf_counter, time

from antiphon.observe.access_log import AccessLog, Line
from antiphon.observe.log_context import ABOUT, About
from antiphon.observe.spans import CURRENT, Tracer, Value, Watched, read_traceparent
from antiphon.transport.http.request import WEBSOCKET, Request

TRACEPARENT = b"traceparent"
_FAULT = 500


class Watching:
    def __init__(self, tracer: Tracer | None = None, access_log: AccessLog | None = None) -> None:
        self._tracer = tracer
        self._access_log = access_log

    def begin(self, request: Request) -> Watched | None:
        """A WebSocket has no span: what is asked of it has."""
        about, parent = request.about, None
        if TRACEPARENT in request.headers:
            given = request.header_once(TRACEPARENT) or b""
            parent = read_traceparent(given, request.headers.get(b"tracestate", b""))
        CURRENT.set(parent)
        if parent is not None:
            about.trace = f"{parent.trace:032x}"
        if self._tracer is None or request.method == WEBSOCKET:
            return None
        return self.message(request, request.method, about)

    def message(self, request: Request, method: str, about: About) -> Watched | None:
        """One of several things that are asked by one request, or its own."""
        if self._tracer is None:
            return None
        named: dict[str, Value] = {"http.request.method": method, "antiphon.request.id": request.id}
        span = Watched(self._tracer, method, "server", named).__enter__()
        about.trace = f"{span.span.origin.trace:032x}"
        return span

    def end(self, request: Request, route: str, status: int, span: Watched | None, began: float | None = None) -> None:
        """`began`: by the performance counter; None: with the request, of which this is the end."""
        about = ABOUT.get() or request.about
        if span is not None:
            attributes = span.span.attributes
            span.span.name = f"{request.method} {route}" if request.method != WEBSOCKET else route
            attributes["http.route"] = route
            attributes["http.response.status_code"] = status
            if status >= _FAULT:
                attributes["error.type"] = span.span.error = str(status)
            span.__exit__(None, None, None)
        if self._access_log is not None:
            seconds = perf_counter() - (request.began if began is None else began)
            self._access_log.note(_line(request, route, status, about, seconds))
        if began is None:
            CURRENT.set(None)


UNWATCHED = Watching()  # a trace of a client's is handed on all the same


def _line(request: Request, route: str, status: int, about: About, seconds: float) -> Line:
    principal = getattr(request, "principal", None)  # of one that was refused nobody knows whose it is
    return Line(
        time=time() - seconds,
        request_id=request.id,
        method=request.method,
        route=route,
        status=status,
        seconds=seconds,
        tenant="" if principal is None else principal.tenant,
        key="" if principal is None else principal.key,
        response_id=about.response,
        connection_id=about.connection,
        trace_id=about.trace,
        input_tokens=about.input_tokens,
        cached_tokens=about.cached_tokens,
        output_tokens=about.output_tokens,
        **about.users,
    )

"""An OTLP trace collector for tests: an HTTP server in a thread that decodes requests with the official protobuf
types.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from msgspec import Struct
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

_SECONDS = 60.0


class CollectedSpan(Struct, frozen=True, kw_only=True):
    """A received span."""

    name: str
    kind: str
    trace: str
    id: str
    parent: str
    attributes: dict[str, Any]
    seconds: float
    failed: bool
    service: str


class Collector:
    """The received spans, request bodies and headers; `status` is the HTTP status of its replies."""

    def __init__(self) -> None:
        self.url = ""
        self.status = 200
        self.spans: list[CollectedSpan] = []
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.unblocked = threading.Event()  # while cleared, every request blocks
        self.unblocked.set()
        self._changed = threading.Condition()

    def receive(self, body: bytes, headers: dict[str, str]) -> None:
        with self._changed:
            self.bodies.append(body)
            self.headers.append(headers)
            self.spans += _parse_spans(body)
            self._changed.notify_all()

    def wait_for(self, *names: str) -> dict[str, CollectedSpan]:
        """Wait until spans with all these names have arrived; return the last span of each name."""
        with self._changed:
            assert self._changed.wait_for(lambda: {*names} <= {span.name for span in self.spans}, _SECONDS), [
                span.name for span in self.spans
            ]
            return {span.name: span for span in self.spans}


@contextmanager
def run_collector() -> Iterator[Collector]:
    """Run a collector on a loopback port."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.unblocked.wait(_SECONDS)
            if collector.status == 200:
                collector.receive(body, dict(self.headers))
            self.send_response(collector.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Suppress the request log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        collector.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield collector
        finally:
            collector.unblocked.set()
            server.shutdown()
            thread.join()


def _parse_spans(body: bytes) -> Iterator[CollectedSpan]:
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        service = _to_dict(resource.resource.attributes).get("service.name", "")
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield CollectedSpan(
                    name=span.name,
                    kind=span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
                    trace=span.trace_id.hex(),
                    id=span.span_id.hex(),
                    parent=span.parent_span_id.hex(),
                    attributes=_to_dict(span.attributes),
                    seconds=(span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                    failed=span.status.code == 2,
                    service=str(service),
                )


def _to_dict(attributes: Any) -> dict[str, Any]:
    return {pair.key: _to_python(pair.value) for pair in attributes}


def _to_python(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_to_python(one) for one in value.array_value.values]
    return getattr(value, kind)

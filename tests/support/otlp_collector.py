"""A collector of traces for tests: a plain HTTP server in a thread, which reads OTLP as it is defined."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from msgspec import Struct
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

_SECONDS = 60.0


class Seen(Struct, frozen=True, kw_only=True):
    """A span, as it came."""

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
    def __init__(self) -> None:
        self.url = ""
        self.status = 200
        self.spans: list[Seen] = []
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.answers = threading.Event()  # cleared: it keeps everybody waiting
        self.answers.set()
        self._news = threading.Condition()

    def take(self, body: bytes, headers: dict[str, str]) -> None:
        with self._news:
            self.bodies.append(body)
            self.headers.append(headers)
            self.spans += _spans(body)
            self._news.notify_all()

    def wait_for(self, *names: str) -> dict[str, Seen]:
        """Until there are spans of these names; the last of each."""
        with self._news:
            assert self._news.wait_for(lambda: {*names} <= {span.name for span in self.spans}, _SECONDS), [
                span.name for span in self.spans
            ]
            return {span.name: span for span in self.spans}


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Answering(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.answers.wait(_SECONDS)
            if collector.status == 200:
                collector.take(body, dict(self.headers))
            self.send_response(collector.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        server.daemon_threads = True
        collector.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield collector
        finally:
            collector.answers.set()
            server.shutdown()
            thread.join()


def _spans(body: bytes) -> Iterator[Seen]:
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        service = _pairs(resource.resource.attributes).get("service.name", "")
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Seen(
                    name=span.name,
                    kind=span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
                    trace=span.trace_id.hex(),
                    id=span.span_id.hex(),
                    parent=span.parent_span_id.hex(),
                    attributes=_pairs(span.attributes),
                    seconds=(span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                    failed=span.status.code == 2,
                    service=str(service),
                )


def _pairs(attributes: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind)

"""Spans go out to an OpenTelemetry collector, by OTLP over HTTP, from a thread of the SDK's.

Loaded when --otlp-endpoint says where to. What cannot be sent is dropped and counted; requests never wait for it, nor
hear of it. Sampler, service name, resource, headers and queue are as the standard OTEL_* variables say.
"""

import logging
import threading
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags, TraceState, set_span_in_context
from opentelemetry.trace.status import Status, StatusCode

from antiphon.observe.spans import Origin, Span

log = logging.getLogger(__name__)

_KINDS = {"server": SpanKind.SERVER, "client": SpanKind.CLIENT, "internal": SpanKind.INTERNAL}
_SENT, _FAILED = "sent", "failed"

# They tell of each failure at length, with what the collector says; we do so once.
logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)


class OtlpTracer:
    def __init__(self, endpoint: str, content: bool = False) -> None:
        """`endpoint`: the whole URL that traces are sent to."""
        self.content = content
        self.counts: Counter[str] = Counter()  # of spans, by what came of them
        provider = TracerProvider(resource=_described(), shutdown_on_exit=False)
        self._resource, self._sampler = provider.resource, provider.sampler
        self._scope = InstrumentationScope("antiphon", version("antiphon"))
        self._batches = BatchSpanProcessor(_Counted(OTLPSpanExporter(endpoint), self.counts))

    def samples(self, trace: int, name: str, parent: Origin | None) -> bool:
        above = None if parent is None else set_span_in_context(NonRecordingSpan(_context(parent, remote=True)))
        return self._sampler.should_sample(above, trace, name).decision is Decision.RECORD_AND_SAMPLE

    def export(self, span: Span) -> None:
        self._batches.on_end(
            ReadableSpan(
                span.name,
                context=_context(span.origin),
                parent=None if span.parent is None else _context(span.parent),
                resource=self._resource,
                attributes=span.attributes,
                kind=_KINDS[span.kind],
                status=Status(StatusCode.ERROR, span.error) if span.error else Status(),
                start_time=span.began,
                end_time=span.ended,
                instrumentation_scope=self._scope,
            )
        )

    def close(self, seconds: float) -> None:
        """Send what is left, within that time. To be called in a thread."""
        closing = threading.Thread(target=self._batches.shutdown, name="tracing-end", daemon=True)
        closing.start()
        closing.join(seconds)


class _Counted(SpanExporter):
    """Runs in the SDK's thread. Says once that the collector does not take what it gets, and once that it does."""

    def __init__(self, inner: SpanExporter, counts: Counter[str]) -> None:
        self._inner = inner
        self._counts = counts
        self._well = True

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._inner.export(spans)
        well = result is SpanExportResult.SUCCESS
        self._counts[_SENT if well else _FAILED] += len(spans)
        if well != self._well:
            log.warning("Traces reach their collector again." if well else "Traces do not reach their collector.")
        self._well = well
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)


def _described() -> Resource:
    """As the operator's variables say; who is not named is ours."""
    told = Resource.create()
    unnamed = str(told.attributes[SERVICE_NAME]).startswith("unknown_service")
    ours = Resource({SERVICE_VERSION: version("antiphon"), **({SERVICE_NAME: "antiphon"} if unnamed else {})})
    return told.merge(ours)


def _context(origin: Origin, remote: bool = False) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if origin.sampled else TraceFlags.DEFAULT)
    state = TraceState.from_header([origin.state]) if origin.state else None
    return SpanContext(origin.trace, origin.span, remote, flags, state)

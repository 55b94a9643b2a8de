"""Exports spans to an OpenTelemetry collector, as OTLP over HTTP, from a thread of the SDK.

Loaded only with --otlp-endpoint. Spans that cannot be sent are dropped and counted; requests never wait for the export
and never fail because of it. Sampler, service name, resource, headers and queue follow the standard OTEL_* variables.
"""

import logging
import threading
from collections import Counter
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags, TraceState, set_span_in_context
from opentelemetry.trace.status import Status, StatusCode

from antiphon.observe.spans import Span, TraceContext
from antiphon.version import VERSION

log = logging.getLogger(__name__)

_KINDS = {"server": SpanKind.SERVER, "client": SpanKind.CLIENT, "internal": SpanKind.INTERNAL}
_SENT, _FAILED = "sent", "failed"

# The SDK logs each failure at length, with the collector's response; `_CountingExporter` logs an outage once.
logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)


class OtlpTracer:
    def __init__(self, endpoint: str, content: bool = False) -> None:
        """`endpoint`: the full URL that traces are sent to."""
        self.content = content
        self.counts: Counter[str] = Counter()  # spans by outcome
        provider = TracerProvider(resource=_make_resource(), shutdown_on_exit=False)
        self._resource, self._sampler = provider.resource, provider.sampler
        self._scope = InstrumentationScope("antiphon", VERSION)
        self._batches = BatchSpanProcessor(_CountingExporter(OTLPSpanExporter(endpoint), self.counts))

    def should_sample(self, trace: int, name: str, parent: TraceContext | None) -> bool:
        parent_context = (
            None if parent is None else set_span_in_context(NonRecordingSpan(_to_span_context(parent, remote=True)))
        )
        return self._sampler.should_sample(parent_context, trace, name).decision is Decision.RECORD_AND_SAMPLE

    def export(self, span: Span) -> None:
        self._batches.on_end(
            ReadableSpan(
                span.name,
                context=_to_span_context(span.context),
                parent=None if span.parent is None else _to_span_context(span.parent),
                resource=self._resource,
                attributes=span.attributes,
                kind=_KINDS[span.kind],
                status=Status(StatusCode.ERROR, span.error) if span.error else Status(),
                start_time=span.started_ns,
                end_time=span.ended_ns,
                instrumentation_scope=self._scope,
            )
        )

    def close(self, seconds: float) -> None:
        """Send the remaining spans within `seconds`. Blocks, so call it in a thread."""
        closing = threading.Thread(target=self._batches.shutdown, name="tracing-end", daemon=True)
        closing.start()
        closing.join(seconds)


class _CountingExporter(SpanExporter):
    """Counts exported spans, in the SDK's thread; logs once when the collector fails and once when it recovers."""

    def __init__(self, inner: SpanExporter, counts: Counter[str]) -> None:
        self._inner = inner
        self._counts = counts
        self._healthy = True

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._inner.export(spans)
        healthy = result is SpanExportResult.SUCCESS
        self._counts[_SENT if healthy else _FAILED] += len(spans)
        if healthy != self._healthy:
            log.warning(
                "Traces reach the collector again."
                if healthy
                else "Traces do not reach the collector; spans are dropped."
            )
        self._healthy = healthy
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)


def _make_resource() -> Resource:
    """Return the resource from the OTEL_* variables, with default name and version of the service."""
    configured = Resource.create()
    unnamed = str(configured.attributes[SERVICE_NAME]).startswith("unknown_service")
    defaults = Resource({SERVICE_VERSION: VERSION, **({SERVICE_NAME: "antiphon"} if unnamed else {})})
    return configured.merge(defaults)


def _to_span_context(context: TraceContext, remote: bool = False) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if context.sampled else TraceFlags.DEFAULT)
    state = TraceState.from_header([context.state]) if context.state else None
    return SpanContext(context.trace_id, context.span_id, remote, flags, state)

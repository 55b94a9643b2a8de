"""Observability according to the settings: metrics of the server's parts, traces, and the access log."""

import asyncio
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from typing import Protocol

from msgspec import Struct

from antiphon import child_process
from antiphon.agent.run_tracer import RunTracer
from antiphon.config import Config
from antiphon.config.areas.observability import traces_url
from antiphon.egress import EgressClient
from antiphon.errors import StartupError
from antiphon.observe import Metrics, gauges
from antiphon.observe.access_log import AccessLog
from antiphon.observe.spans import Tracer
from antiphon.observe.store_metrics import add_store_metrics
from antiphon.service.access.load_monitor import LoadMonitor
from antiphon.service.access.rate_limits import RateLimits
from antiphon.service.access.shared_rate_limits import SharedRateLimits
from antiphon.service.model_io.models import Models
from antiphon.service.operations.traces import TraceStore
from antiphon.service.persistence.response_writer import ResponseWriter
from antiphon.service.persistence.store_health import StoreProbe
from antiphon.service.runs.background import BackgroundRuns
from antiphon.service.runs.detached_runs import DetachedRuns
from antiphon.stores.base import Store
from antiphon.stores.live.base import LiveLog

_TRACER_MODULE = "antiphon.observe.tracing"
_FLUSH_SECONDS = 3.0  # seconds for sending the remaining spans at shutdown

LaneCounts = Callable[[], tuple[int, int]]


class ServerParts(Struct, frozen=True, kw_only=True):
    """The parts of the server that provide metrics."""

    models: Models
    detached_runs: DetachedRuns
    writer: ResponseWriter
    background: BackgroundRuns
    load_monitor: LoadMonitor
    rate_limits: RateLimits
    shared_limits: SharedRateLimits | None
    egress: EgressClient
    probe: StoreProbe


class Observability:
    def __init__(self, config: Config, metrics: Metrics) -> None:
        self.metrics = metrics
        self.traces = TraceStore(config.observability.keep_traces)
        self.access_log = (
            None if config.observability.access_log is None else AccessLog(config.observability.access_log)
        )
        url = traces_url(config.observability.otlp_endpoint, config.observability.otlp_traces_endpoint)
        self.tracer = None if url is None else _load_tracer(url, config.observability.trace_content)
        if self.access_log is not None:
            log = self.access_log
            gauges.watch_access_log(metrics.registry, lambda: log.dropped)
        if self.tracer is not None:
            gauges.watch_tracing(metrics.registry, self.tracer.counts)

    @property
    def tracer_factory(self) -> Callable[[str, str], RunTracer] | None:
        """Factory of run tracers, for PlannerSettings; None if nothing is traced."""
        return self._make_tracer if self.tracer is not None or self.traces.is_enabled else None

    def measure_store(self, store: Store) -> Store:
        return add_store_metrics(store, "store", self.metrics.registry, self.tracer)

    def measure_live_log(self, live: LiveLog) -> LiveLog:
        return add_store_metrics(live, "live", self.metrics.registry, self.tracer)

    def register_gauges(self, parts: ServerParts, sockets: Callable[[], int], lanes: LaneCounts) -> None:
        """Register the gauges of all parts for /metrics."""
        registry, models, leases = self.metrics.registry, parts.models, parts.writer.leases
        gauges.watch_responses(
            registry,
            running=lambda: parts.detached_runs.count_runs() - models.count_waiting(),
            waiting=models.count_waiting,
        )
        gauges.watch_websockets(registry, sockets)
        gauges.watch_engines(registry, models.states)
        gauges.watch_load(registry, lambda: parts.load_monitor.stage, lambda: parts.load_monitor.loads)
        shared_limits, rate_limits = parts.shared_limits, parts.rate_limits
        gauges.watch_rate_limits(
            registry, lambda: rate_limits.refusals, None if shared_limits is None else lambda: shared_limits.connected
        )
        gauges.watch_queues(registry, models.list_queues)
        gauges.watch_lanes(registry, lanes)
        gauges.watch_leases(
            registry, lambda: leases.held_count, lambda: leases.lost_count, lambda: parts.background.takeovers
        )
        gauges.watch_store(registry, parts.probe.healthy, lambda: parts.probe.size)
        gauges.watch_egress(registry, parts.egress.outcomes)
        gauges.watch_sandbox(registry, child_process.OUTCOMES)

    def open(self) -> None:
        if self.access_log is not None:
            self.access_log.open()

    async def close(self) -> None:
        if self.access_log is not None:
            await asyncio.to_thread(self.access_log.close)
        if self.tracer is not None:
            await asyncio.to_thread(self.tracer.close, _FLUSH_SECONDS)

    def _make_tracer(self, tenant: str, response_id: str) -> RunTracer:
        stores_trace = self.traces.is_enabled
        return RunTracer(
            response_id,
            self.tracer,
            stores_trace,
            (lambda tracer: self.traces.store(tenant, tracer)) if stores_trace else None,
        )


class SpanExporter(Tracer, Protocol):
    """A tracer that exports spans."""

    counts: Counter[str]

    def close(self, seconds: float) -> None: ...


def _load_tracer(url: str, content: bool) -> SpanExporter:
    try:
        tracer: SpanExporter = import_module(_TRACER_MODULE).OtlpTracer(url, content)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise StartupError("--otlp-endpoint needs OpenTelemetry: pip install 'antiphon[tracing]'") from None
    return tracer

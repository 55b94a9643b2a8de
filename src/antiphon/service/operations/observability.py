"""Observability according to the settings: metrics of the server's parts, traces, and the access log."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Literal, Protocol, TypeVar

from antiphon import offload
from antiphon.agent.run_tracer import RunTracer
from antiphon.config import Config
from antiphon.config.areas import traces_url
from antiphon.egress import EgressClient
from antiphon.engines.base import EngineStatus
from antiphon.errors import StartupError
from antiphon.observe import Metrics
from antiphon.observe.logs import AccessLog
from antiphon.observe.metrics import add_store_metrics
from antiphon.observe.prometheus import MergeMode, Registry
from antiphon.observe.spans import Tracer
from antiphon.service.access.load_monitor import LoadMonitor
from antiphon.service.access.rate_limits import RateLimits
from antiphon.service.access.shared_rate_limits import SharedRateLimits
from antiphon.service.model_io.models import Models
from antiphon.service.operations.traces import TraceStore
from antiphon.service.persistence.response_writer import ResponseWriter
from antiphon.service.persistence.store_maintenance import StoreProbe
from antiphon.service.runs.background import BackgroundRuns
from antiphon.service.runs.detached_runs import DetachedRuns

T = TypeVar("T")
_TRACER_MODULE = "antiphon.observe.tracing"
_FLUSH_SECONDS = 3.0  # seconds for sending the remaining spans at shutdown

_BREAKER_VALUES = {"closed": 0.0, "half-open": 0.5, "open": 1.0}

LaneCounts = Callable[[], tuple[int, int]]  # how many WebSocket messages run and how many wait


class ServerParts(Protocol):
    """The parts of the server that provide metrics."""

    models: Models
    detached_runs: DetachedRuns
    writer: ResponseWriter
    background_runs: BackgroundRuns
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
            metrics.registry.gauge(
                "antiphon_access_log_dropped_total", "Access log lines that were dropped.",
                read=lambda: log.dropped, kind="counter",
            )  # fmt: skip
        if self.tracer is not None:
            counts = self.tracer.counts
            metrics.registry.gauge(
                "antiphon_trace_spans_total", "Spans for the collector, by outcome.", ("outcome",),
                read=lambda: counts, kind="counter",
            )  # fmt: skip

    @property
    def tracer_factory(self) -> Callable[[str, str], RunTracer] | None:
        """Factory of run tracers, for PlannerSettings; None if nothing is traced."""
        return self._make_tracer if self.tracer is not None or self.traces.is_enabled else None

    def measure(self, inner: T, subsystem: Literal["store", "live"]) -> T:
        """Measure the calls of a store or a live log."""
        return add_store_metrics(inner, subsystem, self.metrics.registry, self.tracer)

    def register_gauges(self, parts: ServerParts, sockets: Callable[[], int], lanes: LaneCounts) -> None:
        """Register the metrics that are read from the parts on each scrape, at no cost per request."""
        registry = self.metrics.registry
        _add_run_gauges(registry, parts.models, parts.detached_runs, sockets, lanes)
        _add_engine_gauges(registry, parts.models.states)
        _add_limit_gauges(registry, parts.load_monitor, parts.rate_limits, parts.shared_limits)
        _add_store_gauges(registry, parts.writer, parts.background_runs, parts.probe)
        registry.gauge(
            "antiphon_egress_connections_total", "Connections to URLs named by clients or operators, by outcome.",
            ("outcome",), read=lambda: parts.egress.outcomes, kind="counter",
        )  # fmt: skip
        registry.gauge(
            "antiphon_sandbox_runs_total", "Sandboxed child processes that read untrusted files or pages, by outcome.",
            ("outcome",), read=lambda: offload.OUTCOMES, kind="counter",
        )  # fmt: skip

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


def _add_run_gauges(
    registry: Registry, models: Models, runs: DetachedRuns, sockets: Callable[[], int], lanes: LaneCounts
) -> None:
    def waiting_by_tier() -> dict[tuple[str, str], float]:
        return {(queue.model, tier): count for queue in models.list_queues() for tier, count in queue.waiting.items()}

    registry.gauge(
        "antiphon_num_requests_running", "Responses being generated.",
        read=lambda: len(runs.slots) - models.count_waiting(),
    )  # fmt: skip
    registry.gauge("antiphon_num_requests_waiting", "Responses waiting for a slot.", read=models.count_waiting)
    registry.gauge("antiphon_websocket_connections", "Open WebSockets.", read=sockets)
    registry.gauge(
        "antiphon_websocket_creates", "Responses requested over WebSockets.", ("state",),
        read=lambda: dict(zip(("running", "waiting"), lanes(), strict=True)),
    )  # fmt: skip
    registry.gauge(
        "antiphon_queue_waiting", "Generation requests waiting for a model.", ("model", "tier"), read=waiting_by_tier
    )
    registry.gauge(
        "antiphon_queue_running", "Generation requests running on a model.", ("model",),
        read=lambda: {queue.model: queue.running for queue in models.list_queues()},
    )  # fmt: skip
    registry.gauge(
        "antiphon_queue_slots", "Generation requests that a model may run at once.", ("model",),
        read=lambda: {queue.model: queue.slots for queue in models.list_queues()},
    )  # fmt: skip


def _add_engine_gauges(registry: Registry, engines: Callable[[], Iterable[EngineStatus]]) -> None:
    def add(name: str, help: str, value: Callable[[EngineStatus], float], kind: str, merge_mode: MergeMode) -> None:
        registry.gauge(
            f"antiphon_engine_{name}", help, ("engine",), kind=kind, merge_mode=merge_mode,
            read=lambda: {engine.name: value(engine) for engine in engines()},
        )  # fmt: skip

    registry.gauge(
        "antiphon_engine_up", "Whether the engine of a model is healthy.", ("engine", "model"), merge_mode="least",
        read=lambda: {(engine.name, model): engine.healthy for engine in engines() for model in engine.models or ("",)},
    )  # fmt: skip
    add("running", "Generation requests running on an engine.", lambda engine: engine.running, "gauge", "sum")
    draining = "Whether an engine is draining: it gets no new requests."
    add("draining", draining, lambda engine: engine.draining, "gauge", "most")
    breaker = "Circuit breaker of an engine: 1 open, 0.5 half-open, 0 closed."
    add("breaker", breaker, lambda engine: _BREAKER_VALUES[engine.breaker], "gauge", "most")
    add("works_total", "Generation requests sent to an engine.", lambda engine: engine.works, "counter", "sum")
    failures = "Generation requests that failed because of the engine."
    add("failures_total", failures, lambda engine: engine.failures, "counter", "sum")


def _add_limit_gauges(
    registry: Registry, monitor: LoadMonitor, rate_limits: RateLimits, shared: SharedRateLimits | None
) -> None:
    registry.gauge(
        "antiphon_shedding_stage", "Load shedding: 0 accept all, 1 reject background work, 2 reject all.",
        read=lambda: monitor.stage, merge_mode="most",
    )  # fmt: skip
    registry.gauge(
        "antiphon_pressure", "Load by cause; at 1 all new requests are rejected.", ("cause",),
        read=lambda: monitor.loads, merge_mode="most",
    )  # fmt: skip
    registry.gauge(
        "antiphon_quota_refusals_total", "Requests rejected by a limit, by holder and kind.", ("whose", "limit"),
        read=lambda: rate_limits.refusals, kind="counter",
    )  # fmt: skip
    if shared is not None:
        registry.gauge(
            "antiphon_quotas_shared", "Whether rate limits are shared with other servers or workers.",
            read=lambda: shared.connected, merge_mode="least",
        )  # fmt: skip


def _add_store_gauges(
    registry: Registry, writer: ResponseWriter, background: BackgroundRuns, probe: StoreProbe
) -> None:
    leases = writer.leases
    registry.gauge(
        "antiphon_leases_held", "Running responses in the store that this process owns.",
        read=lambda: leases.held_count, merge_mode="each",
    )  # fmt: skip
    registry.gauge(
        "antiphon_leases_lost_total", "Responses lost to another process or deleted.",
        read=lambda: leases.lost_count, kind="counter",
    )  # fmt: skip
    registry.gauge(
        "antiphon_leases_taken_over_total", "Responses taken over from servers that crashed.",
        read=lambda: background.takeovers, kind="counter",
    )  # fmt: skip
    registry.gauge("antiphon_store_up", "Whether the store answers.", read=probe.healthy, merge_mode="least")
    registry.gauge(
        "antiphon_store_bytes", "Bytes in the store, of all tenants; updated once a minute.",
        read=lambda: probe.size[0], merge_mode="most",
    )  # fmt: skip
    registry.gauge(
        "antiphon_store_responses", "Responses in the store, of all tenants; updated once a minute.",
        read=lambda: probe.size[1], merge_mode="most",
    )  # fmt: skip


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

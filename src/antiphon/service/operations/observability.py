"""Observability according to the settings: metrics of the server's parts, traces, and the access log."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Literal, Protocol, TypeVar, cast

from antiphon import offload
from antiphon.agent.run_tracer import RunTracer
from antiphon.config import Config
from antiphon.egress import EgressClient
from antiphon.engines.base import EngineStatus
from antiphon.errors import StartupError
from antiphon.observe import Metrics
from antiphon.observe.logs import AccessLog
from antiphon.observe.metrics import MeasuredProxy
from antiphon.observe.prometheus import MergeMode, Registry
from antiphon.observe.spans import Tracer
from antiphon.service.access.load_monitor import LoadMonitor
from antiphon.service.access.rate_limits import RateLimits
from antiphon.service.access.shared_rate_limits import SharedRateLimits
from antiphon.service.containers.live_containers import LiveContainers
from antiphon.service.containers.sweeper import ContainerSweeper
from antiphon.service.images import Images
from antiphon.service.model_io.models import Models, QueueStatus
from antiphon.service.operations.traces import TraceStore
from antiphon.service.persistence.response_writer import NoteWrite, ResponseWriter
from antiphon.service.persistence.store_maintenance import StoreProbe
from antiphon.service.runs.background import BackgroundRuns
from antiphon.service.runs.detached_runs import DetachedRuns
from antiphon.service.vector_stores.ingestion import Ingestion
from antiphon.service.vector_stores.reranker import Reranker

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
    ingestion: Ingestion
    reranker: Reranker | None
    live_containers: LiveContainers
    container_sweeper: ContainerSweeper
    images: Images


class Observability:
    def __init__(self, config: Config, metrics: Metrics) -> None:
        self.metrics = metrics
        self.traces = TraceStore(config.observability.keep_traces)
        self.access_log = (
            None if config.observability.access_log is None else AccessLog(config.observability.access_log)
        )
        url = config.observability.traces_url
        self.tracer = None if url is None else _load_tracer(url, config.observability.trace_content)
        gauge = metrics.registry.gauge
        if (log := self.access_log) is not None:
            gauge("antiphon_access_log_dropped_total", "Access log lines that were dropped.", read=lambda: log.dropped)
        if (tracer := self.tracer) is not None:
            spans = "Spans for the collector, by outcome."
            gauge("antiphon_trace_spans_total", spans, ("outcome",), read=lambda: tracer.counts)

    @property
    def note_write(self) -> NoteWrite | None:
        """Callback for the writes of responses; None if no traces are stored."""
        return self.traces.note_write if self.traces.is_enabled else None

    @property
    def tracer_factory(self) -> Callable[[str, str], RunTracer] | None:
        """Factory of run tracers, for PlannerSettings; None if nothing is traced."""
        return self._make_tracer if self.tracer is not None or self.traces.is_enabled else None

    def measure(self, inner: T, subsystem: Literal["store", "live"]) -> T:
        return cast(T, MeasuredProxy(inner, subsystem, self.metrics.registry, self.tracer))

    def register_gauges(self, parts: ServerParts, sockets: Callable[[], int], lanes: LaneCounts) -> None:
        """Register the metrics that are read from the parts on each scrape, at no cost per request."""
        registry, gauge = self.metrics.registry, self.metrics.registry.gauge
        _add_run_gauges(registry, parts, sockets, lanes)
        _add_engine_gauges(registry, parts.models.states)
        _add_limit_gauges(registry, parts)
        _add_store_gauges(registry, parts)
        _add_container_gauges(registry, parts)
        _add_image_gauges(registry, parts.images)
        connections = "Connections to URLs named by clients or operators, by outcome."
        gauge("antiphon_egress_connections_total", connections, ("outcome",), read=lambda: parts.egress.outcomes)
        sandboxed = "Sandboxed child processes that read untrusted files or pages, by outcome."
        gauge("antiphon_sandbox_runs_total", sandboxed, ("outcome",), read=lambda: offload.OUTCOMES)

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


def _add_run_gauges(registry: Registry, parts: ServerParts, sockets: Callable[[], int], lanes: LaneCounts) -> None:
    gauge, models, runs = registry.gauge, parts.models, parts.detached_runs

    def add_queue_gauge(name: str, help: str, value: Callable[[QueueStatus], float]) -> None:
        gauge(name, help, ("model",), read=lambda: {queue.model: value(queue) for queue in models.list_queues()})

    def waiting_by_tier() -> dict[tuple[str, str], float]:
        return {(queue.model, tier): count for queue in models.list_queues() for tier, count in queue.waiting.items()}

    running = "Responses being generated."
    gauge("antiphon_num_requests_running", running, read=lambda: len(runs.slots) - models.count_waiting())
    gauge("antiphon_num_requests_waiting", "Responses waiting for a slot.", read=models.count_waiting)
    gauge("antiphon_websocket_connections", "Open WebSockets.", read=sockets)
    requested, states = "Responses requested over WebSockets.", ("running", "waiting")
    gauge("antiphon_websocket_creates", requested, ("state",), read=lambda: dict(zip(states, lanes(), strict=True)))
    waiting = "Generation requests waiting for a model."
    gauge("antiphon_queue_waiting", waiting, ("model", "tier"), read=waiting_by_tier)
    add_queue_gauge("antiphon_queue_running", "Generation requests running on a model.", lambda queue: queue.running)
    add_queue_gauge(
        "antiphon_queue_slots", "Generation requests that a model may run at once.", lambda queue: queue.slots
    )


def _add_engine_gauges(registry: Registry, engines: Callable[[], Iterable[EngineStatus]]) -> None:
    def add(name: str, help: str, value: Callable[[EngineStatus], float], merge_mode: MergeMode = "sum") -> None:
        def read() -> dict[str, float]:
            return {engine.name: value(engine) for engine in engines()}

        registry.gauge(f"antiphon_engine_{name}", help, ("engine",), read=read, merge_mode=merge_mode)

    def health() -> dict[tuple[str, str], float]:
        return {(engine.name, model): engine.healthy for engine in engines() for model in engine.models or ("",)}

    up = "Whether the engine of a model is healthy."
    registry.gauge("antiphon_engine_up", up, ("engine", "model"), read=health, merge_mode="least")
    add("running", "Generation requests running on an engine.", lambda engine: engine.running)
    add("draining", "Whether an engine is draining: it gets no new requests.", lambda engine: engine.draining, "most")
    breaker = "Circuit breaker of an engine: 1 open, 0.5 half-open, 0 closed."
    add("breaker", breaker, lambda engine: _BREAKER_VALUES[engine.breaker], "most")
    add("works_total", "Generation requests sent to an engine.", lambda engine: engine.works)
    add("failures_total", "Generation requests that failed because of the engine.", lambda engine: engine.failures)


def _add_limit_gauges(registry: Registry, parts: ServerParts) -> None:
    gauge, monitor, shared = registry.gauge, parts.load_monitor, parts.shared_limits
    stage = "Load shedding: 0 accept all, 1 reject background work, 2 reject all."
    gauge("antiphon_shedding_stage", stage, read=lambda: monitor.stage, merge_mode="most")
    load = "Load by cause; at 1 all new requests are rejected."
    gauge("antiphon_pressure", load, ("cause",), read=lambda: monitor.loads, merge_mode="most")
    rejected = "Requests rejected by a limit, by holder and kind."
    gauge("antiphon_quota_refusals_total", rejected, ("whose", "limit"), read=lambda: parts.rate_limits.refusals)
    if shared is not None:
        connected = "Whether rate limits are shared with other servers or workers."
        gauge("antiphon_quotas_shared", connected, read=lambda: shared.connected, merge_mode="least")


def _add_store_gauges(registry: Registry, parts: ServerParts) -> None:
    gauge, leases, probe = registry.gauge, parts.writer.leases, parts.probe
    held = "Running responses in the store that this process owns."
    gauge("antiphon_leases_held", held, read=lambda: leases.held_count, merge_mode="each")
    lost = "Responses lost to another process or deleted."
    gauge("antiphon_leases_lost_total", lost, read=lambda: leases.lost_count)
    taken_over = "Responses taken over from servers that crashed."
    gauge("antiphon_leases_taken_over_total", taken_over, read=lambda: parts.background_runs.takeovers)
    gauge("antiphon_store_up", "Whether the store answers.", read=probe.healthy, merge_mode="least")
    size = "Bytes in the store, of all tenants; updated once a minute."
    gauge("antiphon_store_bytes", size, read=lambda: probe.size[0], merge_mode="most")
    indexing = "Files of vector stores that this process indexes now."
    gauge("antiphon_vector_files_indexing", indexing, read=parts.ingestion.__len__)
    if (reranker := parts.reranker) is not None:
        unranked = "Searches whose hits --rerank-model did not rank, because it failed."
        gauge("antiphon_vector_rerank_failures_total", unranked, read=lambda: reranker.failures)
    count = "Responses in the store, of all tenants; updated once a minute."
    gauge("antiphon_store_responses", count, read=lambda: probe.size[1], merge_mode="most")


def _add_image_gauges(registry: Registry, images: Images) -> None:
    up = "Whether an image service responds; probed every 30 seconds."
    registry.gauge("antiphon_image_service_up", up, ("service",), read=images.list_health, merge_mode="least")
    running = "Requests running on an image service."
    registry.gauge("antiphon_image_service_running", running, ("service",), read=images.count_running)


def _add_container_gauges(registry: Registry, parts: ServerParts) -> None:
    gauge, live, sweeper = registry.gauge, parts.live_containers, parts.container_sweeper
    running = "Containers in the sandbox of this host; updated every ten seconds."
    gauge("antiphon_containers_running", running, read=lambda: sweeper.running, merge_mode="most")
    level = "The level of the sandbox; known once containers run."
    gauge("antiphon_sandbox_level", level, ("level",), read=lambda: sweeper.levels, merge_mode="most")
    starts = "Containers that this process has started, by outcome."
    gauge("antiphon_container_starts_total", starts, ("outcome",), read=lambda: live.starts)
    kills = "Times that all processes of a container ended, by reason; updated every ten seconds."
    gauge("antiphon_container_kills_total", kills, ("reason",), read=lambda: sweeper.kills, merge_mode="most")


class SpanExporter(Tracer, Protocol):
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

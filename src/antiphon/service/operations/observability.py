"""What the operator wants to see of the server, as the settings say: metrics of its parts, traces, the access log."""

import asyncio
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from typing import Protocol

from msgspec import Struct

from antiphon import child_process
from antiphon.agent.run_tracer import Witness
from antiphon.config import Config
from antiphon.config.areas.observability import traces_url
from antiphon.egress import Egress
from antiphon.errors import StartupError
from antiphon.observe import Metrics, gauges
from antiphon.observe.access_log import AccessLog
from antiphon.observe.spans import Tracer
from antiphon.observe.store_metrics import measured
from antiphon.service.access.load_monitor import Pressure
from antiphon.service.access.rate_limits import Quotas
from antiphon.service.access.shared_rate_limits import Sharing
from antiphon.service.model_io.models import Models
from antiphon.service.operations.traces import Traces
from antiphon.service.persistence.response_writer import Keeper
from antiphon.service.persistence.store_health import StoreProbe
from antiphon.service.runs.background import Jobs
from antiphon.service.runs.detached_runs import Sessions
from antiphon.stores.base import Store
from antiphon.stores.live.base import LiveLog

_TRACER = "antiphon.observe.tracing"
_LAST_SPANS = 3.0  # seconds for what is still to be sent when everything is closed

Lanes = Callable[[], tuple[int, int]]


class Parts(Struct, frozen=True, kw_only=True):
    """Of the server, those that have something to tell."""

    models: Models
    sessions: Sessions
    keeper: Keeper
    jobs: Jobs
    pressure: Pressure
    quotas: Quotas
    sharing: Sharing | None
    egress: Egress
    probe: StoreProbe


class Observing:
    def __init__(self, config: Config, metrics: Metrics) -> None:
        self.metrics = metrics
        self.traces = Traces(config.keep_traces)
        self.access_log = None if config.access_log is None else AccessLog(config.access_log)
        url = traces_url(config.otlp_endpoint, config.otlp_traces_endpoint)
        self.tracer = None if url is None else _tracer(url, config.trace_content)
        if self.access_log is not None:
            log = self.access_log
            gauges.watch_access_log(metrics.registry, lambda: log.dropped)
        if self.tracer is not None:
            gauges.watch_tracing(metrics.registry, self.tracer.counts)

    @property
    def watch(self) -> Callable[[str, str], Witness] | None:
        """For Terms."""
        return self._witness if self.tracer is not None or self.traces.wanted else None

    def store(self, store: Store) -> Store:
        return measured(store, "store", self.metrics.registry, self.tracer)

    def live(self, live: LiveLog) -> LiveLog:
        return measured(live, "live", self.metrics.registry, self.tracer)

    def tell_of(self, parts: Parts, sockets: Callable[[], int], lanes: Lanes) -> None:
        """In /metrics."""
        metrics, models, keeper = self.metrics, parts.models, parts.keeper
        registry = metrics.registry
        metrics.watch_queue(running=lambda: parts.sessions.count() - models.waiting(), waiting=models.waiting)
        metrics.watch_sockets(sockets)
        metrics.watch_engines(models.states)
        metrics.watch_pressure(lambda: parts.pressure.stage, lambda: parts.pressure.loads)
        sharing, quotas = parts.sharing, parts.quotas
        metrics.watch_quotas(lambda: quotas.refusals, None if sharing is None else lambda: sharing.up)
        gauges.watch_queues(registry, models.queues)
        gauges.watch_lanes(registry, lanes)
        gauges.watch_leases(registry, lambda: keeper.held, lambda: keeper.lost, lambda: parts.jobs.taken_over)
        gauges.watch_store(registry, parts.probe.healthy, lambda: parts.probe.size)
        gauges.watch_egress(registry, parts.egress.outcomes)
        gauges.watch_confined(registry, child_process.OUTCOMES)

    def open(self) -> None:
        if self.access_log is not None:
            self.access_log.open()

    async def close(self) -> None:
        if self.access_log is not None:
            await asyncio.to_thread(self.access_log.close)
        if self.tracer is not None:
            await asyncio.to_thread(self.tracer.close, _LAST_SPANS)

    def _witness(self, tenant: str, response_id: str) -> Witness:
        keeps = self.traces.wanted
        return Witness(response_id, self.tracer, keeps, (lambda one: self.traces.keep(tenant, one)) if keeps else None)


class Exporter(Tracer, Protocol):
    """A tracer that sends spans somewhere."""

    counts: Counter[str]

    def close(self, seconds: float) -> None: ...


def _tracer(url: str, content: bool) -> Exporter:
    try:
        made: Exporter = import_module(_TRACER).OtlpTracer(url, content)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise StartupError("--otlp-endpoint needs OpenTelemetry: pip install 'antiphon[tracing]'") from None
    return made

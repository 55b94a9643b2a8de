"""Metrics that are read on each scrape from components that count for themselves, at no cost per request."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from antiphon.observe.prometheus import MergeMode, Reading, Registry


class QueueStatus(Struct, frozen=True, kw_only=True):
    """The queue of one model, or of several that share their engines' slots."""

    model: str
    running: int
    slots: int
    waiting: Mapping[str, int]  # by service tier


class EngineState(Protocol):
    """State of one engine, as far as metrics need it."""

    @property
    def name(self) -> str: ...
    @property
    def models(self) -> Sequence[str]: ...
    @property
    def healthy(self) -> bool: ...
    @property
    def draining(self) -> bool: ...
    @property
    def breaker(self) -> str: ...
    @property
    def running(self) -> int: ...
    @property
    def works(self) -> int: ...
    @property
    def failures(self) -> int: ...


_BREAKER_VALUES = {"closed": 0.0, "half-open": 0.5, "open": 1.0}


def watch_responses(registry: Registry, running: Callable[[], int], waiting: Callable[[], int]) -> None:
    """Register readers for the numbers of responses that are being generated and that wait."""
    add_gauge(registry, "antiphon_num_requests_running", "Responses being generated.", running)
    add_gauge(registry, "antiphon_num_requests_waiting", "Responses waiting for a slot.", waiting)


def watch_websockets(registry: Registry, count: Callable[[], int]) -> None:
    """Register a reader for the number of open WebSockets."""
    add_gauge(registry, "antiphon_websocket_connections", "Open WebSockets.", count)


def watch_load(registry: Registry, stage: Callable[[], int], loads: Callable[[], Mapping[str, float]]) -> None:
    """Register readers for the load shedding stage and for the loads that determine it."""
    add_gauge(
        registry,
        "antiphon_shedding_stage",
        "Load shedding: 0 accept all, 1 reject background work, 2 reject all.",
        stage,
        "most",
    )
    registry.gauge(
        "antiphon_pressure", "Load by cause; at 1 all new requests are rejected.", ("cause",),
        read=lambda: [((name,), load) for name, load in loads().items()], merge_mode="most",
    )  # fmt: skip


def watch_rate_limits(
    registry: Registry, refusals: Callable[[], Mapping[tuple[str, str], int]], shared: Callable[[], bool] | None
) -> None:
    """Register readers for rejections and for whether limits are shared; `shared` None: never shared."""
    registry.gauge(
        "antiphon_quota_refusals_total", "Requests rejected by a limit, by holder and kind.", ("whose", "limit"),
        read=lambda: [(labels, float(count)) for labels, count in refusals().items()], kind="counter",
    )  # fmt: skip
    if shared is not None:
        add_gauge(
            registry,
            "antiphon_quotas_shared",
            "Whether rate limits are shared with other servers or workers.",
            shared,
            "least",
        )


def watch_engines(registry: Registry, read: Callable[[], Iterable[EngineState]]) -> None:
    """Register a reader for the state of each engine."""
    registry.gauge(
        "antiphon_engine_up",
        "Whether the engine of a model is healthy.",
        ("engine", "model"),
        read=lambda: [
            ((engine.name, model), float(engine.healthy)) for engine in read() for model in engine.models or ("",)
        ],
        merge_mode="least",
    )

    def add(
        name: str, help: str, value: Callable[[EngineState], float], kind: str = "gauge", merge_mode: MergeMode = "sum"
    ) -> None:
        registry.gauge(
            f"antiphon_engine_{name}",
            help,
            ("engine",),
            read=lambda: [((engine.name,), float(value(engine))) for engine in read()],
            kind=kind,
            merge_mode=merge_mode,
        )

    add("running", "Generation requests running on an engine.", lambda engine: engine.running)
    add(
        "draining",
        "Whether an engine is draining: it gets no new requests.",
        lambda engine: engine.draining,
        merge_mode="most",
    )
    add(
        "breaker",
        "Circuit breaker of an engine: 1 open, 0.5 half-open, 0 closed.",
        lambda engine: _BREAKER_VALUES[engine.breaker],
        merge_mode="most",
    )
    add("works_total", "Generation requests sent to an engine.", lambda engine: engine.works, kind="counter")
    add(
        "failures_total",
        "Generation requests that failed because of the engine.",
        lambda engine: engine.failures,
        kind="counter",
    )


def watch_queues(registry: Registry, read: Callable[[], Iterable[QueueStatus]]) -> None:
    def waiting() -> Iterable[Reading]:
        return [((queue.model, tier), float(count)) for queue in read() for tier, count in queue.waiting.items()]

    registry.gauge(
        "antiphon_queue_waiting", "Generation requests waiting for a model.", ("model", "tier"), read=waiting
    )
    registry.gauge(
        "antiphon_queue_running", "Generation requests running on a model.", ("model",),
        read=lambda: [((queue.model,), float(queue.running)) for queue in read()],
    )  # fmt: skip
    registry.gauge(
        "antiphon_queue_slots", "Generation requests that a model may run at once.", ("model",),
        read=lambda: [((queue.model,), float(queue.slots)) for queue in read()],
    )  # fmt: skip


def watch_lanes(registry: Registry, read: Callable[[], tuple[int, int]]) -> None:
    """`read` returns how many WebSocket messages run and how many wait."""
    registry.gauge(
        "antiphon_websocket_creates", "Responses requested over WebSockets.", ("state",),
        read=lambda: [((state,), float(count)) for state, count in zip(("running", "waiting"), read(), strict=True)],
    )  # fmt: skip


def watch_leases(
    registry: Registry, held: Callable[[], int], lost: Callable[[], int], taken: Callable[[], int]
) -> None:
    add_gauge(registry, "antiphon_leases_held", "Running responses in the store that this process owns.", held, "each")
    add_counter(registry, "antiphon_leases_lost_total", "Responses lost to another process or deleted.", lost)
    add_counter(registry, "antiphon_leases_taken_over_total", "Responses taken over from servers that crashed.", taken)


def watch_store(registry: Registry, is_up: Callable[[], bool], size: Callable[[], tuple[int, int]]) -> None:
    """`size` returns the last measured bytes and number of responses."""
    add_gauge(registry, "antiphon_store_up", "Whether the store answers.", is_up, "least")
    add_gauge(
        registry, "antiphon_store_bytes", "Bytes in the store, of all tenants; updated once a minute.",
        lambda: size()[0], "most",
    )  # fmt: skip
    add_gauge(
        registry, "antiphon_store_responses", "Responses in the store, of all tenants; updated once a minute.",
        lambda: size()[1], "most",
    )  # fmt: skip


def watch_egress(registry: Registry, outcomes: Mapping[str, int]) -> None:
    _add_outcome_counter(
        registry,
        "antiphon_egress_connections_total",
        "Connections to URLs named by clients or operators, by outcome.",
        outcomes,
    )


def watch_sandbox(registry: Registry, outcomes: Mapping[str, int]) -> None:
    _add_outcome_counter(
        registry,
        "antiphon_sandbox_runs_total",
        "Sandboxed child processes that read untrusted files or pages, by outcome.",
        outcomes,
    )


def watch_access_log(registry: Registry, dropped: Callable[[], int]) -> None:
    add_counter(registry, "antiphon_access_log_dropped_total", "Access log lines that were dropped.", dropped)


def watch_tracing(registry: Registry, counts: Mapping[str, int]) -> None:
    _add_outcome_counter(registry, "antiphon_trace_spans_total", "Spans for the collector, by outcome.", counts)


def add_gauge(
    registry: Registry, name: str, help: str, value: Callable[[], float], merge_mode: MergeMode = "sum"
) -> None:
    registry.gauge(name, help, read=lambda: [((), float(value()))], merge_mode=merge_mode)


def add_counter(registry: Registry, name: str, help: str, value: Callable[[], float]) -> None:
    registry.gauge(name, help, read=lambda: [((), float(value()))], kind="counter")


def _add_outcome_counter(registry: Registry, name: str, help: str, outcomes: Mapping[str, int]) -> None:
    def read() -> list[Reading]:
        return [((outcome,), float(number)) for outcome, number in sorted(outcomes.items())]

    registry.gauge(name, help, ("outcome",), read=read, kind="counter")

"""Metrics that are read on each scrape from components that count for themselves, at no cost per request.

Process metrics use the standard names of Prometheus clients; values that the system does not provide are omitted.
"""

import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from antiphon.observe.prometheus import MergeMode, Reading, Registry


class QueueStatus(Struct, frozen=True, kw_only=True):
    """The queue of one model, or of several that share their engines' slots."""

    model: str
    running: int
    slots: int
    waiting: Mapping[str, int]  # by service tier


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


_PAGE_BYTES = resource.getpagesize()


def add_process_metrics(registry: Registry) -> None:
    """Register the process metrics. Call it once, early in the life of the process."""
    started = time.time()

    def gauge(name: str, help: str, value: Callable[[], float | None], kind: str = "gauge") -> None:
        registry.gauge(f"process_{name}", help, read=lambda: _to_readings(value), kind=kind, merge_mode="each")

    gauge("cpu_seconds_total", "CPU time used, in seconds.", time.process_time, "counter")
    gauge("resident_memory_bytes", "Resident memory, in bytes.", read_resident_bytes)
    gauge("virtual_memory_bytes", "Virtual memory, in bytes.", lambda: _read_memory(0))
    gauge("start_time_seconds", "Start time of the process, as a Unix time.", lambda: started)
    gauge("open_fds", "Open file descriptors.", _count_open_files)
    gauge("max_fds", "Maximum number of open file descriptors.", lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def read_resident_bytes() -> float | None:
    return _read_memory(1)


def _to_readings(value: Callable[[], float | None]) -> Iterator[Reading]:
    number = value()
    if number is not None:
        yield (), number


def _read_memory(column: int) -> float | None:
    try:
        return int(Path("/proc/self/statm").read_text().split()[column]) * _PAGE_BYTES
    except FileNotFoundError:
        return None


def _count_open_files() -> float | None:
    try:
        return len(os.listdir("/proc/self/fd"))
    except FileNotFoundError:
        return None

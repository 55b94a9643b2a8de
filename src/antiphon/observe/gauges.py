"""Series that are read when somebody asks, of parts that count for themselves. Nothing here costs a request.

The process itself, under the names that every Prometheus client uses. What the system does not tell is left out.
"""

import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from antiphon.observe.prometheus import Joining, Reading, Registry


class Queue(Struct, frozen=True, kw_only=True):
    """Of one model, or of several that share their engines' slots."""

    model: str
    running: int
    slots: int
    waiting: Mapping[str, int]  # by the tier that they are in the order of


def watch_queues(registry: Registry, read: Callable[[], Iterable[Queue]]) -> None:
    def waiting() -> Iterable[Reading]:
        return [((queue.model, tier), float(count)) for queue in read() for tier, count in queue.waiting.items()]

    registry.gauge("antiphon_queue_waiting", "Works that wait for a model.", ("model", "tier"), read=waiting)
    registry.gauge(
        "antiphon_queue_running", "Works that a model has.", ("model",),
        read=lambda: [((queue.model,), float(queue.running)) for queue in read()],
    )  # fmt: skip
    registry.gauge(
        "antiphon_queue_slots", "Works that a model may have at once.", ("model",),
        read=lambda: [((queue.model,), float(queue.slots)) for queue in read()],
    )  # fmt: skip


def watch_lanes(registry: Registry, read: Callable[[], tuple[int, int]]) -> None:
    """`read`: how many messages of WebSockets run, and how many wait."""
    registry.gauge(
        "antiphon_websocket_creates", "Responses that were asked for over WebSockets.", ("state",),
        read=lambda: [((state,), float(count)) for state, count in zip(("running", "waiting"), read(), strict=True)],
    )  # fmt: skip


def watch_leases(
    registry: Registry, held: Callable[[], int], lost: Callable[[], int], taken: Callable[[], int]
) -> None:
    watch(registry, "antiphon_leases_held", "Running responses in the store that are this process's.", held, "each")
    count(registry, "antiphon_leases_lost_total", "Responses that were lost to another process, or deleted.", lost)
    count(registry, "antiphon_leases_taken_over_total", "Responses of servers that died, taken over here.", taken)


def watch_store(registry: Registry, well: Callable[[], bool], size: Callable[[], tuple[int, int]]) -> None:
    """`size`: bytes and responses, as they were lately."""
    watch(registry, "antiphon_store_up", "Whether the store answers.", well, "least")
    watch(
        registry, "antiphon_store_bytes", "Bytes in the store, of all tenants; once a minute.",
        lambda: size()[0], "most",
    )  # fmt: skip
    watch(
        registry, "antiphon_store_responses", "Responses in the store, of all tenants; once a minute.",
        lambda: size()[1], "most",
    )  # fmt: skip


def watch_egress(registry: Registry, outcomes: Mapping[str, int]) -> None:
    _count_outcomes(
        registry,
        "antiphon_egress_connections_total",
        "Connections to what clients or operators named, by what came of them.",
        outcomes,
    )


def watch_confined(registry: Registry, outcomes: Mapping[str, int]) -> None:
    _count_outcomes(
        registry,
        "antiphon_sandbox_runs_total",
        "Programs that read what clients or pages brought, in processes of their own.",
        outcomes,
    )


def watch_access_log(registry: Registry, dropped: Callable[[], int]) -> None:
    count(registry, "antiphon_access_log_dropped_total", "Lines of the access log that were not written.", dropped)


def watch_tracing(registry: Registry, counts: Mapping[str, int]) -> None:
    _count_outcomes(registry, "antiphon_trace_spans_total", "Spans for the collector, by what came of them.", counts)


def watch(registry: Registry, name: str, help: str, value: Callable[[], float], joining: Joining = "sum") -> None:
    registry.gauge(name, help, read=lambda: [((), float(value()))], joining=joining)


def count(registry: Registry, name: str, help: str, value: Callable[[], float]) -> None:
    registry.gauge(name, help, read=lambda: [((), float(value()))], kind="counter")


def _count_outcomes(registry: Registry, name: str, about: str, outcomes: Mapping[str, int]) -> None:
    def read() -> list[Reading]:
        return [((outcome,), float(number)) for outcome, number in sorted(outcomes.items())]

    registry.gauge(name, about, ("outcome",), read=read, kind="counter")


_PAGE = resource.getpagesize()


def add_process(registry: Registry) -> None:
    """To be called once, early in the life of the process."""
    started = time.time()

    def gauge(name: str, help: str, value: Callable[[], float | None], kind: str = "gauge") -> None:
        registry.gauge(f"process_{name}", help, read=lambda: _reading(value), kind=kind, joining="each")

    gauge("cpu_seconds_total", "CPU time used, in seconds.", time.process_time, "counter")
    gauge("resident_memory_bytes", "Resident memory, in bytes.", resident_bytes)
    gauge("virtual_memory_bytes", "Virtual memory, in bytes.", lambda: _memory(0))
    gauge("start_time_seconds", "When it started, as a Unix time.", lambda: started)
    gauge("open_fds", "Open file descriptors.", _open_files)
    gauge("max_fds", "Most file descriptors that may be open.", lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def resident_bytes() -> float | None:
    return _memory(1)


def _reading(value: Callable[[], float | None]) -> Iterator[Reading]:
    number = value()
    if number is not None:
        yield (), number


def _memory(column: int) -> float | None:
    try:
        return int(Path("/proc/self/statm").read_text().split()[column]) * _PAGE
    except FileNotFoundError:
        return None


def _open_files() -> float | None:
    try:
        return len(os.listdir("/proc/self/fd"))
    except FileNotFoundError:
        return None

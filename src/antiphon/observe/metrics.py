"""The metrics of the server, recorded by domain events, of its process and of its stores, with names like vLLM's."""

import mmap
import os
import platform
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable
from inspect import iscoroutinefunction
from pathlib import Path
from time import perf_counter
from typing import Any

from antiphon.errors import Unavailable
from antiphon.observe.multiprocess import SharedPages, WorkerMetrics
from antiphon.observe.prometheus import Counter, GaugeReader, Histogram, Registry
from antiphon.observe.spans import CURRENT_SPAN, ActiveSpan, Tracer
from antiphon.operating_system import get_file_limits

_PAGE_BYTES = mmap.PAGESIZE

# Seconds. The first token of a small model takes about 10 ms, that of a large one under load up to a minute.
WAIT_BOUNDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
DURATION_BOUNDS = (
    0.001, 0.005, 0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0,
    900.0, 3600.0,
)  # fmt: skip
TOKEN_INTERVAL_BOUNDS = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
)  # fmt: skip
STORE_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """The metrics of the server. Other components add their own to `registry`."""

    def __init__(self, version: str) -> None:
        self.registry = registry = Registry()
        self.worker_metrics: WorkerMetrics | None = None  # set if this process is one of several workers
        counter, histogram = registry.counter, registry.histogram
        self._requests = counter("antiphon_requests_total", "HTTP requests, by route and status.", ("route", "status"))
        duration = "Time from a request's headers to the end of its reply."
        self._durations = histogram("antiphon_request_duration_seconds", duration, ("route",), bounds=DURATION_BOUNDS)
        self._by_route: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        self._responses = counter("antiphon_responses_total", "Ended responses, by status.", ("status",))
        self._by_status: dict[str, Counter] = {}
        self._prompt_tokens = counter("antiphon_prompt_tokens_total", "Prompt tokens.")[()]
        self._cached_tokens = counter("antiphon_cached_tokens_total", "Prompt tokens found in a cache.")[()]
        self._generated_tokens = counter("antiphon_generation_tokens_total", "Tokens generated.")[()]
        first = "Time from the creation of a response to its first token."
        self._time_to_first_token = histogram("antiphon_time_to_first_token_seconds", first, bounds=WAIT_BOUNDS)[()]
        waited = "Time that a generation request waited for its model."
        queue_time = histogram("antiphon_request_queue_time_seconds", waited, bounds=WAIT_BOUNDS)[()]
        self.record_queue_time = queue_time.observe  # called with the seconds when a generation request starts
        between = "Mean time between the tokens of a response."
        self._per_token = histogram("antiphon_time_per_output_token_seconds", between, bounds=TOKEN_INTERVAL_BOUNDS)[()]
        latency = "Time from the creation of a response to its end."
        self._latency = histogram("antiphon_e2e_request_latency_seconds", latency, bounds=DURATION_BOUNDS)[()]
        violations = "Model outputs that violated the request, by reason and outcome."
        self._output_retries = counter("antiphon_insist_total", violations, ("reason", "outcome"))
        tool_calls = "Calls of server-side tools, by outcome."
        self._tool_calls = counter("antiphon_tool_calls_total", tool_calls, ("tool", "outcome"))
        ran = "Duration of the server-side tool calls that ran."
        self._tool_seconds = histogram("antiphon_tool_call_duration_seconds", ran, ("tool",), bounds=DURATION_BOUNDS)
        registry.gauge(
            "antiphon_build_info", "Versions of the server and of Python.", ("version", "python"),
            read=lambda: {(version, platform.python_version()): 1.0}, merge_mode="most",
        )  # fmt: skip
        _add_process_metrics(registry)

    def record_request(self, route: str, status: int, seconds: float) -> None:
        if (series := self._by_route.get((route, status))) is None:
            series = self._requests[route, str(status)], self._durations[(route,)]
            self._by_route[route, status] = series
        requests, durations = series
        requests.value += 1.0
        # inlined `observe`, here and below: every request passes here
        durations.counts[bisect_left(DURATION_BOUNDS, seconds)] += 1
        durations.sum += seconds

    def record_response(self, status: str, tokens: tuple[int, int, int], ttft: float | None, duration: float) -> None:
        """Record an ended response.

        `tokens`: of the input, of it from a cache, and of the output, as reported by the engine. Both times are seconds
        since its creation; `ttft` is None if there was no token.
        """
        input_tokens, cached_tokens, output_tokens = tokens
        if (ended := self._by_status.get(status)) is None:
            ended = self._by_status[status] = self._responses[(status,)]
        ended.value += 1.0
        latency = self._latency
        latency.counts[bisect_left(DURATION_BOUNDS, duration)] += 1
        latency.sum += duration
        self._prompt_tokens.value += input_tokens
        self._cached_tokens.value += cached_tokens
        self._generated_tokens.value += output_tokens
        if ttft is not None:
            self._time_to_first_token.observe(ttft)
            if output_tokens > 1:
                self._per_token.observe((duration - ttft) / (output_tokens - 1))

    def read_totals(self) -> dict[str, int]:
        """Return what this process has counted: ended responses, failed ones among them, and tokens."""
        failed = self._by_status.get("failed")
        return {
            "responses": int(sum(counter.value for counter in self._by_status.values())),
            "failed": 0 if failed is None else int(failed.value),
            "input_tokens": int(self._prompt_tokens.value),
            "cached_tokens": int(self._cached_tokens.value),
            "output_tokens": int(self._generated_tokens.value),
        }

    def record_output_retry(self, reason: str, outcome: str) -> None:
        """Record a model output that violated the request: it was repaired, retried, or given up."""
        self._output_retries[reason, outcome].value += 1.0

    def record_tool_call(self, kind: str, outcome: str, seconds: float = 0.0) -> None:
        """Record a call of a server-side tool, which was run or not."""
        self._tool_calls[kind, outcome].value += 1.0
        if outcome != "not_run":
            self._tool_seconds[(kind,)].observe(seconds)

    def merge_workers(self, pages: SharedPages, worker: int) -> None:
        """Merge the metrics of all workers in `text` from now on; this process is worker number `worker`."""
        self.worker_metrics = WorkerMetrics(self.registry, pages, worker)
        self.registry.gauge(
            "antiphon_worker_requests_total", "HTTP requests answered by each worker.",
            read=lambda: sum([requests.value for requests, _ in self._by_route.values()]), merge_mode="each",
        )  # fmt: skip

    def text(self) -> bytes:
        return self.registry.text() if self.worker_metrics is None else self.worker_metrics.text()


def _add_process_metrics(registry: Registry) -> None:
    """Register the process metrics, under the standard names of Prometheus clients."""
    started = time.time()

    def gauge(name: str, help: str, read: GaugeReader) -> None:
        registry.gauge(f"process_{name}", help, read=read, merge_mode="each")

    gauge("cpu_seconds_total", "CPU time used, in seconds.", time.process_time)
    gauge("resident_memory_bytes", "Resident memory, in bytes.", read_resident_bytes)
    gauge("virtual_memory_bytes", "Virtual memory, in bytes.", lambda: _read_memory(0))
    gauge("start_time_seconds", "Start time of the process, as a Unix time.", lambda: started)
    gauge("open_fds", "Open file descriptors.", _count_open_files)
    gauge("max_fds", "Maximum number of open file descriptors.", _get_max_files)


def read_resident_bytes() -> float | None:
    """Return the resident memory of this process; None if the system does not provide it."""
    return _read_memory(1)


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


def _get_max_files() -> float | None:
    limits = get_file_limits()
    return None if limits is None else limits[0]


class MeasuredProxy:
    """Measures the calls, durations and failures of a store or a live log; within a trace, each operation is a span.

    `subsystem` is the part of the metric names: `store` or `live`. The names of the coroutine methods are the values of
    the label `operation`; all other attributes pass through.
    """

    def __init__(self, inner: Any, subsystem: str, registry: Registry, tracer: Tracer | None = None) -> None:
        label = {"store": "the store", "live": "the live log"}[subsystem]
        self._inner = inner
        self._subsystem = subsystem
        self._tracer = tracer
        names, durations = ("operation",), f"Duration of operations of {label}."
        failures = f"Operations of {label} that failed because it was unavailable."
        seconds = f"antiphon_{subsystem}_operation_seconds"
        self._seconds = registry.histogram(seconds, durations, names, bounds=STORE_BOUNDS)
        self._failures = registry.counter(f"antiphon_{subsystem}_failures_total", failures, names)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not iscoroutinefunction(found):
            return found
        wrapped = self._wrap(name, found)
        setattr(self, name, wrapped)
        return wrapped

    def _wrap(self, name: str, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        seconds, failures = self._seconds[(name,)], self._failures[(name,)]
        tracer, span = self._tracer, f"{self._subsystem} {name}"

        async def operation(*args: Any, **kwargs: Any) -> Any:
            began = perf_counter()
            try:
                if tracer is None or CURRENT_SPAN.get() is None:
                    return await method(*args, **kwargs)
                with ActiveSpan(tracer, span, "client", {"db.operation.name": name}):
                    return await method(*args, **kwargs)
            except Unavailable:
                failures.value += 1.0
                raise
            finally:
                seconds.observe(perf_counter() - began)

        return operation

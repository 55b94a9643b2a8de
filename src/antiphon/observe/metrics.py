"""The series of the server, told of what happened in the words of the domain. Names are shaped as in vLLM."""

import platform
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from antiphon.observe.gauges import add_process
from antiphon.observe.multiprocess import Board, Joined
from antiphon.observe.prometheus import Counter, Histogram, Joining, Reading, Registry

# Seconds. A small model's first token takes a hundredth, a large one's under load a minute.
WAITS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
DURATIONS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0,
             300.0, 900.0, 3600.0)  # fmt: skip
PER_TOKEN = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)

_OPENNESS = {"closed": 0.0, "half-open": 0.5, "open": 1.0}


class TokenCounts(Protocol):
    """As the engine counted them."""

    @property
    def input_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...


class EngineState(Protocol):
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


class Metrics:
    """Later parts add series of their own to `registry`."""

    def __init__(self, version: str) -> None:
        self.registry = registry = Registry()
        self.joined: Joined | None = None  # if this process is one of several workers
        self._requests = registry.counter(
            "antiphon_requests_total", "HTTP requests, by route and status.", ("route", "status")
        )
        self._durations = registry.histogram(
            "antiphon_request_duration_seconds", "From a request's headers to the end of its reply.", ("route",),
            bounds=DURATIONS,
        )  # fmt: skip
        self._by_route: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        self._responses = registry.counter(
            "antiphon_responses_total", "Responses that came to an end, by status.", ("status",)
        )
        self._by_status: dict[str, Counter] = {}
        self._prompt = registry.counter("antiphon_prompt_tokens_total", "Tokens of prompts.")[()]
        self._cached = registry.counter("antiphon_cached_tokens_total", "Tokens of prompts found in a cache.")[()]
        self._generated = registry.counter("antiphon_generation_tokens_total", "Tokens generated.")[()]
        self._first = registry.histogram(
            "antiphon_time_to_first_token_seconds", "From a response's creation to its first token.", bounds=WAITS
        )[()]
        # Told how many seconds a work has waited when it has its turn at a model.
        self.waited: Callable[[float], None] = registry.histogram(
            "antiphon_request_queue_time_seconds", "For how long a work waited for its model.", bounds=WAITS
        )[()].observe
        self._per_token = registry.histogram(
            "antiphon_time_per_output_token_seconds", "Mean time between a response's tokens.", bounds=PER_TOKEN
        )[()]
        self._latency = registry.histogram(
            "antiphon_e2e_request_latency_seconds", "From a response's creation to its end.", bounds=DURATIONS
        )[()]
        self._insisted = registry.counter(
            "antiphon_insist_total",
            "Answers that were not what was asked for, by what was wrong and what came of it.",
            ("reason", "outcome"),
        )
        self._tool_calls = registry.counter(
            "antiphon_tool_calls_total",
            "Calls of tools that the server runs, by what came of them.",
            ("tool", "outcome"),
        )
        self._tool_seconds = registry.histogram(
            "antiphon_tool_call_duration_seconds", "How long calls of tools took that were run.", ("tool",),
            bounds=DURATIONS,
        )  # fmt: skip
        build: list[Reading] = [((version, platform.python_version()), 1.0)]
        registry.gauge("antiphon_build_info", "What runs.", ("version", "python"), read=lambda: build, joining="most")
        add_process(registry)

    def request_done(self, route: str, status: int, seconds: float) -> None:
        series = self._by_route.get((route, status))
        if series is None:
            series = self._requests[route, str(status)], self._durations[(route,)]
            self._by_route[route, status] = series
        requests, durations = series
        requests.value += 1.0
        durations.counts[bisect_left(DURATIONS, seconds)] += 1  # as `observe` does, here and below: everybody comes by
        durations.sum += seconds

    def response_done(self, status: str, counts: TokenCounts, ttft: float | None, duration: float) -> None:
        """A response came to its end. Both times, in seconds, begin at its creation; None: there was no token."""
        ended = self._by_status.get(status)
        if ended is None:
            ended = self._by_status[status] = self._responses[(status,)]
        ended.value += 1.0
        latency = self._latency
        latency.counts[bisect_left(DURATIONS, duration)] += 1
        latency.sum += duration
        self._prompt.value += counts.input_tokens
        self._cached.value += counts.cached_tokens
        self._generated.value += counts.output_tokens
        if ttft is not None:
            self._first.observe(ttft)
            if counts.output_tokens > 1:
                self._per_token.observe((duration - ttft) / (counts.output_tokens - 1))

    def insisted(self, reason: str, outcome: str) -> None:
        """A model did not do what was asked of it: it was mended, asked again, or given up."""
        self._insisted[reason, outcome].value += 1.0

    def tool_called(self, kind: str, outcome: str, seconds: float = 0.0) -> None:
        """The server ran something for a model, or did not."""
        self._tool_calls[kind, outcome].value += 1.0
        if outcome != "not_run":
            self._tool_seconds[(kind,)].observe(seconds)

    def watch_queue(self, running: Callable[[], int], waiting: Callable[[], int]) -> None:
        """Where to read how many responses are being generated, and how many wait for it."""
        self.registry.gauge(
            "antiphon_num_requests_running", "Responses being generated.", read=lambda: [((), float(running()))]
        )
        self.registry.gauge(
            "antiphon_num_requests_waiting", "Responses waiting for a slot.", read=lambda: [((), float(waiting()))]
        )

    def watch_sockets(self, count: Callable[[], int]) -> None:
        """Where to read how many WebSockets are open."""
        self.registry.gauge(
            "antiphon_websocket_connections", "WebSockets that are open.", read=lambda: [((), float(count()))]
        )

    def watch_pressure(self, stage: Callable[[], int], loads: Callable[[], Mapping[str, float]]) -> None:
        """Where to read how much is taken on, and what keeps it from being more."""
        self.registry.gauge(
            "antiphon_shedding_stage", "What is taken: 0 all, 1 no background work, 2 nothing new.",
            read=lambda: [((), float(stage()))], joining="most",
        )  # fmt: skip
        self.registry.gauge(
            "antiphon_pressure", "Loads; at 1 nothing new is taken.", ("cause",),
            read=lambda: [((name,), load) for name, load in loads().items()], joining="most",
        )  # fmt: skip

    def watch_quotas(
        self, refusals: Callable[[], Mapping[tuple[str, str], int]], shared: Callable[[], bool] | None
    ) -> None:
        """Where to read what was refused, and whether quotas are counted with other servers; None: there are none."""
        self.registry.gauge(
            "antiphon_quota_refusals_total", "Requests beyond a limit, by whose it is and which.", ("whose", "limit"),
            read=lambda: [(labels, float(count)) for labels, count in refusals().items()], kind="counter",
        )  # fmt: skip
        if shared is not None:
            self.registry.gauge(
                "antiphon_quotas_shared", "Whether quotas are counted together with other servers or workers.",
                read=lambda: [((), float(shared()))], joining="least",
            )  # fmt: skip

    def watch_engines(self, read: Callable[[], Iterable[EngineState]]) -> None:
        """Where to read how each engine does."""
        self.registry.gauge(
            "antiphon_engine_up",
            "Whether the engine of a model is healthy.",
            ("engine", "model"),
            read=lambda: [((one.name, model), float(one.healthy)) for one in read() for model in one.models or ("",)],
            joining="least",
        )
        self._gauge_engines("running", "Works that an engine has.", read, lambda one: one.running)
        self._gauge_engines(
            "draining", "Whether an engine gets no new work.", read, lambda one: one.draining, joining="most"
        )
        self._gauge_engines(
            "breaker", "Whether work is kept from an engine that failed: 1 open, 0.5 on trial.", read,
            lambda one: _OPENNESS[one.breaker], joining="most",
        )  # fmt: skip
        self._gauge_engines(
            "works_total", "Works that an engine was given.", read, lambda one: one.works, kind="counter"
        )
        self._gauge_engines(
            "failures_total", "Works that an engine failed at by its own fault.", read, lambda one: one.failures,
            kind="counter",
        )  # fmt: skip

    def _gauge_engines(
        self,
        name: str,
        help: str,
        read: Callable[[], Iterable[EngineState]],
        value: Callable[[EngineState], float],
        kind: str = "gauge",
        joining: Joining = "sum",
    ) -> None:
        self.registry.gauge(
            f"antiphon_engine_{name}",
            help,
            ("engine",),
            read=lambda: [((one.name,), float(value(one))) for one in read()],
            kind=kind,
            joining=joining,
        )

    def join(self, board: Board, worker: int) -> None:
        """From now on `text` is of all workers, of whom this is one."""
        self.joined = Joined(self.registry, board, worker)
        self.registry.gauge(
            "antiphon_worker_requests_total", "HTTP requests that each worker answered.",
            read=lambda: [((), sum([requests.value for requests, _ in self._by_route.values()]))], kind="counter",
            joining="each",
        )  # fmt: skip

    def text(self) -> bytes:
        return self.registry.text() if self.joined is None else self.joined.text()

"""The rows that are compared with other gateways: the same requests to all of them, over the same fake engine."""

from collections.abc import Iterator
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from bench.harness.canned_answers import TOKENS
from bench.harness.gateways import OURS, REFUSED_FIELDS
from bench.harness.load import CHAT_TOKEN, Load, LoadCounts
from bench.harness.measure import bytes_per_stream, measure_cpu
from bench.harness.process_meter import rss_bytes
from bench.harness.servers import Server
from bench.harness.traffic import Traffic, TrafficKind

RESPONSES, CHAT = "/v1/responses", "/v1/chat/completions"
FAIR_STREAMS = {32: 30, 128: 10, 512: 4}  # answers per connection
HELD_STREAMS = 500
MIB = 1024 * 1024
_MISSED_SHARE = 0.001  # of the tokens may be missed: a peer may split one by the head of an HTTP chunk

Figures = dict[str, float]  # by the key of their line


class Line(Struct, frozen=True, kw_only=True):
    """One line of the table, by the key of its figure. The goal limits the ratio to smg, or our figure itself."""

    key: str
    title: str
    goal: float | None = None
    is_ratio: bool = True


class Case(Protocol):
    """What is measured together, with one server at a time; `row` selects it on the command line."""

    @property
    def row(self) -> str: ...

    @property
    def lines(self) -> tuple[Line, ...]: ...

    def measure(self, gateway: str, server: Server, round_number: int) -> Figures: ...


class LoadCase(Struct, frozen=True, kw_only=True):
    """A load, and the CPU time of the server per token (µs) or per request (ms), and the times of the answers."""

    row: str
    lines: tuple[Line, ...]
    load: Load  # without port and seed
    per_token: bool = False

    def measure(self, gateway: str, server: Server, round_number: int) -> Figures:
        seed, omit = f"{self.row} {round_number}", REFUSED_FIELDS.get(gateway, ())
        traffic = replace(self.load.traffic, seed=seed, omit=omit)
        nanoseconds, (counted,) = measure_cpu(server, replace(self.load, port=server.port, traffic=traffic))
        self._check(counted, 0.0 if gateway == OURS else _MISSED_SHARE)
        cpu = nanoseconds / counted.tokens / 1e3 if self.per_token else nanoseconds / counted.requests / 1e6
        figures = {"cpu": cpu, "failed": float(counted.failed)}
        for name, (p50, p99) in (("latency", counted.latency), ("first", counted.first), ("transit", counted.transit)):
            figures |= {f"{name}_p50": p50, f"{name}_p99": p99}
        fewest, most = counted.answers
        spread = figures["latency_p99"] / figures["latency_p50"]
        return {**figures, "spread": spread, "unfairness": most / max(1, fewest)}

    def _check(self, counted: LoadCounts, may_miss: float) -> None:
        load = self.load
        expected = (counted.requests - counted.failed) * TOKENS[load.traffic.model] if load.traffic.stream else 0
        all_answered = counted.requests == load.connections * load.requests
        if not all_answered or not 0 <= expected - counted.tokens <= expected * may_miss:
            raise RuntimeError(f"{self.row}: {counted.requests} answers and {counted.tokens} tokens arrived")


class MemoryCase(Struct, frozen=True, kw_only=True):
    """Memory of a server that has answered one request, and of each of its live streams."""

    row: str = "memory"
    lines: tuple[Line, ...] = (
        Line(key="idle", title="idle: RSS MiB", goal=58.0, is_ratio=False),
        Line(key="stream", title=f"{HELD_STREAMS} live streams: RSS kB/stream", goal=40.0, is_ratio=False),
    )

    def measure(self, gateway: str, server: Server, round_number: int) -> Figures:
        idle = rss_bytes(server.pid) / MIB
        load = _make_load("identical", "held", HELD_STREAMS, 1, stream=True)
        # Streams that were there before would leave memory for these: only the code is warm.
        measure_cpu(
            server, replace(load, traffic=Traffic(kind="identical", model="brief"), connections=1, port=server.port)
        )
        return {"idle": idle, "stream": bytes_per_stream(server, replace(load, port=server.port, hold=True)) / 1000}


def make_cases() -> list[Case]:
    """Return the cases; the first one needs servers that have not worked yet."""
    streams = _make_load("identical", "long", 32, 6, stream=True)
    chats = replace(_make_load("chat", "long", 32, 6, stream=True), path=CHAT, token=CHAT_TOKEN)
    return [
        MemoryCase(),
        *_make_json_cases("identical", "identical requests", "brief", 24, 25),
        _make_cpu_case("identical-stream", "identical requests, streams of 256 tokens", streams, 0.4),
        _make_cpu_case("chat", "identical chat completions, streams of 256 tokens", chats, 0.6),
        *_make_json_cases("varied", "varied requests", "brief", 24, 25, goal=0.6),
        _make_cpu_case("varied-stream", "varied requests, streams of 128 tokens", _varied_streams(24, 25), 0.35),
        _make_agent_case(),
        *_make_json_cases("agent", "agent-sized requests", "short", 8, 10),
        *(_make_fair_case(streams, answers) for streams, answers in FAIR_STREAMS.items()),
        _make_first_case(),
        _make_paced_case(),
    ]


def _make_json_cases(
    kind: TrafficKind, title: str, model: str, connections: int, requests: int, goal: float | None = None
) -> Iterator[Case]:
    load = _make_load(kind, model, connections, requests)
    yield _make_cpu_case(f"{kind}-json", f"{title}, JSON", load, goal)
    stored = _make_load(kind, model, connections, requests, store=True)
    yield _make_cpu_case(f"{kind}-stored", f"{title}, JSON, stored", stored, goal)


def _make_cpu_case(row: str, title: str, load: Load, goal: float | None) -> Case:
    unit = "CPU µs/token" if load.traffic.stream else "CPU ms/request"
    line = Line(key="cpu", title=f"{title}: {unit}", goal=goal)
    return LoadCase(row=row, lines=(line,), load=load, per_token=load.traffic.stream)


def _make_agent_case() -> Case:
    line = Line(key="cpu", title="agent-sized requests, streams of 64 tokens: CPU ms/request", goal=0.5)
    return LoadCase(row="agent", lines=(line,), load=_make_load("agent", "short", 8, 10, stream=True))


def _make_fair_case(streams: int, answers: int) -> Case:
    """Varied streams that saturate the server; all connections are opened at once."""
    load = replace(_varied_streams(streams, answers), compete=True, may_fail=True)
    title = f"{streams} saturated streams"
    lines = (
        Line(key="latency_p50", title=f"{title}: latency p50 ms"),
        Line(key="latency_p99", title=f"{title}: latency p99 ms"),
        Line(key="spread", title=f"{title}: latency p99 / p50", goal=3.0, is_ratio=False),
        Line(key="first_p50", title=f"{title}: time to first token p50 ms", goal=1.5 if streams == 32 else None),
        Line(key="first_p99", title=f"{title}: time to first token p99 ms", goal=1.5),
        Line(key="failed", title=f"{title}: failed answers", goal=0.0, is_ratio=False),
        Line(key="unfairness", title=f"{title}: answers of a connection, most / fewest"),
    )
    return LoadCase(row=f"fair-{streams}", lines=lines, load=load, per_token=True)


def _make_first_case() -> Case:
    line = Line(key="first_p50", title="varied requests, one at a time: time to first token p50 ms")
    return LoadCase(row="first-token", lines=(line,), load=_make_load("varied", "brief", 1, 200, stream=True))


def _make_paced_case() -> Case:
    load = replace(_make_load("identical", "paced", 200, 1, stream=True), stamped=True, warm_up=0)
    title = "200 streams, a token every 20 ms"
    lines = (
        Line(key="cpu", title=f"{title}: CPU µs/token"),
        Line(key="transit_p50", title=f"{title}: transit p50 ms", goal=1.0),
        Line(key="transit_p99", title=f"{title}: transit p99 ms", goal=1.0),
    )
    return LoadCase(row="paced", lines=lines, load=load, per_token=True)


def _varied_streams(connections: int, requests: int) -> Load:
    return _make_load("varied", "medium", connections, requests, stream=True)


def _make_load(
    kind: TrafficKind, model: str, connections: int, requests: int, *, stream: bool = False, store: bool = False
) -> Load:
    return Load(
        port=0,
        path=RESPONSES,
        traffic=Traffic(kind=kind, model=model, stream=stream, store=store),
        connections=connections,
        requests=requests,
        warm_up=96 if kind == "varied" else 16,
    )

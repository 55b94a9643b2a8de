"""The measured cases: for each one the load on Antiphon and on the baseline, and the target for their ratio."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from bench.harness.load import Load
from bench.harness.measure import cpu_per_request_ms, cpu_per_token_us
from bench.harness.raw_asgi import JOINED
from bench.harness.servers import Server, run_antiphon, run_baseline
from bench.harness.traffic import Traffic

PATH = "/v1/responses"
JSON = Traffic(kind="identical", model="fake")
STREAM = replace(JSON, stream=True)
TOKENS = 400  # per answer: enough that the other events cost little
CONNECTIONS = (1, 32, 256)
JSON_CONNECTIONS, SOCKETS = 16, 32
TARGETS = {"one": 1.6, "ticking": 1.6, "joined": 3.0, "json": 2.0, "socket": 1.2}
_MODES = {
    "one": "tokens one by one",
    "joined": f"{JOINED} tokens at a time",
    "ticking": "one token per loop tick",
}


class Effort(Struct, frozen=True, kw_only=True):
    """The number of measurements."""

    rounds: int
    streams: int  # per measurement, at least one per connection
    requests: int  # per measurement of JSON
    stored: int  # responses in a full store


class Case(Struct, frozen=True, kw_only=True):
    """The same work for Antiphon and for the baseline."""

    name: str
    target: float | None
    ours: Server
    load: Load
    baseline: Server
    baseline_load: Load

    def measure(self) -> tuple[float, float]:
        """Measure Antiphon and the baseline, one directly after the other."""
        return _measure_cost(self.ours, self.load), _measure_cost(self.baseline, self.baseline_load)


Servers = dict[str, Server]  # Antiphon by how its fake engine sends tokens, and the baseline as `raw`


def make_cases(servers: Servers, effort: Effort) -> list[Case]:
    streams = [_make_stream_case(servers, effort, mode, number) for mode in _MODES for number in CONNECTIONS]
    load = _make_load(servers["plain"], JSON, JSON_CONNECTIONS, effort.requests)
    json_case = Case(
        name=f"JSON, {JSON_CONNECTIONS} connections: CPU ms/request",
        target=TARGETS["json"],
        ours=servers["plain"],
        load=load,
        baseline=servers["raw"],
        baseline_load=replace(load, port=servers["raw"].port, path="/json"),
    )
    return [*streams, json_case, *(_make_socket_case(servers, effort, mode) for mode in _MODES)]


def _make_stream_case(servers: Servers, effort: Effort, mode: str, connections: int) -> Case:
    ours = servers[mode]
    load = _make_load(ours, STREAM, connections, effort.streams)
    return Case(
        name=f"stream, {_MODES[mode]}, {connections} connections: CPU µs/token",
        target=TARGETS[mode],
        ours=ours,
        load=load,
        baseline=servers["raw"],
        baseline_load=replace(load, port=servers["raw"].port, path=f"/{mode}"),
    )


def _make_socket_case(servers: Servers, effort: Effort, mode: str) -> Case:
    """Compare the cost per token over a WebSocket with the same answer as server-sent events."""
    ours = servers[mode]
    load = _make_load(ours, STREAM, SOCKETS, effort.streams)
    return Case(
        name=f"WebSocket, {_MODES[mode]}, {SOCKETS} connections (baseline: our SSE): CPU µs/token",
        target=TARGETS["socket"],
        ours=ours,
        load=replace(load, module="bench.harness.websocket_load"),
        baseline=ours,
        baseline_load=load,
    )


def _make_load(server: Server, traffic: Traffic, connections: int, requests: int) -> Load:
    each = max(1, requests // connections)
    return Load(port=server.port, path=PATH, traffic=traffic, connections=connections, requests=each)


def _measure_cost(server: Server, load: Load) -> float:
    if load.traffic.stream:
        return cpu_per_token_us(server, load, load.connections * load.requests * TOKENS)
    return cpu_per_request_ms(server, load)


@contextlib.contextmanager
def run_servers() -> Iterator[Servers]:
    """Run Antiphon as each case needs it, and the baseline, which repeats the answers of Antiphon."""
    with contextlib.ExitStack() as stack:
        tokens = ("--fake-tokens", str(TOKENS))
        flags = {
            "plain": (),
            "one": tokens,
            "joined": (*tokens, "--fake-joined", str(JOINED)),
            "ticking": (*tokens, "--fake-burst", "1"),
        }
        servers = {name: stack.enter_context(run_antiphon(*options)) for name, options in flags.items()}
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "stream").write_bytes(servers["one"].post(PATH, STREAM.make_bodies(1)[0]))
        (folder / "json").write_bytes(servers["plain"].post(PATH, JSON.make_bodies(1)[0]))
        yield {**servers, "raw": stack.enter_context(run_baseline(folder))}

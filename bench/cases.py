"""The measured cases: for each one the load on Antiphon and on the baseline, and the target for their ratio."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from bench.harness.load import Load
from bench.harness.process_meter import rss_bytes
from bench.harness.raw_asgi import JOINED
from bench.harness.servers import Server, run_antiphon, run_baseline

PATH = "/v1/responses"
STREAM = '{"model":"fake","input":"hi","stream":true,"store":false}'
JSON = '{"model":"fake","input":"hi","store":false}'
TOKENS = 400  # per answer: enough that the other events cost little
CONNECTIONS = (1, 32, 256)
JSON_CONNECTIONS = 16
_MODES = {
    "one": "tokens one by one",
    "joined": f"{JOINED} tokens at a time",
    "ticking": "one token per loop tick",
}
TARGETS = {"one": 1.6, "ticking": 1.6, "joined": 3.0, "json": 2.0, "idle": 58.0}


class Effort(Struct, frozen=True, kw_only=True):
    """The number of measurements."""

    rounds: int
    streams: int  # per measurement, at least one per connection
    requests: int  # per measurement of JSON
    held: int
    stored: int  # responses in a full store


class Case(Struct, frozen=True, kw_only=True):
    """The same work for Antiphon and for the baseline."""

    name: str
    target: float | None
    ours: Server
    raw: Server
    load: Load  # on Antiphon; the baseline has another path and port
    raw_path: str
    streams: bool = True


class Servers(Struct, frozen=True, kw_only=True):
    plain: Server
    one: Server
    joined: Server
    ticking: Server
    slow: Server
    raw: Server
    idle_bytes: int


def make_cases(servers: Servers, effort: Effort) -> list[Case]:
    stream_cases = [
        _make_stream_case(servers, effort, mode, connections) for mode in _MODES for connections in CONNECTIONS
    ]
    load = make_load(servers.plain, JSON, JSON_CONNECTIONS, effort.requests)
    return [
        *stream_cases,
        Case(
            name=f"JSON, {JSON_CONNECTIONS} connections: CPU ms/request",
            target=TARGETS["json"],
            ours=servers.plain,
            raw=servers.raw,
            load=load,
            raw_path="/json",
            streams=False,
        ),
    ]


def _make_stream_case(servers: Servers, effort: Effort, mode: str, connections: int) -> Case:
    ours: Server = getattr(servers, mode)
    return Case(
        name=f"stream, {_MODES[mode]}, {connections} connections: CPU µs/token",
        target=TARGETS.get(mode),
        ours=ours,
        raw=servers.raw,
        load=make_load(ours, STREAM, connections, effort.streams),
        raw_path=f"/{mode}",
    )


def make_held_load(servers: Servers, effort: Effort) -> Load:
    return Load(port=servers.slow.port, path=PATH, body=STREAM, connections=effort.held, requests=1, hold=True)


def make_load(server: Server, body: str, connections: int, requests: int) -> Load:
    each = max(1, requests // connections)
    return Load(port=server.port, path=PATH, body=body, connections=connections, requests=each)


@contextlib.contextmanager
def run_servers() -> Iterator[Servers]:
    """Run Antiphon as each case needs it, and the baseline, which repeats the answers of Antiphon."""
    with contextlib.ExitStack() as stack:
        plain = stack.enter_context(run_antiphon())
        idle_bytes = rss_bytes(plain.pid)
        tokens = ("--fake-tokens", str(TOKENS))
        one = stack.enter_context(run_antiphon(*tokens))
        joined = stack.enter_context(run_antiphon(*tokens, "--fake-joined", str(JOINED)))
        ticking = stack.enter_context(run_antiphon(*tokens, "--fake-burst", "1"))
        slow = stack.enter_context(run_antiphon("--fake-tokens", "1000", "--fake-rate", "0.5"))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "stream").write_bytes(one.post(PATH, STREAM))
        (folder / "json").write_bytes(plain.post(PATH, JSON))
        raw = stack.enter_context(run_baseline(folder))
        yield Servers(plain=plain, one=one, joined=joined, ticking=ticking, slow=slow, raw=raw, idle_bytes=idle_bytes)

"""What is measured: for each case the load on our server and on the yardstick, and the target for their ratio."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from bench.harness.load import Load
from bench.harness.process_meter import rss_bytes
from bench.harness.raw_asgi import JOINED
from bench.harness.servers import Server, antiphon, yardstick

PATH = "/v1/responses"
STREAM = '{"model":"fake","input":"hi","stream":true,"store":false}'
JSON = '{"model":"fake","input":"hi","store":false}'
TOKENS = 400  # of each answer: enough that the events around them weigh little
AT_ONCE = (1, 32, 256)
JSON_CONNECTIONS = 16
_WAYS = {
    "one": "tokens one by one",
    "joined": f"{JOINED} tokens at a time",
    "ticking": "one token per loop tick",
}
TARGETS = {"one": 1.6, "ticking": 1.6, "joined": 3.0, "json": 2.0, "idle": 58.0}


class Effort(Struct, frozen=True, kw_only=True):
    """How much to measure."""

    rounds: int
    streams: int  # of each measurement, at least one for each connection
    requests: int  # of each measurement of JSON
    held: int
    stored: int  # responses that a full store has


class Case(Struct, frozen=True, kw_only=True):
    """The same work for our server and for the yardstick."""

    name: str
    target: float | None
    ours: Server
    raw: Server
    load: Load  # on our server; on the yardstick its path and port differ
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


def cases(servers: Servers, effort: Effort) -> list[Case]:
    found = [_stream_case(servers, effort, way, connections) for way in _WAYS for connections in AT_ONCE]
    load = load_on(servers.plain, JSON, JSON_CONNECTIONS, effort.requests)
    return [
        *found,
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


def _stream_case(servers: Servers, effort: Effort, way: str, connections: int) -> Case:
    ours: Server = getattr(servers, way)
    return Case(
        name=f"stream, {_WAYS[way]}, {connections} connections: CPU µs/token",
        target=TARGETS.get(way),
        ours=ours,
        raw=servers.raw,
        load=load_on(ours, STREAM, connections, effort.streams),
        raw_path=f"/{way}",
    )


def held(servers: Servers, effort: Effort) -> Load:
    return Load(port=servers.slow.port, path=PATH, body=STREAM, connections=effort.held, requests=1, hold=True)


def load_on(server: Server, body: str, connections: int, requests: int) -> Load:
    each = max(1, requests // connections)
    return Load(port=server.port, path=PATH, body=body, connections=connections, requests=each)


@contextlib.contextmanager
def started() -> Iterator[Servers]:
    """Ours as each case needs it, and the yardstick, which repeats what ours answered."""
    with contextlib.ExitStack() as running:
        plain = running.enter_context(antiphon())
        idle_bytes = rss_bytes(plain.pid)
        tokens = ("--fake-tokens", str(TOKENS))
        one = running.enter_context(antiphon(*tokens))
        joined = running.enter_context(antiphon(*tokens, "--fake-joined", str(JOINED)))
        ticking = running.enter_context(antiphon(*tokens, "--fake-burst", "1"))
        slow = running.enter_context(antiphon("--fake-tokens", "1000", "--fake-rate", "0.5"))
        folder = Path(running.enter_context(tempfile.TemporaryDirectory()))
        (folder / "stream").write_bytes(one.post(PATH, STREAM))
        (folder / "json").write_bytes(plain.post(PATH, JSON))
        raw = running.enter_context(yardstick(folder))
        yield Servers(plain=plain, one=one, joined=joined, ticking=ticking, slow=slow, raw=raw, idle_bytes=idle_bytes)

"""Cases that are compared with another gateway: the same requests to both, over the same fake engine."""

from msgspec import Struct
from msgspec.structs import replace

from bench.harness.canned_answers import BRIEF, JOINED, PACED, TOKENS
from bench.harness.load import CHAT_TOKEN, TOKEN, Load
from bench.harness.measure import measure_cpu
from bench.harness.servers import Server

RESPONSES, CHAT = "/v1/responses", "/v1/chat/completions"
STREAMS, PACED_STREAMS, JSON_CONNECTIONS = 32, 200, 16
_MISSED_SHARE = 1000  # one of so many tokens may be missed: a peer may split it by the head of an HTTP chunk


class Effort(Struct, frozen=True, kw_only=True):
    """The number of measurements."""

    rounds: int
    streams: int  # per connection
    requests: int  # per connection
    firsts: int
    held: int


class Figures(Struct, frozen=True):
    """Results of one server in one round: CPU time per token (µs) or request (ms), and times (ms) if they are
    measured.
    """

    cpu: float
    p50_ms: float
    p99_ms: float


class PeerCase(Struct, frozen=True, kw_only=True):
    name: str
    load: Load  # with the port of the server
    tokens: int = 0  # per answer; 0: measured per request
    target: float | None = None
    transit: float | None = None  # target for the p99 of the transit time, if it is measured
    peer_done: bool = False  # whether the peer's streams end with [DONE]; OpenAI's Responses streams do not

    def measure(self, server: Server, ours: bool) -> Figures:
        done = ours or self.peer_done
        load = replace(self.load, port=server.port, done=done)
        nanoseconds, counted = measure_cpu(server, load)
        answers = load.connections * load.requests
        missed = answers * self.tokens - counted.tokens if self.tokens else 0
        if counted.requests != answers or not 0 <= missed <= (0 if ours else answers * self.tokens // _MISSED_SHARE):
            raise RuntimeError(f"{self.name}: {counted.requests} answers and {counted.tokens} tokens arrived")
        cpu = nanoseconds / counted.tokens / 1e3 if self.tokens else nanoseconds / counted.requests / 1e6
        return Figures(cpu, counted.p50_ms, counted.p99_ms)


def make_cases(effort: Effort) -> list[PeerCase]:
    return [
        _make_stream_case("one", f"stream, saturated, {STREAMS} connections: CPU µs/token", effort, 0.45),
        _make_stream_case("joined", f"stream, bursts of {JOINED}, {STREAMS} connections: CPU µs/token", effort, 1 / 3),
        PeerCase(
            name=f"stream, {PACED_STREAMS} connections, a token every 20 ms: CPU µs/token",
            load=replace(
                _make_load(RESPONSES, _make_body("paced", stream=True), PACED_STREAMS, 1), times="transit", warm=False
            ),
            tokens=PACED,
            target=0.9,
            transit=1.0,
        ),
        _make_json_case("brief", BRIEF, store=False, effort=effort, target=0.25),
        _make_json_case("one", TOKENS, store=False, effort=effort),
        _make_json_case("brief", BRIEF, store=True, effort=effort, target=1 / 3),
    ]


def make_chat_case(effort: Effort) -> PeerCase:
    body = '{"model":"one","messages":[{"role":"user","content":"hi"}],"stream":true}'
    return PeerCase(
        name=f"chat completions, saturated, {STREAMS} connections: CPU µs/token",
        load=replace(_make_load(CHAT, body, STREAMS, effort.streams), token=CHAT_TOKEN),
        tokens=TOKENS,
        target=0.6,
        peer_done=True,
    )


def make_first_load(effort: Effort, path: str = RESPONSES) -> Load:
    """Return sequential requests on one connection, each timed to its first token."""
    body = _make_body("first", stream=True)
    if path == CHAT:
        body = '{"model":"first","messages":[{"role":"user","content":"hi"}],"stream":true}'
    token = CHAT_TOKEN if path == CHAT else TOKEN
    return replace(_make_load(path, body, 1, effort.firsts), times="first", token=token)


def make_held_load(effort: Effort) -> Load:
    return replace(_make_load(RESPONSES, _make_body("held", stream=True), effort.held, 1), hold=True)


def _make_stream_case(model: str, name: str, effort: Effort, target: float) -> PeerCase:
    load = _make_load(RESPONSES, _make_body(model, stream=True), STREAMS, effort.streams)
    return PeerCase(name=name, load=load, tokens=TOKENS, target=target)


def _make_json_case(model: str, tokens: int, *, store: bool, effort: Effort, target: float | None = None) -> PeerCase:
    storage = ", stored (ours in a file, smg's in memory)" if store else ""
    return PeerCase(
        name=f"JSON of {tokens} tokens{storage}, {JSON_CONNECTIONS} connections: CPU ms/request",
        load=_make_load(RESPONSES, _make_body(model, store=store), JSON_CONNECTIONS, effort.requests),
        target=target,
    )


def _make_load(path: str, body: str, connections: int, requests: int) -> Load:
    return Load(port=0, path=path, body=body, connections=connections, requests=requests)


def _make_body(model: str, *, stream: bool = False, store: bool = False) -> str:
    return f'{{"model":"{model}","input":"hi","stream":{str(stream).lower()},"store":{str(store).lower()}}}'

"""What is measured next to another gateway: the same requests to both, over the same fake engine."""

from msgspec import Struct
from msgspec.structs import replace

from bench.harness.canned_answers import BRIEF, JOINED, PACED, TOKENS
from bench.harness.load import CHAT_TOKEN, TOKEN, Load
from bench.harness.measure import spent
from bench.harness.servers import Server

RESPONSES, CHAT = "/v1/responses", "/v1/chat/completions"
STREAMS, PACED_STREAMS, JSON_CONNECTIONS = 32, 200, 16
_CUT = 1000  # one of so many tokens may be cut in two by a peer that puts an HTTP chunk's head in its middle


class Effort(Struct, frozen=True, kw_only=True):
    """How much to measure."""

    rounds: int
    streams: int  # of each connection
    requests: int  # of each connection
    firsts: int
    held: int


class Figures(Struct, frozen=True):
    """Of one server in one round: CPU per token (µs) or per request (ms), and times (ms) where they are taken."""

    cpu: float
    p50_ms: float
    p99_ms: float


class PeerCase(Struct, frozen=True, kw_only=True):
    name: str
    load: Load  # its port is the server's
    tokens: int = 0  # of each answer; 0: it is counted by requests
    target: float | None = None
    transit: float | None = None  # the target for the slowest tokens, where they are timed
    peer_done: bool = False  # whether the peer's streams end with [DONE]; Responses of OpenAI's do not

    def measure(self, server: Server, ours: bool) -> Figures:
        done = ours or self.peer_done
        load = replace(self.load, port=server.port, done=done)
        nanoseconds, counted = spent(server, load)
        answers = load.connections * load.requests
        missed = answers * self.tokens - counted.tokens if self.tokens else 0
        if counted.requests != answers or not 0 <= missed <= (0 if ours else answers * self.tokens // _CUT):
            raise RuntimeError(f"{self.name}: {counted.requests} answers and {counted.tokens} tokens came")
        cpu = nanoseconds / counted.tokens / 1e3 if self.tokens else nanoseconds / counted.requests / 1e6
        return Figures(cpu, counted.p50_ms, counted.p99_ms)


def cases(effort: Effort) -> list[PeerCase]:
    return [
        _streams("one", f"stream, saturated, {STREAMS} connections: CPU µs/token", effort, 0.45),
        _streams("joined", f"stream, bursts of {JOINED}, {STREAMS} connections: CPU µs/token", effort, 1 / 3),
        PeerCase(
            name=f"stream, {PACED_STREAMS} connections, a token every 20 ms: CPU µs/token",
            load=replace(_load(RESPONSES, _body("paced", stream=True), PACED_STREAMS, 1), times="transit", warm=False),
            tokens=PACED,
            target=0.9,
            transit=1.0,
        ),
        _json("brief", BRIEF, store=False, effort=effort, target=0.25),
        _json("one", TOKENS, store=False, effort=effort),
        _json("brief", BRIEF, store=True, effort=effort, target=1 / 3),
    ]


def chat_case(effort: Effort) -> PeerCase:
    body = '{"model":"one","messages":[{"role":"user","content":"hi"}],"stream":true}'
    return PeerCase(
        name=f"chat completions, saturated, {STREAMS} connections: CPU µs/token",
        load=replace(_load(CHAT, body, STREAMS, effort.streams), token=CHAT_TOKEN),
        tokens=TOKENS,
        target=0.6,
        peer_done=True,
    )


def first_load(effort: Effort, path: str = RESPONSES) -> Load:
    """One after the other on one connection, each timed to its first token."""
    body = _body("first", stream=True)
    if path == CHAT:
        body = '{"model":"first","messages":[{"role":"user","content":"hi"}],"stream":true}'
    token = CHAT_TOKEN if path == CHAT else TOKEN
    return replace(_load(path, body, 1, effort.firsts), times="first", token=token)


def held_load(effort: Effort) -> Load:
    return replace(_load(RESPONSES, _body("held", stream=True), effort.held, 1), hold=True)


def _streams(model: str, name: str, effort: Effort, target: float) -> PeerCase:
    load = _load(RESPONSES, _body(model, stream=True), STREAMS, effort.streams)
    return PeerCase(name=name, load=load, tokens=TOKENS, target=target)


def _json(model: str, tokens: int, *, store: bool, effort: Effort, target: float | None = None) -> PeerCase:
    kept = ", stored (ours in a file, smg's in memory)" if store else ""
    return PeerCase(
        name=f"JSON of {tokens} tokens{kept}, {JSON_CONNECTIONS} connections: CPU ms/request",
        load=_load(RESPONSES, _body(model, store=store), JSON_CONNECTIONS, effort.requests),
        target=target,
    )


def _load(path: str, body: str, connections: int, requests: int) -> Load:
    return Load(port=0, path=path, body=body, connections=connections, requests=requests)


def _body(model: str, *, stream: bool = False, store: bool = False) -> str:
    return f'{{"model":"{model}","input":"hi","stream":{str(stream).lower()},"store":{str(store).lower()}}}'

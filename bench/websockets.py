"""Cost per token over a WebSocket, compared with the same answer as server-sent events."""

import msgspec

from bench.cases import STREAM, TOKENS, Effort, Servers, make_load
from bench.harness.measure import cpu_per_token_us, median
from bench.harness.raw_asgi import JOINED
from bench.harness.servers import Server
from bench.harness.table import Row

CONNECTIONS = 32
TARGET = 1.2
_MODES = {"one": "tokens one by one", "joined": f"{JOINED} tokens at a time", "ticking": "one token per loop tick"}


class WebSocketBenchmark:
    """Samples of each mode, one per round."""

    def __init__(self, servers: Servers, effort: Effort) -> None:
        self._servers = servers
        self._effort = effort
        self._samples: dict[str, list[tuple[float, float]]] = {mode: [] for mode in _MODES}

    def sample(self) -> None:
        for mode, taken in self._samples.items():
            server: Server = getattr(self._servers, mode)
            taken.append((self._cost(server, socket=True), self._cost(server, socket=False)))

    def rows(self) -> list[Row]:
        return [self._row(mode, taken) for mode, taken in self._samples.items()]

    def _cost(self, server: Server, socket: bool) -> float:
        load = msgspec.structs.replace(
            make_load(server, STREAM, CONNECTIONS, self._effort.streams),
            module="bench.harness.websocket_load" if socket else "bench.harness.load",
        )
        return cpu_per_token_us(server, load, load.connections * load.requests * TOKENS)

    def _row(self, mode: str, samples: list[tuple[float, float]]) -> Row:
        ours, as_events = (median(list(column)) for column in zip(*samples, strict=True))
        name = f"WebSocket, {_MODES[mode]}, {CONNECTIONS} connections (baseline: our SSE): CPU µs/token"
        return Row(name=name, ours=ours, baseline=as_events, target=TARGET)

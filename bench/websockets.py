"""What a token costs over a WebSocket, beside the same answer as a stream of server-sent events."""

import msgspec

from bench.cases import STREAM, TOKENS, Effort, Servers, load_on
from bench.harness.measure import cpu_per_token_us, median
from bench.harness.raw_asgi import JOINED
from bench.harness.servers import Server
from bench.harness.table import Row

CONNECTIONS = 32
TARGET = 1.2
_WAYS = {"one": "tokens one by one", "joined": f"{JOINED} tokens at a time", "ticking": "one token per loop tick"}


class Sockets:
    """Samples of each way, one in every round."""

    def __init__(self, servers: Servers, effort: Effort) -> None:
        self._servers = servers
        self._effort = effort
        self._taken: dict[str, list[tuple[float, float]]] = {way: [] for way in _WAYS}

    def sample(self) -> None:
        for way, taken in self._taken.items():
            server: Server = getattr(self._servers, way)
            taken.append((self._cost(server, socket=True), self._cost(server, socket=False)))

    def rows(self) -> list[Row]:
        return [self._row(way, taken) for way, taken in self._taken.items()]

    def _cost(self, server: Server, socket: bool) -> float:
        load = msgspec.structs.replace(
            load_on(server, STREAM, CONNECTIONS, self._effort.streams),
            module="bench.harness.websocket_load" if socket else "bench.harness.load",
        )
        return cpu_per_token_us(server, load, load.connections * load.requests * TOKENS)

    def _row(self, way: str, taken: list[tuple[float, float]]) -> Row:
        ours, as_events = (median(list(column)) for column in zip(*taken, strict=True))
        name = f"WebSocket, {_WAYS[way]}, {CONNECTIONS} connections (beside: our SSE): CPU µs/token"
        return Row(name=name, ours=ours, yardstick=as_events, target=TARGET)

"""What it costs that responses are kept, and that they are continued: each next to the same without, in the same round.

A chain's last turn is asked for again and again, as so many branches of it, and next to it the same prompt as one
request that keeps nothing. That the engine got all turns is seen by its own count of the prompt's tokens.
"""

from typing import Any

import msgspec

from bench.cases import JSON, JSON_CONNECTIONS, PATH, STREAM, TOKENS, Effort, Servers, load_on
from bench.harness.measure import cpu_per_request_ms, cpu_per_token_us, median
from bench.harness.process_meter import rss_bytes
from bench.harness.servers import Server
from bench.harness.table import Row

TURNS = 200
STREAM_CONNECTIONS = 32
CHAIN_CONNECTIONS = 4
TARGETS = {"json": 0.15, "chain": 0.3}
_SAYING = "What was said in the turns before this one, and what is to be said in this one?"
MIB = 1024 * 1024


class State:
    """Samples of all its figures, one of each in every round."""

    def __init__(self, servers: Servers, effort: Effort) -> None:
        self._servers = servers
        self._effort = effort
        self._json: list[float] = []
        self._streams: list[tuple[float, float]] = []
        self._chain: list[tuple[float, float]] = []
        self._continued, self._direct = chain(servers.plain)
        self._stored = 0
        self._rss: list[tuple[int, int]] = []  # responses stored so far, and bytes

    def sample(self) -> None:
        self._json.append(self._cost_of_storing())
        self._streams.append((self._stream(stored(STREAM)), self._stream(STREAM)))
        self._chain.append(self._costs_of_chain())
        self._rss.append((self._stored, rss_bytes(self._servers.plain.pid)))

    def rows(self) -> list[Row]:
        kept, plain = (median(list(column)) for column in zip(*self._streams, strict=True))
        return [
            Row(
                name="JSON stored in SQLite, beyond the unstored: CPU ms/request",
                ours=median(self._json),
                target=TARGETS["json"],
            ),
            Row(name=f"stream stored, {STREAM_CONNECTIONS} connections: CPU µs/token", ours=kept),
            Row(name="the same, unstored: CPU µs/token", ours=plain),
            Row(name=f"turn {TURNS} of a chain: CPU ms", ours=median([continued for continued, _ in self._chain])),
            Row(
                name="the same, beyond its whole prompt posted at once and unstored: CPU ms",
                ours=median([continued - direct for continued, direct in self._chain]),
                target=TARGETS["chain"],
            ),
            Row(name="RSS MiB for each 100,000 responses made", ours=self._growth()),
        ]

    def _cost_of_storing(self) -> float:
        asked = self._effort.requests
        self._stored += asked
        return self._request(stored(JSON), JSON_CONNECTIONS, asked) - self._request(JSON, JSON_CONNECTIONS, asked)

    def _stream(self, body: str) -> float:
        load = load_on(self._servers.one, body, STREAM_CONNECTIONS, self._effort.streams)
        return cpu_per_token_us(self._servers.one, load, load.connections * load.requests * TOKENS)

    def _costs_of_chain(self) -> tuple[float, float]:
        asked = max(CHAIN_CONNECTIONS, self._effort.requests // 16)
        continued, direct = (self._request(body, CHAIN_CONNECTIONS, asked) for body in (self._continued, self._direct))
        return continued, direct

    def _request(self, body: str, connections: int, asked: int) -> float:
        server = self._servers.plain
        return cpu_per_request_ms(server, load_on(server, body, connections, asked))

    def _growth(self) -> float:
        """From the second round on: the first one fills what is bounded anyway."""
        (first, low), (last, high) = self._rss[min(1, len(self._rss) - 1)], self._rss[-1]
        return (high - low) / MIB / max(1, last - first) * 100_000


def stored(body: str) -> str:
    return body.replace('"store":false', '"store":true')


def chain(server: Server) -> tuple[str, str]:
    """The bodies of a request for turn 200: one that continues turn 199, and one that says everything itself."""
    said: list[dict[str, Any]] = []
    previous = None
    for turn in range(1, TURNS):
        asked = {"role": "user", "content": f"{turn}: {_SAYING}"}
        answer = _post(server, {"model": "fake", "input": [asked], "previous_response_id": previous})
        said += [asked, {"role": "assistant", "content": answer["output"][0]["content"][0]["text"]}]
        previous = answer["id"]
    asked = {"role": "user", "content": f"{TURNS}: {_SAYING}"}
    continued = {"model": "fake", "input": [asked], "previous_response_id": previous}
    direct = {"model": "fake", "input": [*said, asked], "store": False}
    tokens = [_post(server, body)["usage"]["input_tokens"] for body in (continued, direct)]
    if tokens[0] != tokens[1]:
        raise RuntimeError(f"not all turns reached the engine: {tokens[0]} tokens of {tokens[1]}")
    return msgspec.json.encode(continued).decode(), msgspec.json.encode(direct).decode()


def _post(server: Server, body: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = msgspec.json.decode(server.post(PATH, msgspec.json.encode(body).decode()))
    return answer

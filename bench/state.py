"""Cost of storing and of continuing responses, each compared with the same request without it in the same round.

The last turn of a chain is requested repeatedly, as branches of it, and compared with the same prompt in one request
that is not stored. The engine's token count of the prompt verifies that it received all turns.
"""

from typing import Any

import msgspec

from bench.cases import JSON, JSON_CONNECTIONS, PATH, STREAM, TOKENS, Effort, Servers, make_load
from bench.harness.measure import cpu_per_request_ms, cpu_per_token_us, median
from bench.harness.process_meter import rss_bytes
from bench.harness.servers import Server
from bench.harness.table import Row

TURNS = 200
STREAM_CONNECTIONS = 32
CHAIN_CONNECTIONS = 4
TARGETS = {"json": 0.15, "chain": 0.3}
_PROMPT = "What was said in the turns before this one, and what is to be said in this one?"
MIB = 1024 * 1024


class StateBenchmark:
    """Samples of all figures, one of each per round."""

    def __init__(self, servers: Servers, effort: Effort) -> None:
        self._servers = servers
        self._effort = effort
        self._json: list[float] = []
        self._streams: list[tuple[float, float]] = []
        self._chain: list[tuple[float, float]] = []
        self._continued, self._direct = make_chain_bodies(servers.plain)
        self._stored = 0
        self._rss: list[tuple[int, int]] = []  # responses stored so far, and resident bytes

    def sample(self) -> None:
        self._json.append(self._measure_storing())
        self._streams.append((self._measure_stream(enable_store(STREAM)), self._measure_stream(STREAM)))
        self._chain.append(self._measure_chain())
        self._rss.append((self._stored, rss_bytes(self._servers.plain.pid)))

    def rows(self) -> list[Row]:
        stored_cost, unstored_cost = (median(list(column)) for column in zip(*self._streams, strict=True))
        return [
            Row(
                name="JSON stored in SQLite, minus unstored: CPU ms/request",
                ours=median(self._json),
                target=TARGETS["json"],
            ),
            Row(name=f"stream stored, {STREAM_CONNECTIONS} connections: CPU µs/token", ours=stored_cost),
            Row(name="the same, unstored: CPU µs/token", ours=unstored_cost),
            Row(name=f"turn {TURNS} of a chain: CPU ms", ours=median([continued for continued, _ in self._chain])),
            Row(
                name="the same, minus its full prompt in one unstored request: CPU ms",
                ours=median([continued - direct for continued, direct in self._chain]),
                target=TARGETS["chain"],
            ),
            Row(name="RSS MiB per 100,000 responses", ours=self._memory_growth()),
        ]

    def _measure_storing(self) -> float:
        requests = self._effort.requests
        self._stored += requests
        return self._measure_request(enable_store(JSON), JSON_CONNECTIONS, requests) - self._measure_request(
            JSON, JSON_CONNECTIONS, requests
        )

    def _measure_stream(self, body: str) -> float:
        load = make_load(self._servers.one, body, STREAM_CONNECTIONS, self._effort.streams)
        return cpu_per_token_us(self._servers.one, load, load.connections * load.requests * TOKENS)

    def _measure_chain(self) -> tuple[float, float]:
        requests = max(CHAIN_CONNECTIONS, self._effort.requests // 16)
        continued, direct = (
            self._measure_request(body, CHAIN_CONNECTIONS, requests) for body in (self._continued, self._direct)
        )
        return continued, direct

    def _measure_request(self, body: str, connections: int, requests: int) -> float:
        server = self._servers.plain
        return cpu_per_request_ms(server, make_load(server, body, connections, requests))

    def _memory_growth(self) -> float:
        """Return the growth from the second round on: the first round fills bounded caches."""
        (first, low), (last, high) = self._rss[min(1, len(self._rss) - 1)], self._rss[-1]
        return (high - low) / MIB / max(1, last - first) * 100_000


def enable_store(body: str) -> str:
    return body.replace('"store":false', '"store":true')


def make_chain_bodies(server: Server) -> tuple[str, str]:
    """Return two request bodies for turn 200: one that continues turn 199, and one with the full history."""
    history: list[dict[str, Any]] = []
    previous = None
    for turn in range(1, TURNS):
        message = {"role": "user", "content": f"{turn}: {_PROMPT}"}
        answer = _post(server, {"model": "fake", "input": [message], "previous_response_id": previous})
        history += [message, {"role": "assistant", "content": answer["output"][0]["content"][0]["text"]}]
        previous = answer["id"]
    message = {"role": "user", "content": f"{TURNS}: {_PROMPT}"}
    continued = {"model": "fake", "input": [message], "previous_response_id": previous}
    direct = {"model": "fake", "input": [*history, message], "store": False}
    tokens = [_post(server, body)["usage"]["input_tokens"] for body in (continued, direct)]
    if tokens[0] != tokens[1]:
        raise RuntimeError(f"not all turns reached the engine: {tokens[0]} tokens of {tokens[1]}")
    return msgspec.json.encode(continued).decode(), msgspec.json.encode(direct).decode()


def _post(server: Server, body: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = msgspec.json.decode(server.post(PATH, msgspec.json.encode(body).decode()))
    return answer

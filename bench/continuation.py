"""CPU time of a turn as its history grows: continued by `previous_response_id`, and sent with the whole history."""

import random
from typing import Any

import msgspec
from msgspec import Struct

from bench.harness.load import NUMBER, Load
from bench.harness.measure import cpu_per_request_ms
from bench.harness.servers import Server
from bench.harness.traffic import make_application, make_tool_output
from bench.peer_cases import RESPONSES, Figures, Line

TURNS = (4, 13, 43)  # of about 3,300 tokens: 13 K, 43 K and 142 K tokens of history
TOKENS_K = (13, 43, 142)
_CONNECTIONS, _REQUESTS = 4, 12

Json = dict[str, Any]


class ContinuationCase(Struct, frozen=True, kw_only=True):
    """A conversation with tools is stored turn by turn; the next turn is then measured as many branches of it."""

    row: str = "continuation"
    lines: tuple[Line, ...] = (
        *(Line(key=f"id {size}", title=f"by id, {size} K tokens of history: CPU ms/turn") for size in TOKENS_K),
        Line(key="id growth", title="by id: CPU ms/turn for each further 10 K tokens"),
        Line(key=f"whole {TOKENS_K[-1]}", title=f"whole history, {TOKENS_K[-1]} K tokens: CPU ms/turn"),
        Line(key="whole growth", title="whole history: CPU ms/turn for each further 10 K tokens"),
    )

    def measure(self, gateway: str, server: Server, round_number: int) -> Figures:
        figures: Figures = {}
        chain = _Chain(server, f"{gateway} {round_number}")
        for turns, size in zip(TURNS, TOKENS_K, strict=True):
            chain.extend(turns)
            figures[f"id {size}"] = _measure(server, chain.make_continuing_body())
            figures[f"whole {size}"] = _measure(server, chain.make_whole_body())
        for mode in ("id", "whole"):
            more = figures[f"{mode} {TOKENS_K[-1]}"] - figures[f"{mode} {TOKENS_K[0]}"]
            figures[f"{mode} growth"] = more / (TOKENS_K[-1] - TOKENS_K[0]) * 10
        return figures


class _Chain:
    """A stored conversation."""

    def __init__(self, server: Server, seed: str) -> None:
        self._server = server
        self._rng = random.Random(seed)
        self._fields = {"model": "brief", **make_application(0)}
        self._history: list[Json] = []
        self._previous: str | None = None

    def extend(self, turns: int) -> None:
        """Store turns until there are so many."""
        while len(self._history) < 2 * turns:
            message = {"type": "message", "role": "user", "content": make_tool_output(self._rng)}
            body = {**self._fields, "input": [message], "store": True}
            if self._previous is not None:
                body["previous_response_id"] = self._previous
            response: Json = msgspec.json.decode(self._server.post(RESPONSES, msgspec.json.encode(body).decode()))
            answer = response["output"][0]["content"][0]["text"]
            self._history += [message, {"type": "message", "role": "assistant", "content": answer}]
            self._previous = response["id"]

    def make_continuing_body(self) -> Json:
        return {**self._fields, "input": [_QUESTION], "previous_response_id": self._previous, "store": True}

    def make_whole_body(self) -> Json:
        return {**self._fields, "input": [*self._history, _QUESTION], "store": False}


_QUESTION = {"type": "message", "role": "user", "content": f"What is to be done next? {NUMBER}"}


def _measure(server: Server, body: Json) -> float:
    return cpu_per_request_ms(
        server,
        Load(
            port=server.port,
            path=RESPONSES,
            body=msgspec.json.encode(body).decode(),
            connections=_CONNECTIONS,
            requests=_REQUESTS,
        ),
    )

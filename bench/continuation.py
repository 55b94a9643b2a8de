"""CPU time of a turn as its history grows: continued by `previous_response_id`, and sent with the whole history."""

import random
from typing import Any

import msgspec
from msgspec import Struct

from bench.harness.load import Load
from bench.harness.measure import cpu_per_request_ms
from bench.harness.servers import Server
from bench.harness.traffic import Traffic, make_application, make_tool_output
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
            figures[f"id {size}"] = chain.measure_next(by_id=True)
            figures[f"whole {size}"] = chain.measure_next(by_id=False)
        for mode in ("id", "whole"):
            more = figures[f"{mode} {TOKENS_K[-1]}"] - figures[f"{mode} {TOKENS_K[0]}"]
            figures[f"{mode} growth"] = more / (TOKENS_K[-1] - TOKENS_K[0]) * 10
        return figures


class _Chain:
    """A stored conversation."""

    def __init__(self, server: Server, seed: str) -> None:
        self._server = server
        self._rng = random.Random(seed)
        self._fields = make_application(0)
        self._history: list[Json] = []
        self._previous: str | None = None

    def extend(self, turns: int) -> None:
        """Store turns until there are so many."""
        while len(self._history) < 2 * turns:
            message = {"type": "message", "role": "user", "content": make_tool_output(self._rng)}
            body = {"model": "brief", **self._fields, "input": [message], "store": True}
            if self._previous is not None:
                body["previous_response_id"] = self._previous
            response: Json = msgspec.json.decode(self._server.post(RESPONSES, msgspec.json.encode(body)))
            answer = response["output"][0]["content"][0]["text"]
            self._history += [message, {"type": "message", "role": "assistant", "content": answer}]
            self._previous = response["id"]

    def measure_next(self, *, by_id: bool) -> float:
        history = {"previous_response_id": self._previous} if by_id else {"input": self._history}
        traffic = Traffic(kind="numbered", model="brief", store=by_id, fields={**self._fields, **history})
        load = Load(
            port=self._server.port, path=RESPONSES, traffic=traffic, connections=_CONNECTIONS, requests=_REQUESTS
        )
        return cpu_per_request_ms(self._server, load)

"""A conversation of 20 turns with tools in three modes, one after the other in every round; prints one table of
medians.

Every request has to declare its tools again: they belong to the request, not to the response that it continues. The
fake engine reports how many tokens of a prompt a prefix cache would have contained, and does no prefill. Times are
therefore those of the server, and the work of an engine is given in tokens.
"""

import contextlib
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean, median
from typing import Any, Literal

import msgspec
from msgspec import Struct

from bench.harness.process_meter import cpu_ns
from bench.harness.servers import Server, run_antiphon
from bench.harness.table import render_grid
from bench.harness.websocket_frames import frame, head_size, payload_size, upgrade

Mode = Literal["socket", "chained", "whole"]
Json = dict[str, Any]

TURNS = 20
ROUNDS = 20
MODES: dict[Mode, str] = {
    "socket": "one WebSocket, previous_response_id, not stored",
    "chained": "HTTP, previous_response_id, stored",
    "whole": "HTTP, the full history each time, not stored",
}
_HEADS = (
    "KB sent", "first event: ms p50", "p95", "turn: ms p50", "CPU ms/turn", "prefill tokens: turn 1", "2 and later",
)  # fmt: skip
_LAST = "That was the last file."
_RULE = "Rule {}: read a file before you change it, keep changes small, and say what you did and what you did not do. "
_TOOL = "Tool {}: it runs in the workspace, needs no confirmation, and gives what it wrote to both of its streams. "
_LINE = "src/part_{}/module.py:{}: the name is used here, and again in the tests that belong to this part of it.\n"
_RULES, _TOOLS, _LINES = 200, 10, 30  # about 22 KB, 10 KB in total, 3 KB per output
_SCRIPT = f"""
[[reply]]
when = {{ output = "{_LAST}" }}
steps = [{{ say = ["I have read ", "all of them."] }}]

[[reply]]
steps = [{{ call = {{ name = "tool_0", arguments = {{ command = "grep -rn name src", seconds = 10 }}, chunks = 8 }} }}]
"""
_COMPLETED = b'{"type":"response.completed"'
_READ_BYTES = 1 << 18


class Turn(Struct, frozen=True, kw_only=True):
    sent: int  # bytes
    first_ms: float  # until the first event
    whole_ms: float
    prefill: int  # tokens of the prompt that were not in the engine's cache


class ConversationResult(Struct, frozen=True, kw_only=True):
    turns: list[Turn]
    cpu_ms: float  # CPU time of the server for all turns


def render_conversation_table(rounds: int = ROUNDS, turns: int = TURNS) -> str:
    results = measure_conversations(rounds, turns)
    title = f"a tool conversation of {turns} turns, {rounds} times (fake engine, which counts cached prefix tokens)"
    return render_grid((title, *_HEADS), [(MODES[mode], *_cells(each)) for mode, each in results.items()])


def measure_conversations(rounds: int, turns: int) -> dict[Mode, list[ConversationResult]]:
    """Run one conversation per mode and round; each mode is equally often the first of a round."""
    results: dict[Mode, list[ConversationResult]] = {mode: [] for mode in MODES}
    modes = [*MODES]
    with _run_server() as server:
        for number in range(-1, rounds):
            for mode in modes[number % 3 :] + modes[: number % 3]:
                result = _run_conversation(server, mode, f"{number} {mode}", turns)
                if number >= 0:  # the first round warms up
                    results[mode].append(result)
    return results


@contextlib.contextmanager
def _run_server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.toml"
        script.write_text(_SCRIPT)
        with run_antiphon("--fake-script", str(script)) as server:
            yield server


def _cells(results: list[ConversationResult]) -> tuple[str, ...]:
    # Times are taken from the fastest half, which had the least interference from other load.
    by_time = sorted(results, key=lambda result: sum(turn.whole_ms for turn in result.turns))
    turns = [turn for result in by_time[: (len(results) + 1) // 2] for turn in result.turns]
    firsts = sorted(turn.first_ms for turn in turns)
    return (
        f"{median(sum(turn.sent for turn in result.turns) for result in results) / 1e3:.0f}",
        f"{median(firsts):.2f}",
        f"{firsts[len(firsts) * 95 // 100]:.2f}",
        f"{median(turn.whole_ms for turn in turns):.2f}",
        f"{median(result.cpu_ms for result in results) / len(results[0].turns):.2f}",
        f"{mean(result.turns[0].prefill for result in results):,.0f}",
        f"{mean(turn.prefill for result in results for turn in result.turns[1:]):,.0f}",
    )


def _run_conversation(server: Server, mode: Mode, nonce: str, turns: int) -> ConversationResult:
    """Run one conversation on one connection. `nonce` makes it unique: the engine's cache contains nothing of it."""
    before, measured = cpu_ns(server.pid), []
    tools = [_make_tool(number, nonce) for number in range(_TOOLS)]
    fields = {"model": "fake", "stream": True, "store": mode == "chained", "parallel_tool_calls": False, "tools": tools}
    rules = "".join(_RULE.format(number) for number in range(_RULES))
    new = [_make_message("developer", f"Session {nonce}. {rules}"), _make_message("user", "Where is the name used?")]
    history, previous = list(new), None
    with _connect(server, mode) as connection:
        for number in range(1, turns + 1):
            links = {} if mode == "whole" else {"previous_response_id": previous}
            body = msgspec.json.encode({**fields, **links, "input": history if mode == "whole" else new})
            turn, response = _run_turn(connection, mode, body)
            measured.append(turn)
            if number < turns:
                new = [_make_output(response, number, last=number == turns - 1)]
                history += [*response["output"], *new]
                previous = response["id"]
    return ConversationResult(turns=measured, cpu_ms=(cpu_ns(server.pid) - before) / 1e6)


def _make_message(role: str, text: str) -> Json:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def _make_tool(number: int, nonce: str) -> Json:
    properties = {"command": {"type": "string", "description": _TOOL}, "seconds": {"type": "integer"}}
    parameters = {"type": "object", "properties": properties, "required": ["command"]}
    description = f"Of session {nonce}. {''.join(_TOOL.format(at) for at in range(7))}"
    return {"type": "function", "name": f"tool_{number}", "description": description, "parameters": parameters}


def _make_output(response: Json, turn: int, *, last: bool) -> Json:
    (call,) = [item for item in response["output"] if item["type"] == "function_call"]
    output = "".join(_LINE.format(turn, number) for number in range(_LINES)) + (_LAST if last else "")
    return {"type": "function_call_output", "call_id": call["call_id"], "output": output}


@contextlib.contextmanager
def _connect(server: Server, mode: Mode) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if mode == "socket":
            connection.sendall(upgrade(server.port))
            if not connection.recv(_READ_BYTES).startswith(b"HTTP/1.1 101"):
                raise RuntimeError("the WebSocket was refused")
        yield connection


def _run_turn(connection: socket.socket, mode: Mode, body: bytes) -> tuple[Turn, Json]:
    if mode == "socket":
        request, find_end = frame(b'{"type":"response.create",' + body[1:]), _find_message
    else:
        head = f"POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
        request, find_end = f"{head}Content-Type: application/json\r\n\r\n".encode() + body, _find_event
    start = time.perf_counter()
    connection.sendall(request)
    last, first = _read_answer(connection, find_end)
    ended = time.perf_counter()
    response = msgspec.json.decode(last)["response"]
    usage = response["usage"]
    prefill = usage["input_tokens"] - usage["input_tokens_details"]["cached_tokens"]
    turn = Turn(sent=len(request), first_ms=(first - start) * 1e3, whole_ms=(ended - start) * 1e3, prefill=prefill)
    return turn, response


def _read_answer(connection: socket.socket, find_end: Callable[[bytes], bytes | None]) -> tuple[bytes, float]:
    """Return the JSON of the last event, and the time of the first event."""
    received, first = b"", 0.0
    while (last := find_end(received)) is None:
        piece = connection.recv(_READ_BYTES)
        if not piece or b'"type":"error"' in piece:
            raise RuntimeError(f"the response did not complete: {(received + piece)[-500:]!r}")
        received += piece
        first = first or (time.perf_counter() if b"response.created" in received else 0.0)
    return last, first


def _find_event(received: bytes) -> bytes | None:
    """Find the last event of a chunked stream; the server writes an event into one chunk."""
    if not received.endswith(b"\r\n0\r\n\r\n"):
        return None
    at = received.index(b"data: " + _COMPLETED) + len("data: ")
    return received[at : received.index(b"\n\n", at)]


def _find_message(received: bytes) -> bytes | None:
    at = 0
    while (start := at + head_size(received, at)) <= len(received):
        at = start + payload_size(received, at)
        if received.startswith(_COMPLETED, start) and at <= len(received):
            return received[start:at]
    return None


if __name__ == "__main__":
    sys.stdout.write(f"{render_conversation_table()}\n")

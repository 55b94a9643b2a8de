"""A conversation of 20 turns with tools in three modes, one after the other in every round; prints one table of
medians.

The fake engine reports how many tokens of a prompt a prefix cache would have contained, and does no prefill. Times are
therefore those of the server, and the work of an engine is given in tokens.
"""

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median

import msgspec

from bench.harness.conversation_script import SCRIPT, Mode
from bench.harness.servers import LOAD_CORE, Server, pin, run_antiphon
from bench.harness.table import render_grid
from bench.harness.turns import ConversationLoad, ConversationResult, Turn

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


def render_conversation_table(rounds: int = ROUNDS, turns: int = TURNS) -> str:
    results = measure_conversations(rounds, turns)
    title = f"a tool conversation of {turns} turns, {rounds} times (fake engine, which counts cached prefix tokens)"
    return render_grid(
        (title, *_HEADS),
        [(MODES[mode], *_cells(conversations_of_mode)) for mode, conversations_of_mode in results.items()],
    )


def measure_conversations(rounds: int, turns: int) -> dict[Mode, list[ConversationResult]]:
    """Run one conversation per mode and round; each mode is equally often the first of a round."""
    results: dict[Mode, list[ConversationResult]] = {mode: [] for mode in MODES}
    modes = [*MODES]
    with _server() as server:
        for number in range(-1, rounds):
            for mode in modes[number % 3 :] + modes[: number % 3]:
                result = _run_conversation(server, mode, f"{number} {mode}", turns)
                if number >= 0:  # the first round warms up
                    results[mode].append(result)
    return results


@contextlib.contextmanager
def _server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.toml"
        script.write_text(SCRIPT)
        with run_antiphon("--fake-script", str(script)) as server:
            yield server


def _run_conversation(server: Server, mode: Mode, nonce: str, turns: int) -> ConversationResult:
    argument = ConversationLoad(port=server.port, pid=server.pid, mode=mode, nonce=nonce, turns=turns)
    command = [sys.executable, "-m", "bench.harness.turns", msgspec.json.encode(argument).decode()]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=120, preexec_fn=lambda: pin(LOAD_CORE))
    return msgspec.json.decode(done.stdout, type=ConversationResult)


def _cells(results: list[ConversationResult]) -> tuple[str, ...]:
    turns = [turn for result in _fastest_half(results) for turn in result.turns]
    firsts = sorted(turn.first_ms for turn in turns)
    later = [turn.prefill for result in results for turn in result.turns[1:]]
    return (
        f"{median(_sent_bytes(result.turns) for result in results) / 1e3:.0f}",
        f"{median(firsts):.2f}",
        f"{firsts[len(firsts) * 95 // 100]:.2f}",
        f"{median(turn.whole_ms for turn in turns):.2f}",
        f"{median(result.cpu_ms for result in results) / len(results[0].turns):.2f}",
        f"{mean(result.turns[0].prefill for result in results):,.0f}",
        f"{mean(later):,.0f}",
    )


def _fastest_half(results: list[ConversationResult]) -> list[ConversationResult]:
    """Return the fastest half, which had the least interference from other load; times are taken from it."""
    return sorted(results, key=lambda result: sum(turn.whole_ms for turn in result.turns))[: (len(results) + 1) // 2]


def _sent_bytes(turns: list[Turn]) -> int:
    return sum(turn.sent for turn in turns)


if __name__ == "__main__":
    sys.stdout.write(f"{render_conversation_table()}\n")

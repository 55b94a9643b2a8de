"""A tool conversation of 20 turns, said in three ways, one after the other in every round; medians, in one table.

The engine is the fake one, which says how much of a prompt a prefix cache would have had and prefills nothing: the
times are those of the server, and what an engine would spend on a turn is told in tokens.
"""

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median

import msgspec

from bench.harness.conversation_script import SCRIPT, Way
from bench.harness.servers import LOAD_CORE, Server, antiphon, pin
from bench.harness.table import grid
from bench.harness.turns import Talk, Talked, Turn

TURNS = 20
ROUNDS = 20
WAYS: dict[Way, str] = {
    "socket": "one WebSocket, previous_response_id, not stored",
    "chained": "HTTP, previous_response_id, stored",
    "whole": "HTTP, the full history each time, not stored",
}
_HEADS = (
    "KB sent", "first event: ms p50", "p95", "turn: ms p50", "CPU ms/turn", "prefill tokens: turn 1", "2 and later",
)  # fmt: skip


def conversation_table(rounds: int = ROUNDS, turns: int = TURNS) -> str:
    said = conversations(rounds, turns)
    title = f"a tool conversation of {turns} turns, {rounds} times (fake engine: it counts what a prefix cache saves)"
    return grid((title, *_HEADS), [(WAYS[way], *_cells(talks)) for way, talks in said.items()])


def conversations(rounds: int, turns: int) -> dict[Way, list[Talked]]:
    """Of each way, one in each round; each way is the first of a round equally often."""
    said: dict[Way, list[Talked]] = {way: [] for way in WAYS}
    ways = [*WAYS]
    with _server() as server:
        for number in range(-1, rounds):
            for way in ways[number % 3 :] + ways[: number % 3]:
                talked = _talked(server, way, f"{number} {way}", turns)
                if number >= 0:  # the first one warms up
                    said[way].append(talked)
    return said


@contextlib.contextmanager
def _server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.toml"
        script.write_text(SCRIPT)
        with antiphon("--fake-script", str(script)) as server:
            yield server


def _talked(server: Server, way: Way, nonce: str, turns: int) -> Talked:
    talk = Talk(port=server.port, pid=server.pid, way=way, nonce=nonce, turns=turns)
    command = [sys.executable, "-m", "bench.harness.turns", msgspec.json.encode(talk).decode()]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=120, preexec_fn=lambda: pin(LOAD_CORE))
    return msgspec.json.decode(done.stdout, type=Talked)


def _cells(talks: list[Talked]) -> tuple[str, ...]:
    turns = [turn for talk in _calm(talks) for turn in talk.turns]
    firsts = sorted(turn.first_ms for turn in turns)
    later = [turn.prefill for talk in talks for turn in talk.turns[1:]]
    return (
        f"{median(_sent(talk.turns) for talk in talks) / 1e3:.0f}",
        f"{median(firsts):.2f}",
        f"{firsts[len(firsts) * 95 // 100]:.2f}",
        f"{median(turn.whole_ms for turn in turns):.2f}",
        f"{median(talk.cpu_ms for talk in talks) / len(talks[0].turns):.2f}",
        f"{mean(talk.turns[0].prefill for talk in talks):,.0f}",
        f"{mean(later):,.0f}",
    )


def _calm(talks: list[Talked]) -> list[Talked]:
    """The half of them in which the machine had least to do for others: times are theirs."""
    return sorted(talks, key=lambda talk: sum(turn.whole_ms for turn in talk.turns))[: (len(talks) + 1) // 2]


def _sent(turns: list[Turn]) -> int:
    return sum(turn.sent for turn in turns)


if __name__ == "__main__":
    sys.stdout.write(f"{conversation_table()}\n")

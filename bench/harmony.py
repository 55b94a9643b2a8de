"""What reading Harmony costs: processor time for each token, on top of a parser that looks for nothing.

`python -m bench.harmony` prints it alone.
"""

import sys
import time
from collections.abc import Sequence

from antiphon.core.prompt import Chunk, TokenPrompt
from antiphon.parsers.base import PLAIN, Parser, Reading
from antiphon.parsers.harmony.parser import HarmonyParser
from antiphon.parsers.raw import RawParser
from bench.formats import PROSE
from bench.harness.table import Row, table
from tests.golden.harmony.cases import load, reading, tokens

TARGET = 4.0  # µs a token
ROUNDS = 7
TAKES_OVER = TokenPrompt(tokens("<|start|>assistant"))
THINKS = "<|channel|>analysis<|message|>{}<|end|><|start|>assistant"
ANSWER = f"{THINKS}<|channel|>final<|message|>{{}}<|return|>"

Work = tuple[type[Parser], Reading, Sequence[Chunk]]


def harmony(rounds: int = ROUNDS) -> list[Row]:
    """Prose that is thought and said, and everything that was recorded; each token by itself."""
    prose = _chunks(ANSWER.format(PROSE * 20, PROSE * 20))
    recorded: list[Work] = [(HarmonyParser, reading(case), _chunks(case.output)) for case in load("recorded")]
    nothing = _cost([(RawParser, PLAIN, prose)], rounds)
    costs = {"text": _cost([(HarmonyParser, PLAIN, prose)], rounds), "recorded answers": _cost(recorded * 4, rounds)}
    return [Row(name=f"harmony, {name}: µs/token", ours=cost - nothing, target=TARGET) for name, cost in costs.items()]


def _chunks(said: str | list[int]) -> list[Chunk]:
    return [Chunk(tokens=(token,), text="word") for token in tokens(said)]


def _cost(work: Sequence[Work], rounds: int) -> float:
    """Of a token, at best: the processor is shared. Making the parsers is not counted."""
    said = sum(len(chunks) for _, _, chunks in work)
    return min(_once(work) for _ in range(rounds)) / said * 1e6


def _once(work: Sequence[Work]) -> float:
    parsers = [(parser(TAKES_OVER, reading), chunks) for parser, reading, chunks in work]
    begun = time.process_time()
    for made, chunks in parsers:
        feed = made.feed
        for chunk in chunks:
            feed(chunk)
        made.finish()
    return time.process_time() - begun


if __name__ == "__main__":
    sys.stdout.write(table(harmony()) + "\n")

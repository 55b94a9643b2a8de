"""Cost of parsing Harmony: CPU time per token, minus that of a parser that searches for nothing.

`python -m bench.harmony` prints only these rows.
"""

import sys
from collections.abc import Sequence

from antiphon.core.prompt import Chunk, TokenPrompt
from antiphon.parsers.base import DEFAULT_OPTIONS, Parser, ParserOptions
from antiphon.parsers.harmony import HarmonyParser
from antiphon.parsers.raw import RawParser
from bench.formats import PROSE, measure_parser
from bench.harness.table import Row, render_table
from tests.golden.harmony.cases import encode_tokens, load_cases, make_parser_options

TARGET = 4.0  # µs per token
ROUNDS = 7
ASSISTANT_PROMPT = TokenPrompt(encode_tokens("<|start|>assistant"))
ANALYSIS = "<|channel|>analysis<|message|>{}<|end|><|start|>assistant"
ANSWER = f"{ANALYSIS}<|channel|>final<|message|>{{}}<|return|>"

ParserInput = tuple[type[Parser], ParserOptions, Sequence[Chunk]]


def measure_harmony(rounds: int = ROUNDS) -> list[Row]:
    """Measure prose as reasoning and answer, and all recordings, one token per chunk."""
    prose = _chunks(ANSWER.format(PROSE * 20, PROSE * 20))
    recorded: list[ParserInput] = [
        (HarmonyParser, make_parser_options(case), _chunks(case.output)) for case in load_cases("recorded")
    ]
    baseline = _measure_cost([(RawParser, DEFAULT_OPTIONS, prose)], rounds)
    costs = {
        "text": _measure_cost([(HarmonyParser, DEFAULT_OPTIONS, prose)], rounds),
        "recorded answers": _measure_cost(recorded * 4, rounds),
    }
    return [
        Row(name=f"harmony, {name}: µs/token", figures=(cost - baseline,), goal=TARGET) for name, cost in costs.items()
    ]


def _chunks(output: str | list[int]) -> list[Chunk]:
    return [Chunk(tokens=(token,), text="word") for token in encode_tokens(output)]


def _measure_cost(inputs: Sequence[ParserInput], rounds: int) -> float:
    """Return the best time per token, since the processor is shared."""
    times = [
        sum(measure_parser(parser(ASSISTANT_PROMPT, options), chunks) for parser, options, chunks in inputs)
        for _ in range(rounds)
    ]
    return min(times) / sum(len(chunks) for _, _, chunks in inputs) * 1e6


if __name__ == "__main__":
    sys.stdout.write(render_table(measure_harmony()) + "\n")

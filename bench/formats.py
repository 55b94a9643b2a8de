"""Cost of parsing reasoning and tool calls: CPU time per token, minus that of a parser that searches for nothing.

- text: prose with a block of code, searched for calls or reasoning that it does not contain; for reasoning formats,
  half of it is reasoning
- long calls: each recorded call with 700 more characters in its last string
- short calls: each recording by itself, also truncated ones; some have four tokens of text and one call without
  arguments
- answer: the answer to a request for two things: a sentence of text (if the format allows leading text) and the
  recorded parallel calls, mostly of 20 to 60 tokens each

In the first three a token is four characters, at any position. In an answer the tokens are those of gpt-oss's
vocabulary, and markers that are control tokens of a family are one token each. The best of many rounds counts for each
response, and each round feeds the same tokens to the parser that searches for nothing. The creation of a parser, once
per response, is excluded. The later stages, from deltas to bytes, are measured elsewhere. `python -m bench.formats`
prints only these rows.
"""

import codecs
import json
import sys
import time
from collections.abc import Iterator, Sequence

from msgspec import Struct

from antiphon.core.harmony import load_vocabulary
from antiphon.core.prompt import Chunk, TextPrompt
from antiphon.parsers.base import DEFAULT_OPTIONS, Parser, ParserOptions
from antiphon.parsers.calls.registry import FORMATS, load_format
from antiphon.parsers.raw import RawParser
from antiphon.parsers.reasoning import REASONING_FORMATS
from bench.harness.table import render_grid
from tests.golden.calls.recordings import Recording, build_schemas, load_recordings, parse_recording

GOAL = 3.0  # µs per token
ROUNDS = 60  # short rounds
TOKEN_CHARS = 4  # characters per token
KINDS = ("text", "long calls", "short calls", "answer")
EXTRA_TEXT = " and what else there is to say of it" * 20
SENTENCE = "I will look both of them up for you, and then compare what I find with what you told me before.\n\n"
PROSE = (
    "The answer is short: a list holds its items in order, and a dictionary finds them by key.\n\n"
    "```python\nfor name, price in prices.items():\n    if price < 10 and seen[name]:\n        total += price\n```\n\n"
    "Both are fast; which one you take depends on how you look things up. 1. By place: a list. 2. By name: the other. "
)
NO_PROMPT = TextPrompt(())
ParserInput = tuple[ParserOptions, list[Chunk]]


class FormatCosts(Struct, frozen=True, kw_only=True):
    """Costs of one format in µs per token, by kind of answer."""

    name: str
    figures: dict[str, float]

    @property
    def misses_goal(self) -> bool:
        return max(self.figures.values()) > GOAL

    def cells(self) -> tuple[str, ...]:
        figures = (f"{self.figures[kind]:.2f}" if kind in self.figures else "" for kind in KINDS)
        return (self.name, *figures, f"≤ {GOAL:g}", "missed" if self.misses_goal else "reached")


def measure_formats(rounds: int = ROUNDS) -> list[FormatCosts]:
    """Return a row for each reasoning format with distinct markers, and for each call format."""
    prose = _chunks(PROSE * 40)
    distinct = {marks: name for name, marks in reversed(REASONING_FORMATS.items())}
    return [
        *[
            _measure_costs(f"reasoning: {name}", {"text": _reasoning_inputs(name)}, rounds)
            for name in sorted(distinct.values())
        ],
        *[_measure_costs(form, _call_inputs(form, prose), rounds) for form in FORMATS],
    ]


def render_formats_table(rows: Sequence[FormatCosts]) -> str:
    return render_grid(("parsing: µs/token", *KINDS, "goal", ""), [row.cells() for row in rows])


def _reasoning_inputs(name: str) -> list[ParserInput]:
    marks = REASONING_FORMATS[name]
    text = f"{marks.opening[0]}\n{PROSE * 20}\n{marks.closing[0]}\n\n{PROSE * 20}"
    return [(ParserOptions(reasoning=name), _chunks(text))]


def _call_inputs(form: str, prose: list[Chunk]) -> dict[str, list[ParserInput]]:
    recorded = [each for each in load_recordings(form) if not each.broken]
    parallel = [each for each in recorded if _count_calls(each) > 1]
    return {
        "text": [(_parser_options(form, recorded[0]), prose)],
        "long calls": [(_parser_options(form, each), _chunks(text)) for each in recorded for text in _lengthen(each)],
        "short calls": [(_parser_options(form, each), _chunks(each.output)) for each in recorded],
        "answer": [(_parser_options(form, each), _tokens(form, _make_answer(form, each))) for each in parallel],
    }


def _parser_options(form: str, recording: Recording) -> ParserOptions:
    return ParserOptions(calls=form, tools=build_schemas(recording))


def _count_calls(recording: Recording) -> int:
    return sum(1 for expected in recording.expected if expected.arguments)


def _make_answer(form: str, recording: Recording) -> str:
    """Return a sentence and the calls; only the calls, if the format does not parse calls after text."""
    text = SENTENCE + recording.output
    parsed = parse_recording(form, recording, [text])
    return text if sum(1 for each in parsed if each.arguments) == _count_calls(recording) else recording.output


def _lengthen(recording: Recording) -> Iterator[str]:
    """Yield the recording with more text in its last string, if it has one."""
    all_arguments = [str(expected.arguments) for expected in recording.expected if expected.arguments]
    strings = [value for arguments in all_arguments for value in _values(arguments) if isinstance(value, str)]
    if strings and strings[-1] and strings[-1] in recording.output:
        yield (strings[-1] + EXTRA_TEXT).join(recording.output.rsplit(strings[-1], 1))


def _values(arguments: str) -> list[object]:
    found = json.loads(arguments)
    return list(found.values()) if isinstance(found, dict) else []


def _chunks(text: str) -> list[Chunk]:
    return [Chunk(text=text[at : at + TOKEN_CHARS]) for at in range(0, len(text), TOKEN_CHARS)]


def _tokens(form: str, text: str) -> list[Chunk]:
    """Return chunks of one token each, as a model emits them. A split character is in the chunk of its last token."""
    controls, vocab = load_format(form)({}).controls, load_vocabulary()
    decoder = codecs.getincrementaldecoder("utf-8")()
    texts: list[str] = []
    for part in _split_controls(text, controls):
        pieces = [part] if part in controls else map(vocab.decode_token, vocab.encode(part))
        texts += [piece if isinstance(piece, str) else decoder.decode(piece) for piece in pieces]
    return [Chunk(text=piece) for piece in texts]


def _split_controls(text: str, controls: Sequence[str]) -> Iterator[str]:
    """Yield control tokens and the text between them."""
    while text:
        position, marker = min(
            [(text.find(marker), marker) for marker in controls if marker in text], default=(len(text), "")
        )
        yield from filter(None, (text[:position], marker))
        text = text[position + len(marker) :]


def _measure_costs(name: str, kinds: dict[str, list[ParserInput]], rounds: int) -> FormatCosts:
    return FormatCosts(
        name=name, figures={kind: _measure_cost(inputs, rounds) for kind, inputs in kinds.items() if inputs}
    )


def _measure_cost(inputs: Sequence[ParserInput], rounds: int) -> float:
    """Return the time per token minus that of the plain parser; the best of all rounds, since the processor is
    shared.
    """
    best = [float("inf")] * len(inputs)
    plain = list(best)
    for _ in range(rounds):
        for at, (reading, chunks) in enumerate(inputs):
            best[at] = min(best[at], measure_parser(RawParser(NO_PROMPT, reading), chunks))
            plain[at] = min(plain[at], measure_parser(RawParser(NO_PROMPT, DEFAULT_OPTIONS), chunks))
    return (sum(best) - sum(plain)) / sum([len(chunks) for _, chunks in inputs]) * 1e6


def measure_parser(parser: Parser, chunks: Sequence[Chunk]) -> float:
    """Measure one response without the creation of its parser; in seconds."""
    start = time.process_time()
    feed = parser.feed
    for chunk in chunks:
        feed(chunk)
    parser.finish()
    return time.process_time() - start


if __name__ == "__main__":
    sys.stdout.write(f"{render_formats_table(measure_formats())}\n")

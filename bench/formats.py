"""What reading thoughts and tool calls costs: processor time for each token, on top of a parser that looks for nothing.

- text: prose with a block of code, where calls or thoughts are looked for and there are none; the two of thinking:
  half of it thought.
- long calls: each recorded call with 700 characters more to say in its last string.
- short calls: every recording by itself, the cut ones too; some are four tokens of text and one call without arguments.
- answer: what a model says that is asked for two things: a sentence of text (where the format lets text come first)
  and the recorded parallel calls, mostly of 20 to 60 tokens each.

In the first three a token is four characters, wherever that cuts. In an answer tokens are those of gpt-oss's
vocabulary, and marks that are control tokens of a family are one each. Of many rounds the best of each response counts,
and in each round the same tokens are given to the parser that looks for nothing. Making a parser, once for each
response, is not counted: a row says what it takes. What comes after it, from deltas to bytes, is the path.
`python -m bench.formats` prints it alone."""

import codecs
import json
import sys
import time
from collections.abc import Iterator, Sequence

from msgspec import Struct

from antiphon.core.harmony import vocabulary
from antiphon.core.prompt import Chunk, TextPrompt
from antiphon.parsers.base import PLAIN, Reading
from antiphon.parsers.calls.registry import FORMATS, load_format
from antiphon.parsers.raw import RawParser
from antiphon.parsers.reasoning.formats import THOUGHTS
from bench.harness.table import Row, grid, table
from tests.golden.calls.recordings import Recording, load, play, schemas

TARGET = 3.0  # µs a token
ROUNDS = 60  # short ones
TOKEN = 4  # characters
KINDS = ("text", "long calls", "short calls", "answer")
MORE = " and what else there is to say of it" * 20
SENTENCE = "I will look both of them up for you, and then compare what I find with what you told me before.\n\n"
PROSE = (
    "The answer is short: a list holds its items in order, and a dictionary finds them by key.\n\n"
    "```python\nfor name, price in prices.items():\n    if price < 10 and seen[name]:\n        total += price\n```\n\n"
    "Both are fast; which one you take depends on how you look things up. 1. By place: a list. 2. By name: the other. "
)
NO_PROMPT = TextPrompt(())
Work = tuple[Reading, list[Chunk]]


class Costs(Struct, frozen=True, kw_only=True):
    """Of reading one format, µs a token by kind of answer."""

    name: str
    figures: dict[str, float]

    @property
    def over(self) -> bool:
        return max(self.figures.values()) > TARGET

    def cells(self) -> tuple[str, ...]:
        figures = (f"{self.figures[kind]:.2f}" if kind in self.figures else "" for kind in KINDS)
        return (self.name, *figures, f"≤ {TARGET:g}", "over" if self.over else "PASS")


def formats(rounds: int = ROUNDS) -> list[Costs]:
    """A row for each way to think, as far as their marks differ, and each format of calls."""
    prose = _chunks(PROSE * 40)
    alike = {marks: name for name, marks in reversed(THOUGHTS.items())}
    return [
        *[_costs(f"thoughts: {name}", {"text": _thinking(name)}, rounds) for name in sorted(alike.values())],
        *[_costs(form, _calling(form, prose), rounds) for form in FORMATS],
    ]


def formats_table(rows: Sequence[Costs]) -> str:
    return grid(("reading: µs/token", *KINDS, "target", ""), [row.cells() for row in rows])


def making(rounds: int = ROUNDS) -> Row:
    """The dearest parser, once for each response."""
    readings = [_reading(form, load(form)[0]) for form in FORMATS]
    dearest = max(min(_made(reading) for _ in range(rounds)) for reading in readings)
    return Row(name="making a parser, the dearest: µs/response", ours=dearest)


def _made(reading: Reading) -> float:
    begun = time.process_time()
    for _ in range(100):
        RawParser(NO_PROMPT, reading)
    return (time.process_time() - begun) * 1e4


def _thinking(name: str) -> list[Work]:
    marks = THOUGHTS[name]
    said = f"{marks.opening[0]}\n{PROSE * 20}\n{marks.closing[0]}\n\n{PROSE * 20}"
    return [(Reading(thoughts=name), _chunks(said))]


def _calling(form: str, prose: list[Chunk]) -> dict[str, list[Work]]:
    recorded = [each for each in load(form) if not each.broken]
    parallel = [each for each in recorded if _calls(each) > 1]
    return {
        "text": [(_reading(form, recorded[0]), prose)],
        "long calls": [(_reading(form, each), _chunks(said)) for each in recorded for said in _lengthened(each)],
        "short calls": [(_reading(form, each), _chunks(each.output)) for each in recorded],
        "answer": [(_reading(form, each), _tokens(form, _answer(form, each))) for each in parallel],
    }


def _reading(form: str, recording: Recording) -> Reading:
    return Reading(calls=form, tools=schemas(recording))


def _calls(recording: Recording) -> int:
    return sum(1 for told in recording.expected if told.arguments)


def _answer(form: str, recording: Recording) -> str:
    """Where text that comes first makes text of the calls, there is none."""
    spoken = SENTENCE + recording.output
    told = play(form, recording, [spoken])
    return spoken if sum(1 for each in told if each.arguments) == _calls(recording) else recording.output


def _lengthened(recording: Recording) -> Iterator[str]:
    """The same with more to say in the last of its strings, if there is one."""
    called = [str(told.arguments) for told in recording.expected if told.arguments]
    strings = [value for arguments in called for value in _values(arguments) if isinstance(value, str)]
    if strings and strings[-1] and strings[-1] in recording.output:
        yield (strings[-1] + MORE).join(recording.output.rsplit(strings[-1], 1))


def _values(arguments: str) -> list[object]:
    found = json.loads(arguments)
    return list(found.values()) if isinstance(found, dict) else []


def _chunks(text: str) -> list[Chunk]:
    return [Chunk(text=text[at : at + TOKEN]) for at in range(0, len(text), TOKEN)]


def _tokens(form: str, text: str) -> list[Chunk]:
    """As a model says them. A character that is cut comes with the token that ends it."""
    controls, known = load_format(form)({}).controls, vocabulary()
    cut = codecs.getincrementaldecoder("utf-8")()
    said: list[str] = []
    for part in _parted(text, controls):
        words = [part] if part in controls else map(known.word, known.tokens(part))
        said += [word if isinstance(word, str) else cut.decode(word) for word in words]
    return [Chunk(text=word) for word in said]


def _parted(text: str, controls: Sequence[str]) -> Iterator[str]:
    """Control tokens, and what is between them."""
    while text:
        place, mark = min([(text.find(mark), mark) for mark in controls if mark in text], default=(len(text), ""))
        yield from filter(None, (text[:place], mark))
        text = text[place + len(mark) :]


def _costs(name: str, kinds: dict[str, list[Work]], rounds: int) -> Costs:
    return Costs(name=name, figures={kind: _cost(work, rounds) for kind, work in kinds.items() if work})


def _cost(work: Sequence[Work], rounds: int) -> float:
    """Of a token, on top of the same tokens with nothing to look for; at best, as the processor is shared."""
    best = [float("inf")] * len(work)
    nothing = list(best)
    for _ in range(rounds):
        for at, (reading, chunks) in enumerate(work):
            best[at] = min(best[at], _once(reading, chunks))
            nothing[at] = min(nothing[at], _once(PLAIN, chunks))
    return (sum(best) - sum(nothing)) / sum([len(chunks) for _, chunks in work]) * 1e6


def _once(reading: Reading, chunks: list[Chunk]) -> float:
    """One response. Making its parser is not counted."""
    parser = RawParser(NO_PROMPT, reading)
    begun = time.process_time()
    feed = parser.feed
    for chunk in chunks:
        feed(chunk)
    parser.finish()
    return time.process_time() - begun


if __name__ == "__main__":
    rows = formats()
    sys.stdout.write(f"{formats_table(rows)}\n\n{table([making()])}\n")

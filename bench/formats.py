"""What reading a tool-call format costs: processor time for each token of four characters, on top of a parser that
looks for nothing. Over plain text, over calls as they were recorded, which are short, and over calls with a text to
write. `python -m bench.formats` prints it alone."""

import json
import sys
import time
from collections.abc import Iterator, Sequence

from antiphon.core.prompt import Chunk, TextPrompt
from antiphon.parsers.base import PLAIN, Reading
from antiphon.parsers.calls.registry import FORMATS
from antiphon.parsers.raw import RawParser
from bench.table import Row, table
from tests.golden.calls.recordings import Recording, load, schemas

TARGET = 3.0  # µs a token
ROUNDS = 7
TOKEN = 4  # characters
MORE = " and what else there is to say of it" * 20
PROSE = (
    "The answer is short: a list holds its items in order, and a dictionary finds them by key.\n\n"
    "```python\nfor name, price in prices.items():\n    if price < 10 and seen[name]:\n        total += price\n```\n\n"
    "Both are fast; which one you take depends on how you look things up. 1. By place: a list. 2. By name: the other. "
)
NO_PROMPT = TextPrompt(())
Work = tuple[Reading, list[Chunk]]


def formats(rounds: int = ROUNDS) -> list[Row]:
    """A row for each format and each kind of answer."""
    prose = _chunks(PROSE * 40)
    nothing = _cost([(PLAIN, prose)], rounds)
    rows = [Row(name="reading, nothing looked for: µs/token", ours=nothing)]
    for form in FORMATS:
        recorded = [each for each in load(form) if not each.broken]
        measured: dict[str, list[Work]] = {
            "text": [(_reading(form, recorded[0]), prose)],
            "long calls": [(_reading(form, each), _chunks(said)) for each in recorded for said in _lengthened(each)],
            "short calls": [(_reading(form, each), _chunks(each.output)) for each in recorded] * 8,
        }
        rows += [
            Row(name=f"{form}, {what}: µs/token", ours=_cost(work, rounds) - nothing, target=TARGET)
            for what, work in measured.items()
            if work
        ]
    return rows


def _reading(form: str, recording: Recording) -> Reading:
    return Reading(calls=form, tools=schemas(recording))


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


def _cost(work: Sequence[Work], rounds: int) -> float:
    """Of a token, at best: the processor is shared. Making the parsers is not counted."""
    tokens = sum(len(chunks) for _, chunks in work)
    return min(_once(work) for _ in range(rounds)) / tokens * 1e6


def _once(work: Sequence[Work]) -> float:
    parsers = [(RawParser(NO_PROMPT, reading), chunks) for reading, chunks in work]
    begun = time.process_time()
    for parser, chunks in parsers:
        feed = parser.feed
        for chunk in chunks:
            feed(chunk)
        parser.finish()
    return time.process_time() - begun


if __name__ == "__main__":
    sys.stdout.write(table(formats()) + "\n")

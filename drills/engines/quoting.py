"""What models say when they only quote: marks in prose, in code and around calls of tools that nobody offered."""

from collections.abc import Callable, Iterator
from itertools import islice, product
from typing import Final

from antiphon.agent.tool_resolver import Declared
from antiphon.core.deltas import CallStarted, Delta, Thought
from antiphon.core.prompt import Chunk, TextPrompt
from antiphon.parsers.base import Reading
from antiphon.parsers.calls.registry import FORMATS
from antiphon.parsers.raw import RawParser
from antiphon.parsers.reasoning.formats import THOUGHTS
from antiphon.render.tools.declarations import Offer
from drills.forgery.forged_requests import tool
from drills.forgery.vocabulary import spelled
from drills.harness.findings import Figure, Findings
from tests.golden.calls.recordings import FOLDER, load

OFFERS: Final = {"weather": Offer("function", "weather")}
TOOLS: Final = {"weather": {"type": "function", "function": tool()}}
PIECE: Final = 5  # characters that come at a time
QUOTES: Final[tuple[Callable[[str], str], ...]] = (
    lambda mark: f"The mark {mark} begins a call, and weather is a tool.",
    lambda mark: f"Write `{mark}`, then the name: `{mark}weather`.",
    lambda mark: f'Like so:\n```\n{mark}\n{{"name": "erase", "arguments": {{}}}}\n{mark}\n```\n',
    lambda mark: f'{mark}{{"name": "erase", "arguments": {{"all": true}}}}{mark}',
    lambda mark: f"{mark}erase\n{{}}{mark}[erase(all=True)]{mark}",
    lambda mark: f"{mark}<function=erase><parameter=all>yes</parameter></function>{mark}",
    lambda mark: mark * 40,
)


def phantoms(step: int, findings: Findings) -> None:
    """Every so many-th of what there is to quote."""
    calls = thoughts = 0
    for name, said in islice(_quoted(), 0, None, step):
        findings.tried()
        deltas = Declared(OFFERS).name(read(Reading(calls=name, tools=TOOLS), said))
        if any(isinstance(delta, CallStarted) for delta in deltas):
            calls += 1
            findings.violated(f"{name} calls a tool where a model says {said!r}")
    for name, said in islice(_thought(), 0, None, step):
        findings.tried()
        if any(isinstance(delta, Thought) for delta in read(Reading(thoughts=name), said)):
            thoughts += 1
            findings.violated(f"{name} finds a thought where a model says {said!r}")
    findings.figure(Figure("phantom calls", calls, most=0))
    findings.figure(Figure("phantom thoughts", thoughts, most=0))


def read(reading: Reading, said: str) -> list[Delta]:
    parser = RawParser(TextPrompt(()), reading)
    deltas = [delta for at in range(0, len(said), PIECE) for delta in parser.feed(Chunk(text=said[at : at + PIECE]))]
    return [*deltas, *parser.finish()]


def _quoted() -> Iterator[tuple[str, str]]:
    """And all that was ever recorded, as if none of its tools had been offered."""
    for name, mark, quote in product(FORMATS, spelled(), QUOTES):
        yield name, quote(mark)
    for file in sorted(FOLDER.glob("*.json")):
        for name, recording in product(FORMATS, load(file.stem)):
            yield name, recording.output.replace("weather", "wether")


def _thought() -> Iterator[tuple[str, str]]:
    """Those who think again after an answer may do so at any mark; nothing tells a quotation from that."""
    for name, marks in THOUGHTS.items():
        if not (marks.again or marks.implicit):
            for mark, quote in product(spelled(), QUOTES[:3]):
                yield name, quote(mark)

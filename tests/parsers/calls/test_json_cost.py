"""No answer makes a format slow: a hundred kilobytes made for it take a few milliseconds, at once or in pieces.

What a machine can do in that time depends on who else is at work on it: it is told by how fast it counts.
"""

from collections.abc import Callable, Iterator
from functools import cache

import pytest

from antiphon.core.deltas import CallStarted
from antiphon.core.prompt import Json
from antiphon.parsers.calls.base import Piece
from antiphon.parsers.calls.registry import FORMATS, load_format
from tests.golden.calls.recordings import load, schemas
from tests.support.cpu import slowness, spent_on

SIZE = 100_000
AT_ONCE = 0.005  # seconds of the processor for all of it, at best
IN_PIECES = 0.15
TRIES = 6
MOST_CALLS = 128
OF_JSON = ("hermes", "mistral", "json")  # the others differ from these in their marks alone

NASTY: dict[str, Callable[[str], str]] = {
    "braces": lambda mark: mark + "{" * SIZE,
    "closing braces": lambda mark: mark + "}" * SIZE,
    "brackets": lambda mark: mark + "[" * SIZE,
    "quotes": lambda mark: mark + '"' * SIZE,
    "backslashes": lambda mark: mark + "\\" * SIZE,
    "space": lambda mark: mark + " \n" * (SIZE // 2),
    "marks": lambda mark: mark * (SIZE // len(mark)),
    "half marks": lambda mark: mark[:-1] * (SIZE // max(1, len(mark) - 1)),
    "first characters of marks": lambda mark: mark[0] * SIZE,
    "angle brackets": lambda mark: "<" * SIZE,
    "marks and braces": lambda mark: (mark + "{") * (SIZE // (len(mark) + 1)),
    "names": lambda mark: f'{mark}{{"name":"f"' * (SIZE // 20),
    "calls of what is not offered": lambda mark: f'{mark}{{"name":"g","arguments":{{}}}}' * (SIZE // 40),
}
HELD = ("space", "quotes", "half marks")  # what might be joined again with every piece
BEGUN = '{"name":"f","arguments":'
NASTY_JSON: dict[str, str] = {
    "a name without an end": '{"name":"' + "f" * SIZE,
    "names without marks": '{"name":"f"' * (SIZE // 11),
    "calls in a list": "[" + '{"name":"f","arguments":{"a":1}},' * (SIZE // 33),
    "objects that are no calls": '{"a":1}' * (SIZE // 7),
    "deep objects": BEGUN + '{"a":' * (SIZE // 5),
    "deep lists": BEGUN + '{"a":' + "[" * SIZE,
    "lists as deep as may be": BEGUN + '{"a":[' + ("[" * 60 + "]" * 60 + ",") * (SIZE // 121),
    "a long list": BEGUN + '{"a":[' + "1," * (SIZE // 2),
    "a list of empty lists": BEGUN + '{"a":[' + "[]," * (SIZE // 3),
    "a list of objects": BEGUN + '{"a":[' + '{"b":"c"},' * (SIZE // 10),
    "a list with a fault at its beginning": BEGUN + "{'a':[" + "1," * (SIZE // 2),
    "faults now and then": BEGUN + '{"a":[' + ("'b'," + "1," * 30) * (SIZE // 64),
    "long keys": BEGUN + "{" + f'"{"k" * 70}":1,' * (SIZE // 75),
    "words": BEGUN + '{"a":[' + "b," * (SIZE // 2),
    "one word": BEGUN + '{"a":' + "b" * SIZE,
    "one number": BEGUN + '{"a":' + "9" * SIZE,
    "commas": BEGUN + "{" + "," * SIZE,
    "escapes": BEGUN + '{"a":"' + '\\n\\"\\\\' * (SIZE // 6),
    "escapes of characters": BEGUN + '{"a":"' + "\\u00e9" * (SIZE // 6),
    "escapes that are none": BEGUN + '{"a":"' + "\\q" * (SIZE // 2),
    "single quotes and escapes": BEGUN + "{'a':'" + "\\n" * (SIZE // 2),
    "line breaks in a string": BEGUN + '{"a":"' + "\n" * SIZE,
    "line breaks and escapes": BEGUN + '{"a":"' + "\n\\t" * (SIZE // 3),
    "arguments in a string": BEGUN + '"{\\"a\\":[' + '\\"b\\",' * (SIZE // 6),
}


@cache
def _recorded(form: str) -> tuple[str, dict[str, Json]]:
    recording = next(each for each in load(form) if "parallel" in each.name)
    return recording.output, schemas(recording)


def _mark(form: str) -> str:
    openings = load_format(form)({}).openings
    return openings[0] if openings else " "


def _texts(form: str) -> Iterator[tuple[str, str]]:
    mark, own = _mark(form), _recorded(form)[0]
    yield "calls in its own words", own * (SIZE // len(own))
    yield from ((name, make(mark)) for name, make in NASTY.items())
    if form in OF_JSON:
        yield from ((name, mark + text) for name, text in NASTY_JSON.items())


def _read(form: str, text: str, size: int = 2 * SIZE) -> list[Piece]:
    reader = load_format(form)(_recorded(form)[1] | {"f": {}})
    pieces: list[Piece] = []
    for at in range(0, len(text), size):
        pieces += reader.feed(text[at : at + size])
    return [*pieces, *reader.finish()]


def _too_long(work: Callable[[], object], wanted: float) -> str:
    """How long it took at best, if that is too long for a machine like this."""
    best = float("inf")
    for _ in range(TRIES):
        took = spent_on(work)
        if took <= wanted:
            return ""
        best = min(best, took / slowness())
        if best <= wanted:
            return ""
    return f"{best * 1000:.1f} ms"


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.shows("D.18")
def test_a_hundred_kilobytes_at_once_take_a_few_milliseconds(form: str) -> None:
    slow = {name: _too_long(lambda text=text: _read(form, text), AT_ONCE) for name, text in _texts(form)}  # type: ignore[misc]
    assert not {name: took for name, took in slow.items() if took}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", HELD)
def test_what_is_held_back_is_not_joined_again_with_every_piece(form: str, name: str) -> None:
    text = NASTY[name](_mark(form))
    assert not _too_long(lambda: _read(form, text, 16), IN_PIECES)


def test_json_takes_linear_time_character_by_character() -> None:
    mark = _mark("hermes")
    slow = {
        name: _too_long(lambda text=text: _read("hermes", mark + text[: SIZE // 8], 1), IN_PIECES)  # type: ignore[misc]
        for name, text in NASTY_JSON.items()
    }
    assert not {name: took for name, took in slow.items() if took}


@pytest.mark.parametrize("form", FORMATS)
def test_an_answer_has_a_bounded_number_of_calls(form: str) -> None:
    for name, text in _texts(form):
        assert sum(isinstance(piece, CallStarted) for piece in _read(form, text)) <= MOST_CALLS, name

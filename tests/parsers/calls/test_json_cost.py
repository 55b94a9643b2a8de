"""No answer makes a call format slow: 100 kB of adversarial output take a few milliseconds, at once or in pieces.

The limits are scaled by the current speed of the machine, which depends on its other load.
"""

from collections.abc import Callable, Iterator
from functools import cache

import pytest

from antiphon.core.deltas import CallStarted
from antiphon.core.prompt import Json
from antiphon.parsers.calls.base import Piece
from antiphon.parsers.calls.registry import FORMATS, load_format
from tests.golden.calls.recordings import build_schemas, load_recordings
from tests.support.cpu import measure_cpu_seconds, measure_slowdown

SIZE = 100_000
AT_ONCE = 0.005  # CPU seconds for the entire text, best attempt
JSON_AT_ONCE = 0.03  # the arguments of a call have up to 8,192 parts, which take 1 to 2 µs each
IN_PIECES = 0.15
TRIES = 6
MAX_CALLS = 128
JSON_FORMATS = ("hermes", "mistral", "json")  # the other formats differ from these only in their markers

ADVERSARIAL: dict[str, Callable[[str], str]] = {
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
    "calls of unoffered tools": lambda mark: f'{mark}{{"name":"g","arguments":{{}}}}' * (SIZE // 40),
}
BUFFERED = ("space", "quotes", "half marks")  # buffered output that could be joined again with every piece
CALL_START = '{"name":"f","arguments":'
ADVERSARIAL_JSON: dict[str, str] = {
    "a name without an end": '{"name":"' + "f" * SIZE,
    "names without marks": '{"name":"f"' * (SIZE // 11),
    "calls in a list": "[" + '{"name":"f","arguments":{"a":1}},' * (SIZE // 33),
    "objects that are no calls": '{"a":1}' * (SIZE // 7),
    "deep objects": CALL_START + '{"a":' * (SIZE // 5),
    "deep lists": CALL_START + '{"a":' + "[" * SIZE,
    "lists at the depth limit": CALL_START + '{"a":[' + ("[" * 60 + "]" * 60 + ",") * (SIZE // 121),
    "a long list": CALL_START + '{"a":[' + "1," * (SIZE // 2),
    "a list of empty lists": CALL_START + '{"a":[' + "[]," * (SIZE // 3),
    "a list of objects": CALL_START + '{"a":[' + '{"b":"c"},' * (SIZE // 10),
    "a list with a fault at its beginning": CALL_START + "{'a':[" + "1," * (SIZE // 2),
    "faults now and then": CALL_START + '{"a":[' + ("'b'," + "1," * 30) * (SIZE // 64),
    "long keys": CALL_START + "{" + f'"{"k" * 70}":1,' * (SIZE // 75),
    "words": CALL_START + '{"a":[' + "b," * (SIZE // 2),
    "one word": CALL_START + '{"a":' + "b" * SIZE,
    "one number": CALL_START + '{"a":' + "9" * SIZE,
    "commas": CALL_START + "{" + "," * SIZE,
    "escapes": CALL_START + '{"a":"' + '\\n\\"\\\\' * (SIZE // 6),
    "escapes of characters": CALL_START + '{"a":"' + "\\u00e9" * (SIZE // 6),
    "invalid escapes": CALL_START + '{"a":"' + "\\q" * (SIZE // 2),
    "single quotes and escapes": CALL_START + "{'a':'" + "\\n" * (SIZE // 2),
    "line breaks in a string": CALL_START + '{"a":"' + "\n" * SIZE,
    "line breaks and escapes": CALL_START + '{"a":"' + "\n\\t" * (SIZE // 3),
    "arguments in a string": CALL_START + '"{\\"a\\":[' + '\\"b\\",' * (SIZE // 6),
}


@cache
def _load_recorded(form: str) -> tuple[str, dict[str, Json]]:
    recording = next(each for each in load_recordings(form) if "parallel" in each.name)
    return recording.output, build_schemas(recording)


def _get_marker(form: str) -> str:
    openings = load_format(form)({}).openings
    return openings[0] if openings else " "


def _iter_texts(form: str) -> Iterator[tuple[str, str, float]]:
    """Yield names, texts, and the CPU seconds that each may take."""
    marker, own = _get_marker(form), _load_recorded(form)[0]
    yield "recorded calls", own * (SIZE // len(own)), JSON_AT_ONCE
    yield from ((name, make(marker), AT_ONCE) for name, make in ADVERSARIAL.items())
    if form in JSON_FORMATS:
        yield from ((name, marker + text, JSON_AT_ONCE) for name, text in ADVERSARIAL_JSON.items())


def _parse(form: str, text: str, size: int = 2 * SIZE) -> list[Piece]:
    reader = load_format(form)(_load_recorded(form)[1] | {"f": {}})
    pieces: list[Piece] = []
    for at in range(0, len(text), size):
        pieces += reader.feed(text[at : at + size])
    return [*pieces, *reader.finish()]


def _measure_excess(function: Callable[[], object], limit: float) -> str:
    """Return the best time if it exceeds `limit` on a machine of this speed, else ""."""
    best = float("inf")
    for _ in range(TRIES):
        took = measure_cpu_seconds(function)
        if took <= limit:
            return ""
        best = min(best, took / measure_slowdown())
        if best <= limit:
            return ""
    return f"{best * 1000:.1f} ms"


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.shows("D.18")
def test_a_hundred_kilobytes_at_once_take_a_few_milliseconds(form: str) -> None:
    slow = {
        name: _measure_excess(lambda text=text: _parse(form, text), limit)  # type: ignore[misc]
        for name, text, limit in _iter_texts(form)
    }
    assert not {name: took for name, took in slow.items() if took}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", BUFFERED)
def test_buffered_output_is_not_joined_again_with_every_piece(form: str, name: str) -> None:
    text = ADVERSARIAL[name](_get_marker(form))
    assert not _measure_excess(lambda: _parse(form, text, 16), IN_PIECES)


def test_json_takes_linear_time_character_by_character() -> None:
    marker = _get_marker("hermes")
    slow = {
        name: _measure_excess(lambda text=text: _parse("hermes", marker + text[: SIZE // 8], 1), IN_PIECES)  # type: ignore[misc]
        for name, text in ADVERSARIAL_JSON.items()
    }
    assert not {name: took for name, took in slow.items() if took}


@pytest.mark.parametrize("form", FORMATS)
def test_an_answer_has_a_bounded_number_of_calls(form: str) -> None:
    for name, text, _ in _iter_texts(form):
        assert sum(isinstance(piece, CallStarted) for piece in _parse(form, text)) <= MAX_CALLS, name

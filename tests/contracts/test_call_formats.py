"""What every tool-call format in the registry keeps: to register is to be tested."""

import random
from functools import cache

import pytest

from antiphon.core.deltas import CallDelta, CallDone, CallStarted
from antiphon.core.prompt import Json
from antiphon.errors import StartupError
from antiphon.parsers.calls.base import Piece, Said
from antiphon.parsers.calls.registry import FORMATS, load_format
from tests.golden.calls.recordings import load, schemas, told

SEEDS = range(5)
ANSWERS = 12  # of each seed
BITS = ["{", "}", "[", "]", '"', "'", "<", ">", "/", "\\", "\n", " ", ",", ":", "=", "(", ")", "`", "|", "word", "é😀"]

pytestmark = pytest.mark.parametrize("form", FORMATS)


@cache
def _known(form: str) -> tuple[list[str], dict[str, Json]]:
    """Pieces of what was recorded, and all that was offered there."""
    recordings = load(form)
    marks = [*load_format(form)({}).openings, *load_format(form)({}).controls]
    pieces = [each.output for each in recordings] + marks * 3 + [mark[:-1] for mark in marks]
    tools: dict[str, Json] = {}
    for each in recordings:
        tools |= schemas(each)
    return pieces, tools


def _answers(form: str, seed: int) -> list[str]:
    chance = random.Random(f"{form} {seed}")
    pieces, _ = _known(form)
    return [_answer(chance, pieces) for _ in range(ANSWERS)]


def _answer(chance: random.Random, pieces: list[str]) -> str:
    """Recorded pieces, parts of them, marks and single characters, one after the other."""
    said = []
    for _ in range(chance.randrange(1, 8)):
        piece = chance.choice([*pieces, *BITS])
        begin = chance.choice([0, 0, chance.randrange(len(piece))])
        said.append(piece[begin : chance.choice([len(piece), chance.randrange(begin, len(piece)) + 1])])
    return "".join(said)


def _read(form: str, *parts: str) -> list[Piece]:
    reader = load_format(form)(_known(form)[1])
    return [*[piece for part in parts for piece in reader.feed(part)], *reader.finish()]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.shows("D.18")
def test_cutting_the_answer_elsewhere_changes_nothing(form: str, seed: int) -> None:
    chance = random.Random(seed)
    for answer in _answers(form, seed):
        whole = told(_read(form, answer))
        assert told(_read(form, *answer)) == whole, answer
        cut = chance.randrange(len(answer) + 1)
        assert told(_read(form, answer[:cut], answer[cut:])) == whole, (answer[:cut], answer[cut:])


@pytest.mark.parametrize("seed", SEEDS)
def test_text_is_what_was_said_and_tells_where_it_ended(form: str, seed: int) -> None:
    for answer in _answers(form, seed):
        pieces = _read(form, *answer)
        ends = [piece.end for piece in pieces if isinstance(piece, Said)]
        assert ends == sorted(ends), answer
        assert all(end <= len(answer) for end in ends), answer
        if not any(isinstance(piece, CallStarted) for piece in pieces):
            assert "".join([piece.text for piece in pieces if isinstance(piece, Said)]) == answer


@pytest.mark.parametrize("seed", SEEDS)
def test_calls_are_numbered_and_each_is_over_before_the_next(form: str, seed: int) -> None:
    for answer in _answers(form, seed):
        open_call, last = -1, -1
        for piece in _read(form, answer):
            match piece:
                case CallStarted(key=key):
                    assert open_call < 0, answer
                    assert key == last + 1, answer
                    open_call = last = key
                case CallDelta(key=key):
                    assert key == open_call, answer
                case CallDone(key=key):
                    assert key == open_call, answer
                    open_call = -1
        assert open_call < 0, answer


def test_a_second_finish_has_nothing_to_say(form: str) -> None:
    for recording in load(form):
        reader = load_format(form)(schemas(recording))
        reader.feed(recording.output)
        reader.finish()
        assert not reader.finish()


def test_text_without_marks_passes_at_once(form: str) -> None:
    reader = load_format(form)(_known(form)[1])
    words = ["The ", "answer ", "is ", "forty", "-two."]
    assert [["".join([each.text for each in reader.feed(word) if isinstance(each, Said)])] for word in words] == [
        [word] for word in words
    ]


def test_a_format_that_is_not_registered_is_answered_with_those_that_are(form: str) -> None:
    with pytest.raises(StartupError, match=form):
        load_format(f"no-{form}")

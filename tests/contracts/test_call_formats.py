"""Contract suite of tool-call formats: runs against every registered format with random mixtures of recorded
outputs.
"""

import random
from functools import cache

import pytest

from antiphon.core.deltas import CallDelta, CallDone, CallStarted
from antiphon.core.prompt import Json
from antiphon.errors import StartupError
from antiphon.parsers.calls.base import Piece, TextPiece
from antiphon.parsers.calls.registry import FORMATS, load_format
from tests.golden.calls.recordings import build_schemas, collect_pieces, load_recordings

SEEDS = 5
ANSWERS_PER_SEED = 12
CHARACTERS = [
    "{",
    "}",
    "[",
    "]",
    '"',
    "'",
    "<",
    ">",
    "/",
    "\\",
    "\n",
    " ",
    ",",
    ":",
    "=",
    "(",
    ")",
    "`",
    "|",
    "word",
    "é😀",
]

pytestmark = pytest.mark.parametrize("form", FORMATS)


@cache
def _load_corpus(form: str) -> tuple[list[str], dict[str, Json]]:
    """Return pieces of the recorded outputs, and the schemas of all tools offered in the recordings."""
    recordings = load_recordings(form)
    markers = [*load_format(form)({}).openings, *load_format(form)({}).controls]
    pieces = [each.output for each in recordings] + markers * 3 + [marker[:-1] for marker in markers]
    tools: dict[str, Json] = {}
    for each in recordings:
        tools |= build_schemas(each)
    return pieces, tools


def _make_answers(form: str, seed: int) -> list[str]:
    rng = random.Random(f"{form} {seed}")
    pieces, _ = _load_corpus(form)
    return [_make_answer(rng, pieces) for _ in range(ANSWERS_PER_SEED)]


def _make_answer(rng: random.Random, pieces: list[str]) -> str:
    """Join random recorded pieces, fragments of them, markers and single characters."""
    chosen = []
    for _ in range(rng.randrange(1, 8)):
        piece = rng.choice([*pieces, *CHARACTERS])
        begin = rng.choice([0, 0, rng.randrange(len(piece))])
        chosen.append(piece[begin : rng.choice([len(piece), rng.randrange(begin, len(piece)) + 1])])
    return "".join(chosen)


def _parse(form: str, *parts: str) -> list[Piece]:
    reader = load_format(form)(_load_corpus(form)[1])
    return [*[piece for part in parts for piece in reader.feed(part)], *reader.finish()]


@pytest.mark.seeds(SEEDS)
@pytest.mark.shows("D.18")
def test_the_result_does_not_depend_on_chunk_boundaries(form: str, seed: int) -> None:
    rng = random.Random(seed)
    for answer in _make_answers(form, seed):
        expected = collect_pieces(_parse(form, answer))
        assert collect_pieces(_parse(form, *answer)) == expected, answer
        cut = rng.randrange(len(answer) + 1)
        assert collect_pieces(_parse(form, answer[:cut], answer[cut:])) == expected, (answer[:cut], answer[cut:])


@pytest.mark.seeds(SEEDS)
def test_text_pieces_have_ascending_ends_and_join_to_the_answer(form: str, seed: int) -> None:
    for answer in _make_answers(form, seed):
        pieces = _parse(form, *answer)
        ends = [piece.end for piece in pieces if isinstance(piece, TextPiece)]
        assert ends == sorted(ends), answer
        assert all(end <= len(answer) for end in ends), answer
        if not any(isinstance(piece, CallStarted) for piece in pieces):
            assert "".join([piece.text for piece in pieces if isinstance(piece, TextPiece)]) == answer


@pytest.mark.seeds(SEEDS)
def test_calls_are_numbered_and_do_not_overlap(form: str, seed: int) -> None:
    for answer in _make_answers(form, seed):
        open_call, last = -1, -1
        for piece in _parse(form, answer):
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


def test_a_second_finish_emits_nothing(form: str) -> None:
    for recording in load_recordings(form):
        reader = load_format(form)(build_schemas(recording))
        reader.feed(recording.output)
        reader.finish()
        assert not reader.finish()


def test_text_without_markers_is_emitted_at_once(form: str) -> None:
    reader = load_format(form)(_load_corpus(form)[1])
    texts = ["The ", "answer ", "is ", "forty", "-two."]
    assert [["".join([each.text for each in reader.feed(text) if isinstance(each, TextPiece)])] for text in texts] == [
        [text] for text in texts
    ]


def test_the_error_for_an_unknown_format_lists_the_registered_ones(form: str) -> None:
    with pytest.raises(StartupError, match=form):
        load_format(f"no-{form}")

"""Contract of tool-call formats (`parsers/calls/base.py`): the tests of `CallFormatContract`, with random mixtures of
outputs.
"""

import random
from collections.abc import Iterable, Mapping, Sequence

from msgspec import UNSET, Struct, UnsetType

from antiphon.core.deltas import CallDelta, CallDone, CallStarted
from antiphon.core.prompt import Json
from antiphon.parsers.calls.base import Piece, TextPiece
from antiphon.parsers.calls.delimited_calls import DelimitedCalls
from antiphon.parsers.calls.registry import load_format
from antiphon.testing.suite import shows

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


class Corpus(Struct, frozen=True, kw_only=True):
    """Outputs of models in one format, and the schemas of the tools that they call, by name."""

    format: str
    outputs: Sequence[str]
    tools: Mapping[str, Json]

    def make_reader(self) -> DelimitedCalls:
        return load_format(self.format)(self.tools)

    def parse(self, *parts: str) -> list[Piece]:
        reader = self.make_reader()
        return [*[piece for part in parts for piece in reader.feed(part)], *reader.finish()]

    def make_answers(self, seed: int) -> list[str]:
        """Join random outputs, fragments of them, markers and single characters to answers."""
        rng = random.Random(f"{self.format} {seed}")
        reader = self.make_reader()
        markers = [*reader.openings, *reader.controls]
        pieces = [*self.outputs, *markers * 3, *(marker[:-1] for marker in markers)]
        return [_make_answer(rng, pieces) for _ in range(ANSWERS_PER_SEED)]


def _make_answer(rng: random.Random, pieces: list[str]) -> str:
    chosen = []
    for _ in range(rng.randrange(1, 8)):
        piece = rng.choice([*pieces, *CHARACTERS])
        begin = rng.choice([0, 0, rng.randrange(len(piece))])
        chosen.append(piece[begin : rng.choice([len(piece), rng.randrange(begin, len(piece)) + 1])])
    return "".join(chosen)


class ParsedPiece(Struct, kw_only=True, omit_defaults=True):
    """Text, or a call with its arguments as JSON text."""

    text: str | UnsetType = UNSET
    call: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


def collect_pieces(pieces: Iterable[Piece]) -> list[ParsedPiece]:
    """Join neighbouring text and the arguments of each call, and assert that every call ends exactly once."""
    out: list[ParsedPiece] = []
    arguments: dict[int, list[str]] = {}  # of the open calls
    calls: dict[int, ParsedPiece] = {}
    for piece in pieces:
        match piece:
            case TextPiece(text=text) if out and out[-1].text is not UNSET:
                out[-1].text += text
            case TextPiece(text=text):
                out.append(ParsedPiece(text=text))
            case CallStarted(key=key, name=name):
                assert key not in calls, f"the key {key} was used twice"
                arguments[key] = []
                calls[key] = ParsedPiece(call=name)
                out.append(calls[key])
            case CallDelta(key=key, text=text):
                arguments[key].append(text)
            case CallDone(key=key):
                calls[key].arguments = "".join(arguments.pop(key))
    assert not arguments, "a call was not ended"
    return out


@shows("D.18")
def test_the_result_does_not_depend_on_chunk_boundaries(corpus: Corpus, seed: int) -> None:
    rng = random.Random(seed)
    for answer in corpus.make_answers(seed):
        expected = collect_pieces(corpus.parse(answer))
        assert collect_pieces(corpus.parse(*answer)) == expected, answer
        cut = rng.randrange(len(answer) + 1)
        assert collect_pieces(corpus.parse(answer[:cut], answer[cut:])) == expected, (answer[:cut], answer[cut:])


def test_text_pieces_have_ascending_ends_and_join_to_the_answer(corpus: Corpus, seed: int) -> None:
    for answer in corpus.make_answers(seed):
        pieces = corpus.parse(*answer)
        ends = [piece.end for piece in pieces if isinstance(piece, TextPiece)]
        assert ends == sorted(ends), answer
        assert all(end <= len(answer) for end in ends), answer
        if not any(isinstance(piece, CallStarted) for piece in pieces):
            assert "".join([piece.text for piece in pieces if isinstance(piece, TextPiece)]) == answer


def test_calls_are_numbered_and_do_not_overlap(corpus: Corpus, seed: int) -> None:
    for answer in corpus.make_answers(seed):
        open_call, last = -1, -1
        for piece in corpus.parse(answer):
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


def test_a_second_finish_emits_nothing(corpus: Corpus) -> None:
    for output in corpus.outputs:
        reader = corpus.make_reader()
        reader.feed(output)
        reader.finish()
        assert not reader.finish()


def test_text_without_markers_is_emitted_at_once(corpus: Corpus) -> None:
    reader = corpus.make_reader()
    texts = ["The ", "answer ", "is ", "forty", "-two."]
    assert [["".join([each.text for each in reader.feed(text) if isinstance(each, TextPiece)])] for text in texts] == [
        [text] for text in texts
    ]

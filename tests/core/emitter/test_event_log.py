"""A log that is folded while it grows says what it would have said, in less room."""

from collections.abc import Sequence
from itertools import chain
from sys import getsizeof

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.deltas import CallDelta, CallStarted, Delta, Text, Thought
from antiphon.core.emitter.emitter import Emitter
from antiphon.core.emitter.event_log import EVERY, Entry, Spoken
from antiphon.core.emitter.fold import Ending
from antiphon.core.replay.packed_log import pack, unpack
from antiphon.errors import EngineFailed
from antiphon.ids import ItemIds
from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.types.events import Event
from antiphon.protocol.types.response import Response
from tests.core.emitter.streams import LOGPROB

ID = "resp_" + "0" * 32
KINDS = st.sampled_from([
    [Text("a")], [Text("ü\u2028😀")], [Text("")], [Text("a"), Text("b")], [Text("a", (LOGPROB,))],
    [Thought("hm")], [Thought("x"), Text("y")],
])  # fmt: skip
STRETCHES = st.lists(st.tuples(KINDS, st.integers(1, 3 * EVERY)), max_size=6)


def emitter(log: list[Sequence[Entry]], gathers: bool) -> Emitter:
    made = Emitter(Response(id=ID, created_at=1, model="m"), ItemIds(ID), False, log)
    if gathers:
        made.gathers = EVERY
    return made


def said(made: Emitter, lists: list[list[Delta]]) -> list[Event]:
    events = [*made.created(), *made.in_progress()]
    for deltas in lists:
        texts = [delta for delta in deltas if isinstance(delta, Text)]
        events += made.say(texts) if texts == deltas else made.feed(deltas)
    return events + made.finish(Ending(status="completed"), None, 2)


@given(STRETCHES)
def test_folding_changes_neither_the_events_nor_what_the_log_says(stretches: list[tuple[list[Delta], int]]) -> None:
    lists = [[*deltas] for deltas, times in stretches for _ in range(times)]
    plain, folded = emitter([], gathers=False), emitter([], gathers=True)
    assert list(map(encode, said(folded, lists))) == list(map(encode, said(plain, lists)))
    assert plain.log is not None
    assert folded.log is not None
    entries = [*chain.from_iterable(plain.log)]
    assert [*chain.from_iterable(folded.log)] == entries
    assert unpack(pack(folded.log, folded.response), folded.response) == entries


@pytest.mark.parametrize("kind", [Text, Thought])
def test_a_long_answer_takes_a_few_bytes_a_token(kind: type[Text] | type[Thought]) -> None:
    made = emitter([], gathers=True)
    said(made, [[kind(f"word{number % 7} ")] for number in range(100 * EVERY)])
    assert made.log is not None
    assert len(made.log) < 100 + 3 * EVERY
    spoken = [part for part in made.log if isinstance(part, Spoken)]
    assert len(spoken) >= 98
    assert sum(getsizeof(part.text) + getsizeof(part.lengths) for part in spoken) < 15 * 100 * EVERY


def test_a_log_that_somebody_follows_is_left_as_it_is() -> None:
    class Followed(list[Sequence[Entry]]):
        pass

    made = emitter(Followed(), gathers=True)
    said(made, [[Text("a")]] * (3 * EVERY))
    assert made.log is not None
    assert len(made.log) == 3 * EVERY + 2


def test_what_never_took_place_is_not_in_a_folded_log_either() -> None:
    made = emitter([], gathers=True)
    made.created()
    made.in_progress()
    for _ in range(2 * EVERY - 1):
        made.feed([Text("a")])
    with pytest.raises(EngineFailed):
        made.feed([CallStarted(0, "f"), Text("b"), CallDelta(0, "{}")])
    assert made.log is not None
    assert [*chain.from_iterable(made.log)][-2:] == [CallStarted(0, "f"), Text("b")]


def test_a_stretch_is_a_sequence_of_its_entries() -> None:
    spoken = Spoken(Thought, ["a", "", "bc"])
    assert (len(spoken), spoken[-1], spoken[1:]) == (3, Thought("bc"), [Thought(""), Thought("bc")])
    assert [*spoken] == [Thought("a"), Thought(""), Thought("bc")]

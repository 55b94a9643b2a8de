"""An event log that is folded while it grows yields the same entries and takes less memory."""

from collections.abc import Sequence
from itertools import chain
from sys import getsizeof

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.deltas import CallDelta, CallStarted, Delta, ReasoningDelta, Text
from antiphon.core.emitter.emitter import Emitter
from antiphon.core.emitter.event_log import FOLD_BATCH, FoldedDeltas, LogEntry
from antiphon.core.emitter.fold import ResponseEnding
from antiphon.errors import EngineFailed
from antiphon.ids import ItemIds
from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.types.events import Event
from antiphon.protocol.types.response import Response
from tests.core.emitter.streams import LOGPROB, repack_log

ID = "resp_" + "0" * 32
KINDS = st.sampled_from([
    [Text("a")], [Text("ü\u2028😀")], [Text("")], [Text("a"), Text("b")], [Text("a", (LOGPROB,))],
    [ReasoningDelta("hm")], [ReasoningDelta("x"), Text("y")],
])  # fmt: skip
DELTA_RUNS = st.lists(st.tuples(KINDS, st.integers(1, 3 * FOLD_BATCH)), max_size=6)


def make_emitter(log: list[Sequence[LogEntry]], folds: bool) -> Emitter:
    made = Emitter(Response(id=ID, created_at=1, model="m"), ItemIds(ID), False, log)
    if folds:
        made.fold_threshold = FOLD_BATCH
    return made


def emit_lists(made: Emitter, lists: list[list[Delta]]) -> list[Event]:
    events = [*made.emit_created(), *made.emit_in_progress()]
    for deltas in lists:
        texts = [delta for delta in deltas if isinstance(delta, Text)]
        events += made.feed_text(texts) if texts == deltas else made.feed(deltas)
    return events + made.finish(ResponseEnding(status="completed"), None, 2)


@given(DELTA_RUNS)
def test_folding_changes_neither_the_events_nor_the_log_entries(runs: list[tuple[list[Delta], int]]) -> None:
    lists = [[*deltas] for deltas, times in runs for _ in range(times)]
    plain, folded = make_emitter([], folds=False), make_emitter([], folds=True)
    assert list(map(encode, emit_lists(folded, lists))) == list(map(encode, emit_lists(plain, lists)))
    assert plain.log is not None
    assert folded.log is not None
    entries = [*chain.from_iterable(plain.log)]
    assert [*chain.from_iterable(folded.log)] == entries
    assert repack_log(folded) == entries


@pytest.mark.parametrize("kind", [Text, ReasoningDelta])
def test_a_long_answer_takes_a_few_bytes_per_token(kind: type[Text] | type[ReasoningDelta]) -> None:
    made = make_emitter([], folds=True)
    emit_lists(made, [[kind(f"word{number % 7} ")] for number in range(100 * FOLD_BATCH)])
    assert made.log is not None
    assert len(made.log) < 100 + 3 * FOLD_BATCH
    folded = [part for part in made.log if isinstance(part, FoldedDeltas)]
    assert len(folded) >= 98
    assert sum(getsizeof(part.text) + getsizeof(part.lengths) for part in folded) < 15 * 100 * FOLD_BATCH


def test_a_followed_log_is_not_folded() -> None:
    class Followed(list[Sequence[LogEntry]]):
        pass

    made = make_emitter(Followed(), folds=True)
    emit_lists(made, [[Text("a")]] * (3 * FOLD_BATCH))
    assert made.log is not None
    assert len(made.log) == 3 * FOLD_BATCH + 2


def test_a_failed_delta_is_not_in_a_folded_log() -> None:
    made = make_emitter([], folds=True)
    made.emit_created()
    made.emit_in_progress()
    for _ in range(2 * FOLD_BATCH - 1):
        made.feed([Text("a")])
    with pytest.raises(EngineFailed):
        made.feed([CallStarted(0, "f"), Text("b"), CallDelta(0, "{}")])
    assert made.log is not None
    assert [*chain.from_iterable(made.log)][-2:] == [CallStarted(0, "f"), Text("b")]


def test_folded_deltas_are_a_sequence_of_their_entries() -> None:
    folded = FoldedDeltas(ReasoningDelta, "abc", [1, 0, 2])
    assert (len(folded), folded[-1], folded[1:]) == (
        3,
        ReasoningDelta("bc"),
        [ReasoningDelta(""), ReasoningDelta("bc")],
    )
    assert [*folded] == [ReasoningDelta("a"), ReasoningDelta(""), ReasoningDelta("bc")]

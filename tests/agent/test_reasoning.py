"""`ReasoningFilter`: reasoning deltas are emitted as reasoning or summaries, followed by their encrypted form."""

from collections.abc import Sequence

import pytest

from antiphon.agent.reasoning import ReasoningFilter
from antiphon.core.deltas import (
    Break,
    CallDelta,
    CallDone,
    CallStarted,
    Citation,
    Delta,
    EncryptedReasoning,
    ReasoningDelta,
    Refusal,
    Summary,
    Text,
)
from antiphon.protocol.types.parts import UrlCitation

CITED = Citation(UrlCitation(url="http://x", title="x", start_index=0, end_index=1))


def encrypt(text: str) -> str:
    return f"<{text}>"


def feed_all(reasoning_filter: ReasoningFilter, lists: Sequence[Sequence[Delta]]) -> list[Delta]:
    return [delta for deltas in lists for delta in reasoning_filter.feed(deltas)] + reasoning_filter.finish()


@pytest.mark.parametrize("end", [Text("x"), Text(""), Refusal("no"), CITED, CallStarted(0, "f"), Break()], ids=repr)
@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
def test_reasoning_is_encrypted_before_the_delta_that_ends_it(end: Delta, apart: bool) -> None:
    deltas: list[Delta] = [ReasoningDelta("a"), ReasoningDelta("b"), end, ReasoningDelta("c")]
    output = feed_all(ReasoningFilter(False, encrypt), [[delta] for delta in deltas] if apart else [deltas])
    assert output == [
        ReasoningDelta("a"),
        ReasoningDelta("b"),
        EncryptedReasoning("<ab>"),
        end,
        ReasoningDelta("c"),
        EncryptedReasoning("<c>"),
    ]


def test_the_late_end_of_a_call_does_not_end_reasoning() -> None:
    output = feed_all(
        ReasoningFilter(False, encrypt),
        [[CallStarted(0, "f"), CallDelta(0, "{}"), ReasoningDelta("a")], [CallDone(0)], [ReasoningDelta("b")]],
    )
    assert output[-3:] == [CallDone(0), ReasoningDelta("b"), EncryptedReasoning("<ab>")]
    assert sum(isinstance(delta, EncryptedReasoning) for delta in output) == 1


def test_reasoning_is_encrypted_equally_with_and_without_a_summary() -> None:
    lists: list[list[Delta]] = [[ReasoningDelta("a"), ReasoningDelta("b")], [Text("x")]]
    assert feed_all(ReasoningFilter(True, encrypt), lists) == [
        Summary("a"),
        Summary("b"),
        EncryptedReasoning("<ab>"),
        Text("x"),
    ]
    assert feed_all(ReasoningFilter(True, None), lists) == [Summary("a"), Summary("b"), Text("x")]
    assert feed_all(ReasoningFilter(False, None), lists) == [ReasoningDelta("a"), ReasoningDelta("b"), Text("x")]


def test_a_summary_written_by_the_model_is_encrypted() -> None:
    assert feed_all(ReasoningFilter(True, encrypt), [[Summary("a", 0), Summary("b", 1)]])[-1] == EncryptedReasoning(
        "<ab>"
    )


def test_without_reasoning_nothing_is_encrypted() -> None:
    assert feed_all(ReasoningFilter(False, encrypt), [[Text("x"), CallStarted(0, "f")], []]) == [
        Text("x"),
        CallStarted(0, "f"),
    ]


def test_reasoning_is_encrypted_only_once_it_is_complete() -> None:
    encrypted: list[str] = []

    def record(text: str) -> str:
        encrypted.append(text)
        return text

    reasoning_filter = ReasoningFilter(False, record)
    for _ in range(100):
        reasoning_filter.feed([ReasoningDelta("a")])
    assert encrypted == []
    reasoning_filter.feed([Text("x")])
    reasoning_filter.feed([Text("y")])
    assert reasoning_filter.finish() == []
    assert encrypted == ["a" * 100]

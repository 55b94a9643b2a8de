from collections.abc import Sequence

import pytest

from antiphon.agent.reasoning import Thoughts
from antiphon.core.deltas import (
    Break,
    CallDelta,
    CallDone,
    CallStarted,
    Citation,
    Delta,
    Refusal,
    Sealed,
    Summary,
    Text,
    Thought,
)
from antiphon.protocol.types.items import UrlCitation

CITED = Citation(UrlCitation(url="http://x", title="x", start_index=0, end_index=1))


def seal(thought: str) -> str:
    return f"<{thought}>"


def fed(thoughts: Thoughts, lists: Sequence[Sequence[Delta]]) -> list[Delta]:
    return [delta for deltas in lists for delta in thoughts.feed(deltas)] + thoughts.finish()


@pytest.mark.parametrize("end", [Text("x"), Text(""), Refusal("no"), CITED, CallStarted(0, "f"), Break()], ids=repr)
@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
def test_a_thought_is_sealed_before_whatever_ends_it(end: Delta, apart: bool) -> None:
    deltas: list[Delta] = [Thought("a"), Thought("b"), end, Thought("c")]
    told = fed(Thoughts(False, seal), [[delta] for delta in deltas] if apart else [deltas])
    assert told == [Thought("a"), Thought("b"), Sealed("<ab>"), end, Thought("c"), Sealed("<c>")]


def test_a_call_that_ends_late_does_not_end_a_thought() -> None:
    told = fed(
        Thoughts(False, seal), [[CallStarted(0, "f"), CallDelta(0, "{}"), Thought("a")], [CallDone(0)], [Thought("b")]]
    )
    assert told[-3:] == [CallDone(0), Thought("b"), Sealed("<ab>")]
    assert sum(isinstance(delta, Sealed) for delta in told) == 1


def test_the_same_is_sealed_whether_it_goes_out_as_a_summary_or_not() -> None:
    given: list[list[Delta]] = [[Thought("a"), Thought("b")], [Text("x")]]
    assert fed(Thoughts(True, seal), given) == [Summary("a"), Summary("b"), Sealed("<ab>"), Text("x")]
    assert fed(Thoughts(True, None), given) == [Summary("a"), Summary("b"), Text("x")]
    assert fed(Thoughts(False, None), given) == [Thought("a"), Thought("b"), Text("x")]


def test_a_summary_that_a_model_writes_itself_is_sealed_too() -> None:
    assert fed(Thoughts(True, seal), [[Summary("a", 0), Summary("b", 1)]])[-1] == Sealed("<ab>")


def test_without_a_thought_nothing_is_sealed() -> None:
    assert fed(Thoughts(False, seal), [[Text("x"), CallStarted(0, "f")], []]) == [Text("x"), CallStarted(0, "f")]


def test_nothing_is_sealed_before_the_thought_is_whole() -> None:
    sealed: list[str] = []

    def note(thought: str) -> str:
        sealed.append(thought)
        return thought

    thoughts = Thoughts(False, note)
    for _ in range(100):
        thoughts.feed([Thought("a")])
    assert sealed == []
    thoughts.feed([Text("x")])
    thoughts.feed([Text("y")])
    assert thoughts.finish() == []
    assert sealed == ["a" * 100]

"""Figures are made of what was measured by plain arithmetic, and stay small however much that is."""

import random
from statistics import quantiles
from typing import Any

import pytest

from antiphon.cli.bench.figures import MOST_KINDS, OTHERS, Answered, Figures, Gaps, Spread, Tally, percentile, spread


def figures(tally: Tally) -> Figures:
    return tally.figures("http://a", "chat", "m", 1, None)


def answer(begun: float, first: float, last: float, **more: Any) -> Answered:
    return Answered(begun=begun, first=first, last=last, ended=last + 0.5, **{"pieces": 11, **more})


def test_a_percentile_lies_between_the_two_nearest() -> None:
    assert percentile([], 0.5) is None
    assert [percentile([7.0], share) for share in (0, 0.5, 1)] == [7.0] * 3
    assert [percentile([4.0, 1.0, 2.0, 3.0], share) for share in (0, 0.5, 0.9, 1)] == [
        1.0,
        2.5,
        pytest.approx(3.7),
        4.0,
    ]
    values = [random.Random(3).random() for _ in range(1000)]
    assert percentile(values, 0.9) == pytest.approx(quantiles(values, n=10, method="inclusive")[8])


def test_spreads_are_in_milliseconds() -> None:
    assert spread([]) == Spread()
    found = spread([0.001, 0.002, 0.003])
    assert [found.p50, found.p90, found.p99, found.most] == pytest.approx([2.0, 2.8, 2.98, 3.0])


def test_gaps_are_counted_to_one_percent() -> None:
    chance, gaps, all_gaps = random.Random(1), Gaps(), []
    for _ in range(20_000):
        all_gaps.append(chance.lognormvariate(-4, 1))
        gaps.add(all_gaps[-1])
    for share in (0.01, 0.5, 0.9, 0.99):
        assert gaps.percentile(share) == pytest.approx(percentile(all_gaps, share), rel=0.015)
    assert gaps.spread().most == max(all_gaps) * 1000


def test_nobody_waits_between_tokens_that_come_together() -> None:
    gaps = Gaps()
    assert gaps.percentile(0.5) is None
    assert gaps.spread() == Spread()
    gaps.none(4)
    assert gaps.spread() == Spread(p50=0.0, p90=0.0, p99=0.0, most=0.0)
    for _ in range(3):
        gaps.add(0.02)
    assert gaps.percentile(0.5) == 0.0
    assert gaps.percentile(0.9) == pytest.approx(0.02, rel=0.01)


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e-9, 1e9])
def test_no_gap_is_too_short_or_too_long_to_count(seconds: float) -> None:
    gaps = Gaps()
    gaps.add(seconds)
    assert gaps.percentile(0.5) is not None


def test_times_count_from_when_a_request_was_due() -> None:
    tally = Tally()
    tally.seconds = 10.0
    tally.answered(answer(100.0, 100.25, 101.25, gaps=[0.2] * 5))
    made = figures(tally)
    assert (made.between_tokens_ms.p50, made.between_tokens_ms.most) == (0.0, 200.0)
    assert made.between_tokens_ms.p90 == pytest.approx(200.0, rel=0.01)
    assert (made.first_token_ms.p50, made.answer_ms.p50) == (250.0, 1750.0)
    assert made.tokens_per_second_of_a_stream == pytest.approx(10.0)
    assert (made.tokens_per_second, made.requests_per_second) == (1.1, 0.1)


def test_tokens_are_those_of_the_server_where_it_counts_them() -> None:
    tally = Tally()
    tally.answered(answer(0.0, 1.0, 2.0, output_tokens=44, input_tokens=5))
    assert (figures(tally).output_tokens, figures(tally).input_tokens, figures(tally).counted_by) == (44, 5, "usage")
    assert figures(tally).tokens_an_event == 4.0
    tally.answered(answer(0.0, 1.0, 2.0))
    assert (figures(tally).output_tokens, figures(tally).counted_by) == (55, "both")
    alone = Tally()
    alone.answered(answer(0.0, 1.0, 2.0))
    assert (figures(alone).output_tokens, figures(alone).counted_by) == (11, "events")


def test_an_answer_of_one_token_or_one_moment_has_no_pace() -> None:
    tally = Tally()
    tally.answered(answer(0.0, 1.0, 1.0))
    tally.answered(answer(0.0, 1.0, 1.0, pieces=1))
    assert figures(tally).tokens_per_second_of_a_stream is None


def test_failures_are_counted_by_kind_with_one_example_and_not_without_end() -> None:
    tally = Tally()
    for number in range(3):
        tally.fail("HTTP 429", f"sentence {number}")
    for number in range(MOST_KINDS + 5):
        tally.fail(f"kind {number}", "s")
    made = figures(tally)
    assert (made.requests, made.failed) == (MOST_KINDS + 8, MOST_KINDS + 8)
    assert len(made.failures) == MOST_KINDS + 1
    assert {(one.kind, one.count, one.example) for one in made.failures[:2]} == {
        (OTHERS, 6, "s"),
        ("HTTP 429", 3, "sentence 0"),
    }


def test_nothing_measured_makes_figures_all_the_same() -> None:
    made = figures(Tally())
    assert (made.requests, made.tokens_per_second, made.first_token_ms.p50) == (0, 0.0, None)

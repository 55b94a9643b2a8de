"""The arithmetic of the benchmark figures, and the bounded size of a measurement."""

import random
from statistics import quantiles
from typing import Any

import pytest

from antiphon.cli.bench.figures import (
    MAX_FAILURE_KINDS,
    OTHER_FAILURES,
    AnswerTiming,
    Figures,
    GapHistogram,
    Measurement,
    Percentiles,
    compute_percentiles,
    percentile,
)


def make_figures(tally: Measurement) -> Figures:
    return tally.to_figures("http://a", "chat", "m", 1, None)


def make_answer(begun: float, first: float, last: float, **fields: Any) -> AnswerTiming:
    return AnswerTiming(
        due=begun, first_token=first, last_token=last, ended=last + 0.5, **{"content_events": 11, **fields}
    )


def test_a_percentile_interpolates_between_the_nearest_values() -> None:
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


def test_percentiles_are_in_milliseconds() -> None:
    assert compute_percentiles([]) == Percentiles()
    percentiles = compute_percentiles([0.001, 0.002, 0.003])
    assert [percentiles.p50, percentiles.p90, percentiles.p99, percentiles.most] == pytest.approx([2.0, 2.8, 2.98, 3.0])


def test_gap_percentiles_are_accurate_to_one_percent() -> None:
    rng, gaps, all_gaps = random.Random(1), GapHistogram(), []
    for _ in range(20_000):
        all_gaps.append(rng.lognormvariate(-4, 1))
        gaps.add(all_gaps[-1])
    for share in (0.01, 0.5, 0.9, 0.99):
        assert gaps.percentile(share) == pytest.approx(percentile(all_gaps, share), rel=0.015)
    assert gaps.to_percentiles().most == max(all_gaps) * 1000


def test_tokens_that_arrive_together_have_zero_gaps() -> None:
    gaps = GapHistogram()
    assert gaps.percentile(0.5) is None
    assert gaps.to_percentiles() == Percentiles()
    gaps.add_zeros(4)
    assert gaps.to_percentiles() == Percentiles(p50=0.0, p90=0.0, p99=0.0, most=0.0)
    for _ in range(3):
        gaps.add(0.02)
    assert gaps.percentile(0.5) == 0.0
    assert gaps.percentile(0.9) == pytest.approx(0.02, rel=0.01)


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e-9, 1e9])
def test_no_gap_is_too_short_or_too_long_to_count(seconds: float) -> None:
    gaps = GapHistogram()
    gaps.add(seconds)
    assert gaps.percentile(0.5) is not None


def test_times_count_from_when_a_request_was_due() -> None:
    tally = Measurement()
    tally.seconds = 10.0
    tally.record_answer(make_answer(100.0, 100.25, 101.25, gaps=[0.2] * 5))
    made = make_figures(tally)
    assert (made.between_tokens_ms.p50, made.between_tokens_ms.most) == (0.0, 200.0)
    assert made.between_tokens_ms.p90 == pytest.approx(200.0, rel=0.01)
    assert (made.first_token_ms.p50, made.answer_ms.p50) == (250.0, 1750.0)
    assert made.tokens_per_second_of_a_stream == pytest.approx(10.0)
    assert (made.tokens_per_second, made.requests_per_second) == (1.1, 0.1)


def test_the_usage_of_the_server_takes_precedence_over_event_counts() -> None:
    tally = Measurement()
    tally.record_answer(make_answer(0.0, 1.0, 2.0, output_tokens=44, input_tokens=5))
    assert (make_figures(tally).output_tokens, make_figures(tally).input_tokens, make_figures(tally).counted_by) == (
        44,
        5,
        "usage",
    )
    assert make_figures(tally).tokens_an_event == 4.0
    tally.record_answer(make_answer(0.0, 1.0, 2.0))
    assert (make_figures(tally).output_tokens, make_figures(tally).counted_by) == (55, "both")
    alone = Measurement()
    alone.record_answer(make_answer(0.0, 1.0, 2.0))
    assert (make_figures(alone).output_tokens, make_figures(alone).counted_by) == (11, "events")


def test_an_answer_of_one_token_or_zero_duration_has_no_token_rate() -> None:
    tally = Measurement()
    tally.record_answer(make_answer(0.0, 1.0, 1.0))
    tally.record_answer(make_answer(0.0, 1.0, 1.0, content_events=1))
    assert make_figures(tally).tokens_per_second_of_a_stream is None


def test_failures_are_counted_by_kind_up_to_a_limit_with_one_example() -> None:
    tally = Measurement()
    for number in range(3):
        tally.record_failure("HTTP 429", f"sentence {number}")
    for number in range(MAX_FAILURE_KINDS + 5):
        tally.record_failure(f"kind {number}", "s")
    made = make_figures(tally)
    assert (made.requests, made.failed) == (MAX_FAILURE_KINDS + 8, MAX_FAILURE_KINDS + 8)
    assert len(made.failures) == MAX_FAILURE_KINDS + 1
    assert {(one.kind, one.count, one.example) for one in made.failures[:2]} == {
        (OTHER_FAILURES, 6, "s"),
        ("HTTP 429", 3, "sentence 0"),
    }


def test_an_empty_measurement_produces_figures() -> None:
    made = make_figures(Measurement())
    assert (made.requests, made.tokens_per_second, made.first_token_ms.p50) == (0, 0.0, None)

"""The arithmetic of the benchmark figures, and the bounded size of a measurement."""

import random
from array import array
from typing import Any

import pytest

from antiphon.cli.bench import figures
from antiphon.cli.bench.figures import (
    MAX_FAILURE_KINDS,
    OTHER_FAILURES,
    Answer,
    Figures,
    Measurement,
    Percentiles,
    compute_percentiles,
)


def make_figures(tally: Measurement) -> Figures:
    return tally.to_figures("http://a", "chat", "m", 1, None)


def make_answer(due: float, first: float, last: float, events: int = 11, **fields: Any) -> Answer:
    answer = Answer(due)
    answer.first_token, answer.last_token, answer.ended, answer.content_events = first, last, last + 0.5, events
    for name, value in fields.items():
        setattr(answer, name, value)
    return answer


def test_percentiles_interpolate_between_the_nearest_values() -> None:
    assert compute_percentiles(array("d", [7.0])) == Percentiles(7000.0, 7000.0, 7000.0, 7000.0)
    percentiles = compute_percentiles(array("d", [4.0, 1.0, 2.0, 3.0]))
    assert [percentiles.p50, percentiles.p90] == pytest.approx([2500.0, 3700.0])


def test_percentiles_are_in_milliseconds() -> None:
    assert compute_percentiles(array("d")) == Percentiles()
    percentiles = compute_percentiles(array("d", [0.001, 0.002, 0.003]))
    assert [percentiles.p50, percentiles.p90, percentiles.p99, percentiles.most] == pytest.approx([2.0, 2.8, 2.98, 3.0])


def test_of_very_many_gaps_a_random_sample_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "MAX_GAPS", 1_000)
    random.seed(1)
    tally = Measurement()
    for number in range(20):
        gaps = array("d", [float(number * 1_000 + index) for index in range(1_000)])
        tally.record_answer(make_answer(0.0, 1.0, 2.0, events=1_001, gaps=gaps))
    assert len(tally._gaps) == 1_000
    assert make_figures(tally).between_tokens_ms.p50 == pytest.approx(10_000_000, rel=0.1)


def test_events_that_arrive_together_have_one_time() -> None:
    answer = Answer(1.0)
    assert [answer.add(counts, now) for counts, now in (([0], 2.0), ([1, 1], 3.0), ([1], 4.0))] == [0, 2, 1]
    assert (answer.first_token, answer.last_token, answer.ended) == (3.0, 4.0, 4.0)
    assert (answer.content_events, list(answer.gaps)) == (3, [1.0])


def test_times_count_from_when_a_request_was_due() -> None:
    tally = Measurement()
    tally.seconds = 10.0
    tally.record_answer(make_answer(100.0, 100.25, 101.25, gaps=array("d", [0.2] * 4)))
    made = make_figures(tally)
    assert (made.between_tokens_ms.p50, made.between_tokens_ms.most) == (0.0, 200.0)
    assert made.between_tokens_ms.p90 == 200.0
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
    tally.record_answer(make_answer(0.0, 1.0, 1.0, events=1))
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

"""The load plan: levels, rounds, due times of requests, prompts and warm-ups.

Covers `cli/bench/plan.py`.
"""

import pytest

from antiphon.cli.bench.plan import BenchPlan, LoadLevel, make_levels


def get_due_times(plan: BenchPlan, level: LoadLevel, *now: float) -> list[float]:
    """Return the due times of the first round, which starts at the first of these times."""
    clock = iter(now)
    return list(plan.make_due_times(level, 0, lambda: next(clock)))


def test_there_is_a_level_for_each_concurrency_or_each_rate() -> None:
    assert make_levels([], []) == [LoadLevel(1)]
    assert make_levels([1, 8], []) == [LoadLevel(1), LoadLevel(8)]
    assert make_levels([], [5.0]) == [LoadLevel(512, 5.0)]
    assert make_levels([4], [5.0, 10.0]) == [LoadLevel(4, 5.0), LoadLevel(4, 10.0)]
    assert [str(level) for level in (LoadLevel(8), LoadLevel(8, 2.5))] == ["8 at once", "2.5 a second"]


def test_without_a_rate_a_request_is_due_when_a_connection_is_free() -> None:
    counted = BenchPlan(levels=[LoadLevel(1)], requests=3)
    assert get_due_times(counted, LoadLevel(1), 10.0, 10.0, 17.0, 18.0) == [10.0, 17.0, 18.0]
    timed = BenchPlan(levels=[LoadLevel(1)], seconds=5.0)
    assert get_due_times(timed, LoadLevel(1), 10.0, 10.0, 14.9, 15.0) == [10.0, 14.9]


def test_at_a_fixed_rate_requests_are_due_at_a_steady_pace_even_when_late() -> None:
    plan = BenchPlan(levels=[LoadLevel(1)], seconds=1.0)
    assert get_due_times(plan, LoadLevel(1, 4.0), 10.0) == [10.0, 10.25, 10.5, 10.75]


def test_rounds_share_the_requests_and_the_seconds() -> None:
    plan = BenchPlan(levels=[LoadLevel(1)], requests=10, seconds=9.0, rounds=3)
    assert [plan.count_requests(turn) for turn in range(3)] == [4, 3, 3]
    assert get_due_times(plan, LoadLevel(1), 0.0, 2.9, 3.0) == [2.9]


@pytest.mark.parametrize("tokens", [1, 3, 6, 100])
def test_generated_prompts_have_the_requested_number_of_words(tokens: int) -> None:
    plan = BenchPlan(levels=[LoadLevel(1)], prompt_tokens=tokens)
    assert [len(plan.make_prompt(number).split()) for number in (0, 7, 12345)] == [tokens] * 3


def test_generated_prompts_have_different_beginnings() -> None:
    plan = BenchPlan(levels=[LoadLevel(1)], prompt_tokens=40)
    beginnings = {tuple(plan.make_prompt(number).split()[:6]) for number in range(20_000)}
    assert len(beginnings) == 20_000
    assert plan.make_prompt(0).split()[0] != plan.make_prompt(1).split()[0]
    assert BenchPlan(levels=[LoadLevel(1)], prompt="hi").make_prompt(7) == "hi"


def test_body_fields_can_be_added_changed_and_removed() -> None:
    plan = BenchPlan(levels=[LoadLevel(1)], extra={"seed": 1, "stream": None, "model": "b"})
    assert plan.add_extra_fields({"model": "a", "stream": True}) == {"model": "b", "seed": 1}


def test_every_connection_is_warmed_up_when_their_number_is_fixed() -> None:
    plan = BenchPlan(levels=[LoadLevel(1)])
    assert [plan.count_warmups(level) for level in (LoadLevel(32), LoadLevel(512, 5.0), LoadLevel(2, 5.0))] == [
        32,
        8,
        2,
    ]
    assert BenchPlan(levels=[LoadLevel(1)], warmup=0).count_warmups(LoadLevel(32)) == 0

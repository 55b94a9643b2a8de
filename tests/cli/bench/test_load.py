"""Which load is made: levels, shares of rounds, moments at which requests are due, prompts."""

import pytest

from antiphon.cli.bench.plan import Level, Plan, Quota, levels


def due(quota: Quota, *now: float) -> list[float | None]:
    return [quota.next(moment) for moment in now]


def test_there_is_a_level_for_each_concurrency_or_each_rate() -> None:
    assert levels([], []) == [Level(1)]
    assert levels([1, 8], []) == [Level(1), Level(8)]
    assert levels([], [5.0]) == [Level(512, 5.0)]
    assert levels([4], [5.0, 10.0]) == [Level(4, 5.0), Level(4, 10.0)]
    assert [str(level) for level in (Level(8), Level(8, 2.5))] == ["8 at once", "2.5 a second"]


def test_without_a_rate_a_request_is_due_when_somebody_is_free() -> None:
    assert due(Quota(10.0, None, 3, None), 10.0, 17.0, 18.0, 19.0) == [10.0, 17.0, 18.0, None]
    assert due(Quota(10.0, None, 99, 5.0), 10.0, 14.9, 15.0) == [10.0, 14.9, None]


def test_at_a_rate_requests_are_due_at_a_steady_pace_however_late_it_is() -> None:
    assert due(Quota(10.0, 4.0, 99, 1.0), 10.0, 10.0, 50.0, 60.0, 60.0) == [10.0, 10.25, 10.5, 10.75, None]


def test_rounds_share_what_there_is_to_do() -> None:
    plan = Plan(levels=[Level(1)], requests=10, seconds=9.0, rounds=3)
    assert [plan.quota(Level(1), turn, 0.0).requests for turn in range(3)] == [4, 3, 3]
    quota = plan.quota(Level(1), 0, 0.0)
    assert due(quota, 2.9, 3.0) == [2.9, None]


@pytest.mark.parametrize("tokens", [1, 3, 6, 100])
def test_generated_prompts_have_so_many_words(tokens: int) -> None:
    plan = Plan(levels=[Level(1)], prompt_tokens=tokens)
    assert [len(plan.prompt_of(number).split()) for number in (0, 7, 12345)] == [tokens] * 3


def test_no_two_generated_prompts_begin_alike() -> None:
    plan = Plan(levels=[Level(1)], prompt_tokens=40)
    beginnings = {tuple(plan.prompt_of(number).split()[:6]) for number in range(20_000)}
    assert len(beginnings) == 20_000
    assert plan.prompt_of(0).split()[0] != plan.prompt_of(1).split()[0]
    assert Plan(levels=[Level(1)], prompt="hi").prompt_of(7) == "hi"


def test_fields_of_the_body_can_be_added_changed_and_left_out() -> None:
    plan = Plan(levels=[Level(1)], extra={"seed": 1, "stream": None, "model": "b"})
    assert plan.mixed({"model": "a", "stream": True}) == {"model": "b", "seed": 1}


def test_every_connection_is_warmed_up_where_their_number_is_known() -> None:
    plan = Plan(levels=[Level(1)])
    assert [plan.warmups(level) for level in (Level(32), Level(512, 5.0), Level(2, 5.0))] == [32, 8, 2]
    assert Plan(levels=[Level(1)], warmup=0).warmups(Level(32)) == 0

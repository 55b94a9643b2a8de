"""Whose turn it is in the background, as it is worked out from what waits and runs."""

from collections import Counter
from random import Random

from antiphon.stores.sql.leases import Crowd, turns


def given(crowds: list[Crowd], places: int, seed: int = 1) -> dict[tuple[int, str], int]:
    return {(rank, tenant): count for rank, tenant, count in turns(crowds, places, Random(seed))}


def test_places_go_to_the_first_rank_but_for_one_in_nine() -> None:
    crowds = [Crowd(0, "a", 10_000, 0), Crowd(1, "a", 10_000, 0), Crowd(2, "a", 10_000, 0)]
    found = given(crowds, 9_000)
    assert sum(found.values()) == 9_000
    assert 7_800 < found[0, "a"] < 8_200
    assert 400 < found[1, "a"] < 600
    assert 400 < found[2, "a"] < 600


def test_what_nobody_before_them_wants_goes_to_those_behind() -> None:
    assert given([Crowd(0, "a", 1, 0), Crowd(1, "a", 5, 0), Crowd(2, "b", 2, 0)], 100) == {
        (0, "a"): 1,
        (1, "a"): 5,
        (2, "b"): 2,
    }


def test_among_equals_places_go_to_those_of_whom_least_runs() -> None:
    assert given([Crowd(1, "loud", 1000, 3), Crowd(1, "quiet", 2, 0)], 2) == {(1, "quiet"): 2}
    assert given([Crowd(1, "loud", 1000, 3), Crowd(1, "quiet", 2, 0)], 4) == {(1, "quiet"): 2, (1, "loud"): 2}
    assert given([Crowd(1, "loud", 1000, 3), Crowd(1, "quiet", 9, 0)], 7) == {(1, "loud"): 2, (1, "quiet"): 5}


def test_what_runs_in_another_rank_counts_too() -> None:
    crowds = [Crowd(0, "a", 5, 0), Crowd(1, "a", 0, 9), Crowd(0, "b", 5, 1)]
    assert given(crowds, 5) == {(0, "b"): 5}


def test_one_who_waits_alone_is_not_held_up_by_a_thousand_in_a_hurry() -> None:
    crowds = [Crowd(0, "loud", 1000, 16), Crowd(1, "quiet", 1, 0)]
    waits: Counter[int] = Counter()
    for seed in range(500):
        chance, turn = Random(seed), 1
        while turns(crowds, 1, chance) == [(0, "loud", 1)]:
            turn += 1
        waits[turn] += 1
    mean = sum(turn * count for turn, count in waits.items()) / 500
    assert 7 < mean < 11


def test_nothing_waits_and_nobody_has_a_turn() -> None:
    assert given([], 5) == {}
    assert given([Crowd(1, "a", 0, 5)], 5) == {}
    assert given([Crowd(1, "a", 5, 0)], 0) == {}

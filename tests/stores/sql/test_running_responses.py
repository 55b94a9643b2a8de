"""The allocation of slots for background responses, from the numbers of waiting and running responses."""

from collections import Counter
from random import Random

from antiphon.stores.sql.running_responses import TenantQueue, allocate_slots


def allocate(queues: list[TenantQueue], slots: int, seed: int = 1) -> dict[tuple[int, str], int]:
    return {(rank, tenant): count for rank, tenant, count in allocate_slots(queues, slots, Random(seed))}


def test_eight_of_nine_slots_go_to_the_first_rank() -> None:
    queues = [TenantQueue(0, "a", 10_000, 0), TenantQueue(1, "a", 10_000, 0), TenantQueue(2, "a", 10_000, 0)]
    found = allocate(queues, 9_000)
    assert sum(found.values()) == 9_000
    assert 7_800 < found[0, "a"] < 8_200
    assert 400 < found[1, "a"] < 600
    assert 400 < found[2, "a"] < 600


def test_slots_that_a_rank_does_not_need_go_to_lower_ranks() -> None:
    assert allocate([TenantQueue(0, "a", 1, 0), TenantQueue(1, "a", 5, 0), TenantQueue(2, "b", 2, 0)], 100) == {
        (0, "a"): 1,
        (1, "a"): 5,
        (2, "b"): 2,
    }


def test_within_a_rank_slots_go_to_the_tenants_with_the_fewest_running_responses() -> None:
    assert allocate([TenantQueue(1, "loud", 1000, 3), TenantQueue(1, "quiet", 2, 0)], 2) == {(1, "quiet"): 2}
    assert allocate([TenantQueue(1, "loud", 1000, 3), TenantQueue(1, "quiet", 2, 0)], 4) == {
        (1, "quiet"): 2,
        (1, "loud"): 2,
    }
    assert allocate([TenantQueue(1, "loud", 1000, 3), TenantQueue(1, "quiet", 9, 0)], 7) == {
        (1, "loud"): 2,
        (1, "quiet"): 5,
    }


def test_running_responses_of_other_ranks_count_too() -> None:
    queues = [TenantQueue(0, "a", 5, 0), TenantQueue(1, "a", 0, 9), TenantQueue(0, "b", 5, 1)]
    assert allocate(queues, 5) == {(0, "b"): 5}


def test_a_single_response_is_not_starved_by_a_thousand_of_a_higher_rank() -> None:
    queues = [TenantQueue(0, "loud", 1000, 16), TenantQueue(1, "quiet", 1, 0)]
    waits: Counter[int] = Counter()
    for seed in range(500):
        rng, turn = Random(seed), 1
        while allocate_slots(queues, 1, rng) == [(0, "loud", 1)]:
            turn += 1
        waits[turn] += 1
    mean = sum(turn * count for turn, count in waits.items()) / 500
    assert 7 < mean < 11


def test_no_slots_are_allocated_without_waiting_responses() -> None:
    assert allocate([], 5) == {}
    assert allocate([TenantQueue(1, "a", 0, 5)], 5) == {}
    assert allocate([TenantQueue(1, "a", 5, 0)], 0) == {}

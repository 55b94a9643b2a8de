"""Contract suite of stores: leases. A response has one owner at a time, and a running response is not without an owner
for long.
"""

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from antiphon.stores.base import ClaimedResponse, OwnershipLost
from antiphon.stores.sql.store import Store
from antiphon.testing.rows.response_rows import TENANT, Clock, begin_response, make_claim, make_end, make_response


def ids(claimed: Sequence[ClaimedResponse]) -> list[str]:
    return [one.row.id for one in claimed]


async def test_an_expired_lease_is_taken_over(store: Store, clock: Clock) -> None:
    new = await begin_response(store, clock, background=True)
    clock.now += 9
    assert await store.claim(make_claim(clock, "another"), 10) == []
    clock.now += 1
    claimed = await store.claim(make_claim(clock, "another"), 10)
    assert [(one.tenant, one.row.id, one.row.fence, one.row.attempts) for one in claimed] == [(TENANT, new.id, 2, 2)]
    assert claimed[0].row == await store.get(TENANT, new.id)
    assert await store.claim(make_claim(clock, "third"), 10) == [], "the takeover renewed the lease"
    clock.now += 10
    assert [one.row.fence for one in await store.claim(make_claim(clock, "third"), 10)] == [3]


async def test_a_claim_of_released_responses_ignores_expired_leases(store: Store, clock: Clock) -> None:
    held, released = [await begin_response(store, clock, background=True) for _ in range(2)]
    await store.release(TENANT, released.id, 1)
    clock.now += 1000
    assert ids(await store.claim(make_claim(clock, "another"), 10, released=True)) == [released.id]
    assert ids(await store.claim(make_claim(clock, "another"), 10)) == [held.id]


async def test_a_renewal_extends_only_the_named_leases_of_the_owner(store: Store, clock: Clock) -> None:
    mine, forgotten, other = [await begin_response(store, clock) for _ in range(3)]
    await store.take(TENANT, other.id, make_claim(clock, "another"))
    for _ in range(5):
        clock.now += 9
        await store.renew(make_claim(clock, "another"), [other.id])
        assert await store.renew(make_claim(clock), [mine.id, other.id, "resp_unknown"]) == {mine.id}
    assert ids(await store.claim(make_claim(clock, "third"), 10)) == [forgotten.id]
    with pytest.raises(OwnershipLost):
        await store.finish(TENANT, make_end(clock, forgotten))


async def test_a_renewal_without_a_new_response_does_not_end_its_lease(store: Store, clock: Clock) -> None:
    new = await begin_response(store, clock)
    assert await store.renew(make_claim(clock), []) == set()
    assert await store.claim(make_claim(clock, "another"), 10) == []
    clock.now += 5
    assert await store.renew(make_claim(clock), [new.id]) == {new.id}
    clock.now += 9
    assert await store.claim(make_claim(clock, "another"), 10) == []


async def test_an_expired_lease_can_be_renewed_before_a_takeover(store: Store, clock: Clock) -> None:
    new = await begin_response(store, clock)
    clock.now += 100
    assert await store.renew(make_claim(clock), [new.id]) == {new.id}
    assert await store.claim(make_claim(clock, "another"), 10) == []
    await store.finish(TENANT, make_end(clock, new))


async def test_a_renewal_after_a_takeover_fails(store: Store, clock: Clock) -> None:
    new = await begin_response(store, clock)
    clock.now += 100
    assert ids(await store.claim(make_claim(clock, "another"), 10)) == [new.id]
    assert await store.renew(make_claim(clock), [new.id]) == set()
    assert await store.renew(make_claim(clock, "another"), [new.id]) == {new.id}


async def test_an_ended_response_has_no_owner(store: Store, clock: Clock) -> None:
    new = await begin_response(store, clock)
    await store.finish(TENANT, make_end(clock, new))
    assert await store.renew(make_claim(clock), [new.id]) == set()
    assert await store.take(TENANT, new.id, make_claim(clock)) is None
    clock.now += 100
    assert await store.claim(make_claim(clock), 10) == []


async def test_claims_take_all_foreground_and_the_oldest_background_responses(store: Store, clock: Clock) -> None:
    news = []
    for number in range(12):
        news.append(await begin_response(store, clock, background=number % 3 != 0))
        clock.now += 1
    clock.now += 100
    background = [new.id for new in news if new.background]
    foreground = [new.id for new in news if not new.background]
    assert ids(await store.claim(make_claim(clock), 0)) == foreground
    assert ids(await store.claim(make_claim(clock), 3)) == background[:3]
    assert ids(await store.claim(make_claim(clock), 100)) == background[3:]
    assert await store.claim(make_claim(clock), 100) == []


async def test_claims_are_fair_between_tenants(store: Store, clock: Clock) -> None:
    async def begin_expired(tenant: str, count: int) -> list[str]:
        names = []
        for _ in range(count):
            new = make_response(clock, background=True)
            await store.begin(tenant, new, make_claim(clock, "first", seconds=0))
            names.append(new.id)
            clock.now += 1
        return names

    loud, quiet = await begin_expired("loud", 10), await begin_expired("quiet", 2)
    assert ids(await store.claim(make_claim(clock, "second", 1000), 2)) == [loud[0], quiet[0]]
    late = await begin_expired("late", 1)
    assert ids(await store.claim(make_claim(clock, "second", 1000), 1)) == late
    assert ids(await store.claim(make_claim(clock, "second", 1000), 4)) == [*loud[1:4], quiet[1]]
    assert ids(await store.claim(make_claim(clock, "second", 1000), 100)) == loud[4:]


async def test_responses_of_higher_priority_are_claimed_before_older_ones(store: Store, clock: Clock) -> None:
    ranks = {}
    for rank in (2, 1, 0):
        for _ in range(60):
            new = make_response(clock, background=True, rank=rank)
            await store.begin(TENANT, new, make_claim(clock, "first", seconds=0))
            ranks[new.id] = rank
            clock.now += 1
    taken: list[int] = []
    for _ in range(30):
        taken += [ranks[name] for name in ids(await store.claim(make_claim(clock, "second", 1000), 2))]
    assert taken.count(0) > 30, "the highest priority has the majority of the claims"
    taken += [ranks[name] for name in ids(await store.claim(make_claim(clock, "second", 1000), 1000))]
    assert sorted(taken) == sorted(ranks.values()), "each response is claimed once"


async def test_a_claimed_response_has_its_charged_key(store: Store, clock: Clock) -> None:
    new = replace(make_response(clock, background=True), charged_key="key_1")
    await store.begin(TENANT, new, make_claim(clock, "first", seconds=0))
    [claimed] = await store.claim(make_claim(clock, "second"), 1)
    assert claimed.row.charged_key == "key_1"


async def test_responses_of_low_priority_do_not_starve(store: Store, clock: Clock) -> None:
    last = make_response(clock, background=True, rank=2)
    await store.begin("patient", last, make_claim(clock, "first", seconds=0))
    for _ in range(400):
        urgent = make_response(clock, background=True, rank=0)
        await store.begin(TENANT, urgent, make_claim(clock, "first", seconds=0))
        [one] = await store.claim(make_claim(clock, "second", 10_000), 1)
        if one.row.id == last.id:
            return
        assert one.row.id == urgent.id
        await store.finish(TENANT, make_end(clock, urgent, fence=2))
        clock.now += 1
    pytest.fail("400 urgent responses were claimed before the waiting one")


async def test_concurrent_claims_are_disjoint(store: Store, other_store: Store, clock: Clock) -> None:
    news = [await begin_response(store, clock, background=number % 2 == 0) for number in range(40)]
    clock.now += 100
    stores = [store, other_store] * 3
    claims = await asyncio.gather(*(one.claim(make_claim(clock, str(n)), 10) for n, one in enumerate(stores)))
    taken = sorted(name for claimed in claims for name in ids(claimed))
    assert len(taken) == len(set(taken)), "no response has two owners"
    later_claims = [await store.claim(make_claim(clock, "rest"), 100) for _ in range(2)]
    assert sorted([*taken, *(name for claimed in later_claims for name in ids(claimed))]) == sorted(
        new.id for new in news
    )


async def test_a_released_response_can_be_claimed_at_once_and_costs_no_attempt(store: Store, clock: Clock) -> None:
    new = await begin_response(store, clock, background=True)
    await store.start(TENANT, new.id, 1)
    for _ in range(2):  # repeated, as after a lost answer
        await store.release(TENANT, new.id, 1)
        row = await store.get(TENANT, new.id)
        assert row
        assert (row.status, row.attempts, row.fence) == ("queued", 0, 1)
    assert await store.renew(make_claim(clock), [new.id]) == set()
    [claimed] = await store.claim(make_claim(clock, "another"), 10)
    assert (claimed.row.id, claimed.row.attempts, claimed.row.fence) == (new.id, 1, 2)
    with pytest.raises(OwnershipLost):
        await store.release(TENANT, new.id, 1)


async def test_renewals_and_claims_cover_all_tenants(store: Store, clock: Clock) -> None:
    news = {tenant: make_response(clock) for tenant in ("a", "b", "c")}
    for tenant, new in news.items():
        await store.begin(tenant, new, make_claim(clock))
    assert await store.renew(make_claim(clock), [new.id for new in news.values()]) == {new.id for new in news.values()}
    clock.now += 100
    claimed = await store.claim(make_claim(clock), 10)
    assert {one.tenant: one.row.id for one in claimed} == {tenant: new.id for tenant, new in news.items()}

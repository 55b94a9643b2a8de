"""What every store keeps of leases: one owner at a time, and no running response without one for long."""

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from antiphon.stores.base import Claimed, Lost, Store
from tests.stores.rows import TENANT, Clock, end, owner, response, running

pytestmark = pytest.mark.anyio


def ids(claimed: Sequence[Claimed]) -> list[str]:
    return [one.row.id for one in claimed]


async def test_what_an_owner_does_not_renew_is_taken_over(store: Store, clock: Clock) -> None:
    new = await running(store, clock, background=True)
    clock.now += 9
    assert await store.claim(owner(clock, "another"), 10) == []
    clock.now += 1
    claimed = await store.claim(owner(clock, "another"), 10)
    assert [(one.tenant, one.row.id, one.row.fence, one.row.attempts) for one in claimed] == [(TENANT, new.id, 2, 2)]
    assert claimed[0].row == await store.get(TENANT, new.id)
    assert await store.claim(owner(clock, "third"), 10) == [], "it has a lease again"
    clock.now += 10
    assert [one.row.fence for one in await store.claim(owner(clock, "third"), 10)] == [3]


async def test_who_is_wary_takes_only_what_was_given_back(store: Store, clock: Clock) -> None:
    held, given_back = [await running(store, clock, background=True) for _ in range(2)]
    await store.release(TENANT, given_back.id, 1)
    clock.now += 1000
    assert ids(await store.claim(owner(clock, "another"), 10, released=True)) == [given_back.id]
    assert ids(await store.claim(owner(clock, "another"), 10)) == [held.id]


async def test_a_sign_of_life_keeps_what_an_owner_names(store: Store, clock: Clock) -> None:
    mine, forgotten, other = [await running(store, clock) for _ in range(3)]
    await store.take(TENANT, other.id, owner(clock, "another"))
    for _ in range(5):
        clock.now += 9
        await store.renew(owner(clock, "another"), [other.id])
        assert await store.renew(owner(clock), [mine.id, other.id, "resp_unknown"]) == {mine.id}
    assert ids(await store.claim(owner(clock, "third"), 10)) == [forgotten.id]
    with pytest.raises(Lost):
        await store.finish(TENANT, end(clock, forgotten))


async def test_what_was_begun_a_moment_ago_is_not_forgotten(store: Store, clock: Clock) -> None:
    new = await running(store, clock)
    assert await store.renew(owner(clock), []) == set()
    assert await store.claim(owner(clock, "another"), 10) == []
    clock.now += 5
    assert await store.renew(owner(clock), [new.id]) == {new.id}
    clock.now += 9
    assert await store.claim(owner(clock, "another"), 10) == []


async def test_an_owner_that_comes_back_in_time_has_lost_nothing(store: Store, clock: Clock) -> None:
    new = await running(store, clock)
    clock.now += 100
    assert await store.renew(owner(clock), [new.id]) == {new.id}
    assert await store.claim(owner(clock, "another"), 10) == []
    await store.finish(TENANT, end(clock, new))


async def test_an_owner_that_comes_back_too_late_is_told(store: Store, clock: Clock) -> None:
    new = await running(store, clock)
    clock.now += 100
    assert ids(await store.claim(owner(clock, "another"), 10)) == [new.id]
    assert await store.renew(owner(clock), [new.id]) == set()
    assert await store.renew(owner(clock, "another"), [new.id]) == {new.id}


async def test_an_ended_response_is_nobody_s(store: Store, clock: Clock) -> None:
    new = await running(store, clock)
    await store.finish(TENANT, end(clock, new))
    assert await store.renew(owner(clock), [new.id]) == set()
    assert await store.take(TENANT, new.id, owner(clock)) is None
    clock.now += 100
    assert await store.claim(owner(clock), 10) == []


async def test_the_oldest_are_taken_over_first_and_all_of_the_foreground(store: Store, clock: Clock) -> None:
    news = []
    for number in range(12):
        news.append(await running(store, clock, background=number % 3 != 0))
        clock.now += 1
    clock.now += 100
    background = [new.id for new in news if new.background]
    foreground = [new.id for new in news if not new.background]
    assert ids(await store.claim(owner(clock), 0)) == foreground
    assert ids(await store.claim(owner(clock), 3)) == background[:3]
    assert ids(await store.claim(owner(clock), 100)) == background[3:]
    assert await store.claim(owner(clock), 100) == []


async def test_nobody_waits_behind_all_that_another_tenant_has_in_the_background(store: Store, clock: Clock) -> None:
    async def queued(tenant: str, count: int) -> list[str]:
        names = []
        for _ in range(count):
            new = response(clock, background=True)
            await store.begin(tenant, new, owner(clock, "first", seconds=0))
            names.append(new.id)
            clock.now += 1
        return names

    loud, quiet = await queued("loud", 10), await queued("quiet", 2)
    assert ids(await store.claim(owner(clock, "second", 1000), 2)) == [loud[0], quiet[0]]
    late = await queued("late", 1)
    assert ids(await store.claim(owner(clock, "second", 1000), 1)) == late
    assert ids(await store.claim(owner(clock, "second", 1000), 4)) == [*loud[1:4], quiet[1]]
    assert ids(await store.claim(owner(clock, "second", 1000), 100)) == loud[4:]


async def test_what_is_in_a_hurry_is_taken_before_what_is_older(store: Store, clock: Clock) -> None:
    ranks = {}
    for rank in (2, 1, 0):
        for _ in range(60):
            new = response(clock, background=True, rank=rank)
            await store.begin(TENANT, new, owner(clock, "first", seconds=0))
            ranks[new.id] = rank
            clock.now += 1
    taken: list[int] = []
    for _ in range(30):
        taken += [ranks[name] for name in ids(await store.claim(owner(clock, "second", 1000), 2))]
    assert taken.count(0) > 30, "and some of the others have had their turns"
    taken += [ranks[name] for name in ids(await store.claim(owner(clock, "second", 1000), 1000))]
    assert sorted(taken) == sorted(ranks.values()), "each once"


async def test_who_takes_over_is_told_whom_to_charge(store: Store, clock: Clock) -> None:
    new = replace(response(clock, background=True), bearer="key_1")
    await store.begin(TENANT, new, owner(clock, "first", seconds=0))
    [one] = await store.claim(owner(clock, "second"), 1)
    assert one.row.bearer == "key_1"


async def test_nobody_waits_for_ever_behind_those_in_a_hurry(store: Store, clock: Clock) -> None:
    last = response(clock, background=True, rank=2)
    await store.begin("patient", last, owner(clock, "first", seconds=0))
    for _ in range(400):
        hurried = response(clock, background=True, rank=0)
        await store.begin(TENANT, hurried, owner(clock, "first", seconds=0))
        [one] = await store.claim(owner(clock, "second", 10_000), 1)
        if one.row.id == last.id:
            return
        assert one.row.id == hurried.id
        await store.finish(TENANT, end(clock, hurried, fence=2))
        clock.now += 1
    pytest.fail("four hundred others were taken before it")


async def test_two_that_claim_at_once_share_out(store: Store, another: Store, clock: Clock) -> None:
    news = [await running(store, clock, background=number % 2 == 0) for number in range(40)]
    clock.now += 100
    stores = [store, another] * 3
    claims = await asyncio.gather(*(one.claim(owner(clock, str(n)), 10) for n, one in enumerate(stores)))
    taken = sorted(name for claimed in claims for name in ids(claimed))
    assert len(taken) == len(set(taken)), "no response has two owners"
    rest = [await store.claim(owner(clock, "rest"), 100) for _ in range(2)]
    assert sorted([*taken, *(name for claimed in rest for name in ids(claimed))]) == sorted(new.id for new in news)


async def test_a_released_response_is_free_at_once_and_costs_no_attempt(store: Store, clock: Clock) -> None:
    new = await running(store, clock, background=True)
    await store.start(TENANT, new.id, 1)
    for _ in range(2):  # the answer to the first may have got lost
        await store.release(TENANT, new.id, 1)
        row = await store.get(TENANT, new.id)
        assert row
        assert (row.status, row.attempts, row.fence) == ("queued", 0, 1)
    assert await store.renew(owner(clock), [new.id]) == set()
    [claimed] = await store.claim(owner(clock, "another"), 10)
    assert (claimed.row.id, claimed.row.attempts, claimed.row.fence) == (new.id, 1, 2)
    with pytest.raises(Lost):
        await store.release(TENANT, new.id, 1)


async def test_all_tenants_are_looked_after(store: Store, clock: Clock) -> None:
    news = {tenant: response(clock) for tenant in ("a", "b", "c")}
    for tenant, new in news.items():
        await store.begin(tenant, new, owner(clock))
    assert await store.renew(owner(clock), [new.id for new in news.values()]) == {new.id for new in news.values()}
    clock.now += 100
    claimed = await store.claim(owner(clock), 10)
    assert {one.tenant: one.row.id for one in claimed} == {tenant: new.id for tenant, new in news.items()}

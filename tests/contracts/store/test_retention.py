"""What every store keeps of bounds: what is past its time or too much goes, the oldest first, and never what runs."""

import pytest
from msgspec.structs import replace

from antiphon.stores.base import Bounds, Store
from tests.stores.rows import TENANT, TTL, Clock, end, item, kept, key, owner, response, running, talk, whole

pytestmark = pytest.mark.anyio


async def aged(store: Store, clock: Clock, count: int, tenant: str = TENANT) -> list[str]:
    """Ids of responses that ended one second after another."""
    names = []
    for _ in range(count):
        names.append(await kept(store, clock, tenant=tenant))
        clock.now += 1
    return names


async def left(store: Store, names: list[str], tenant: str = TENANT) -> list[str]:
    return [name for name in names if await store.get(tenant, name)]


async def swept(store: Store, bounds: Bounds, most: int = 500) -> int:
    """Until nothing is left to do."""
    total = 0
    while count := await store.sweep(bounds, most):
        assert 0 < count <= most
        total += count
    return total


@pytest.mark.shows("B.4")
async def test_what_has_expired_is_removed(store: Store, clock: Clock) -> None:
    old = await aged(store, clock, 10)
    clock.now += TTL - 6
    new = await aged(store, clock, 3)
    assert await store.sweep(Bounds(), 4) == 4
    assert await store.sweep(Bounds(), 4) == 4
    assert await store.sweep(Bounds(), 4) == 0
    assert await left(store, old) == old[8:]
    assert await left(store, new) == new
    assert (await store.tenants())[TENANT][0] == 5


async def test_nothing_to_do_is_no_work(store: Store, clock: Clock) -> None:
    await aged(store, clock, 3)
    assert await store.sweep(Bounds(entries=3, bytes=10_000, conversations=1)) == 0


async def test_expired_ancestors_stay_for_their_descendants(store: Store, clock: Clock) -> None:
    first = await kept(store, clock)
    second = await kept(store, clock, first)
    clock.now += TTL - 1
    third = await kept(store, clock, second)
    clock.now += 1
    assert await swept(store, Bounds()) == 2
    assert [link.id for link in await store.chain(TENANT, third)] == [third, second, first]
    assert await store.get(TENANT, second) is None
    clock.now += TTL
    assert await swept(store, Bounds()) == 1
    assert await store.tenants() == {}


async def test_a_tenant_may_have_a_bound_of_its_own(store: Store, clock: Clock) -> None:
    mine, others = await aged(store, clock, 10), await aged(store, clock, 10, "other")
    size = (await store.tenants())[TENANT][1] // 10
    await swept(store, Bounds(bytes=8 * size, own={TENANT: 3 * size}))
    assert (await left(store, mine), await left(store, others, "other")) == (mine[7:], others[2:])
    await aged(store, clock, 10)
    assert await swept(store, Bounds(bytes=size, own={TENANT: None, "other": None})) == 0


@pytest.mark.shows("B.4")
async def test_beyond_so_many_entries_the_oldest_go(store: Store, clock: Clock) -> None:
    names = await aged(store, clock, 10)
    others = await aged(store, clock, 3, "other")
    assert await store.sweep(Bounds(entries=4), most=2) == 2
    assert await swept(store, Bounds(entries=4)) == 4
    assert await left(store, names) == names[6:]
    assert await left(store, others, "other") == others


@pytest.mark.shows("B.4")
async def test_beyond_so_many_bytes_the_oldest_go(store: Store, clock: Clock) -> None:
    names = await aged(store, clock, 10)
    size = (await store.tenants())[TENANT][1] // 10
    assert await swept(store, Bounds(bytes=size * 4 + 1)) == 6
    assert await left(store, names) == names[6:]
    assert await store.tenants() == {TENANT: (4, size * 4)}


async def test_the_oldest_go_though_none_expires(store: Store, clock: Clock) -> None:
    names = []
    for _ in range(6):
        new = response(clock)
        await store.finish(TENANT, whole(clock, new, None))
        names.append(new.id)
        clock.now += 1
    assert await swept(store, Bounds(entries=2)) == 4
    assert await left(store, names) == names[4:]


@pytest.mark.shows("B.4")
async def test_what_runs_is_never_touched(store: Store, clock: Clock) -> None:
    parent = await kept(store, clock)
    new = await running(store, clock, previous=parent)
    await store.append(TENANT, new.id, 1, 0, b"batch")
    clock.now += 2 * TTL
    await aged(store, clock, 3)
    await swept(store, Bounds(entries=0, bytes=0, conversations=0))
    assert await store.read(TENANT, new.id, -1) == [b"batch"]
    assert [link.id for link in await store.chain(TENANT, new.id)] == [new.id, parent]
    assert (await store.tenants())[TENANT][0] == 2
    await store.finish(TENANT, end(clock, new))
    await swept(store, Bounds(entries=0))
    assert await store.tenants() == {}


async def test_a_chain_that_is_too_long_loses_its_oldest_names_and_no_history(store: Store, clock: Clock) -> None:
    names: list[str] = []
    for _ in range(10):
        names.append(await kept(store, clock, names[-1] if names else None))
        clock.now += 1
    assert await swept(store, Bounds(entries=4)) == 6
    assert await left(store, names) == names[6:]
    assert [link.id for link in await store.chain(TENANT, names[-1])] == names[::-1]


async def test_conversations_that_were_not_used_for_longest_go(store: Store, clock: Clock) -> None:
    names = []
    for _ in range(5):
        names.append(await talk(store, clock, item()))
        clock.now += 1
    await store.add_items(TENANT, names[0], [item()], 100)
    clock.now += 1
    await store.merge_metadata(TENANT, names[1], {"x": "y"}, 100)
    clock.now += 1
    new = response(clock, conversation=names[2])
    await store.begin(TENANT, new, owner(clock))
    await swept(store, Bounds(conversations=3))
    assert [name for name in names if await store.conversation(TENANT, name)] == names[:3]
    clock.now += 1
    await store.add_items(TENANT, names[0], [item()], 100)
    await store.add_items(TENANT, names[1], [item()], 100)
    await swept(store, Bounds(conversations=0))
    assert [name for name in names if await store.conversation(TENANT, name)] == [names[2]], "a response uses it"
    await store.finish(TENANT, end(clock, new, items=(item(),)))
    await swept(store, Bounds(conversations=0, entries=0))
    assert await store.tenants() == {}


async def test_bytes_are_those_of_responses_and_conversations(store: Store, clock: Clock) -> None:
    old = await talk(store, clock, item("x" * 1000))
    clock.now += 1
    name = await kept(store, clock)
    clock.now += 1
    new = await talk(store, clock, *[item("x" * 10) for _ in range(30)])
    _, size = (await store.tenants())[TENANT]
    await swept(store, Bounds(bytes=size - 1), most=7)
    assert await store.conversation(TENANT, old) is None
    assert await store.get(TENANT, name)
    await swept(store, Bounds(bytes=300), most=7)
    assert await store.get(TENANT, name) is None
    assert await store.conversation(TENANT, new)
    await swept(store, Bounds(bytes=299), most=7)
    assert await store.tenants() == {}


async def test_of_deleted_conversations_the_items_go_first_when_there_is_no_room(store: Store, clock: Clock) -> None:
    one = item("x" * 1000)
    name = await talk(store, clock, one)
    clock.now += 1
    await store.delete_conversation(TENANT, name)
    response_id = await kept(store, clock)
    await swept(store, Bounds(bytes=900))
    assert await store.find_item(TENANT, one.id) is None
    assert await store.get(TENANT, response_id)


async def test_expired_keys_are_removed(store: Store, clock: Clock) -> None:
    new = response(clock)
    await store.begin(TENANT, new, owner(clock), replace(key(clock), expires=clock() + 5))
    clock.now += 5
    assert await store.sweep(Bounds()) == 0
    clock.now -= 5  # and were not only hidden
    assert await store.keyed(TENANT, key(clock)) is None

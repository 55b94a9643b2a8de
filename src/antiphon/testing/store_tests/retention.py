"""Contract suite of stores: retention. A sweep removes expired rows and rows beyond a limit, the oldest first, never
running ones.

Covers `stores/sql/deletion.py` and `stores/sql/totals.py`.
"""

from msgspec.structs import replace

from antiphon.stores.base import RetentionBounds
from antiphon.stores.sql.store import Store
from antiphon.testing.rows.response_rows import (
    TENANT,
    TTL,
    Clock,
    begin_response,
    make_claim,
    make_end,
    make_inserting_end,
    make_item,
    make_key,
    make_response,
    store_conversation,
    store_response,
)
from antiphon.testing.suite import shows


async def make_aged_responses(store: Store, clock: Clock, count: int, tenant: str = TENANT) -> list[str]:
    """Store responses that end one second after another and return their ids."""
    names = []
    for _ in range(count):
        names.append(await store_response(store, clock, tenant=tenant))
        clock.now += 1
    return names


async def find_remaining(store: Store, names: list[str], tenant: str = TENANT) -> list[str]:
    return [name for name in names if await store.get(tenant, name)]


async def sweep_all(store: Store, bounds: RetentionBounds, limit: int = 500) -> int:
    """Sweep until nothing more is removed, and return the number of removed rows."""
    total = 0
    while count := await store.sweep(bounds, limit):
        assert 0 < count <= limit
        total += count
    return total


@shows("B.4")
async def test_expired_responses_are_removed(store: Store, clock: Clock) -> None:
    old = await make_aged_responses(store, clock, 10)
    clock.now += TTL - 6
    new = await make_aged_responses(store, clock, 3)
    assert await store.sweep(RetentionBounds(), 4) == 4
    assert await store.sweep(RetentionBounds(), 4) == 4
    assert await store.sweep(RetentionBounds(), 4) == 0
    assert await find_remaining(store, old) == old[8:]
    assert await find_remaining(store, new) == new
    assert (await store.tenants())[TENANT][0] == 5


async def test_a_sweep_within_all_bounds_removes_nothing(store: Store, clock: Clock) -> None:
    await make_aged_responses(store, clock, 3)
    assert await store.sweep(RetentionBounds(entries=3, bytes=10_000, conversations=1)) == 0


async def test_a_sweep_of_rows_of_all_kinds_removes_at_most_its_limit(store: Store, clock: Clock) -> None:
    await make_aged_responses(store, clock, 4)
    for _ in range(3):
        gone = await store_conversation(store, clock, make_item(), make_item())
        await store.delete_conversation(TENANT, gone)
    clock.now += TTL
    names = []
    for tenant in (TENANT, "other"):
        names += await make_aged_responses(store, clock, 4, tenant)
        for _ in range(4):
            await store_conversation(store, clock, make_item(), tenant=tenant)
    await sweep_all(store, RetentionBounds(entries=1, conversations=1), limit=3)
    assert await find_remaining(store, names) == names[3:4]
    assert await find_remaining(store, names, "other") == names[7:]


async def test_expired_ancestors_are_retained_for_their_descendants(store: Store, clock: Clock) -> None:
    first = await store_response(store, clock)
    second = await store_response(store, clock, first)
    clock.now += TTL - 1
    third = await store_response(store, clock, second)
    clock.now += 1
    assert await sweep_all(store, RetentionBounds()) == 2
    assert [link.id for link in await store.chain(TENANT, third)] == [third, second, first]
    assert await store.get(TENANT, second) is None
    clock.now += TTL
    assert await sweep_all(store, RetentionBounds()) == 1
    assert await store.tenants() == {}


async def test_a_tenant_may_override_the_byte_limit(store: Store, clock: Clock) -> None:
    mine, others = await make_aged_responses(store, clock, 10), await make_aged_responses(store, clock, 10, "other")
    size = (await store.tenants())[TENANT][1] // 10
    await sweep_all(store, RetentionBounds(bytes=8 * size, byte_overrides={TENANT: 3 * size}))
    assert (await find_remaining(store, mine), await find_remaining(store, others, "other")) == (mine[7:], others[2:])
    await make_aged_responses(store, clock, 10)
    assert await sweep_all(store, RetentionBounds(bytes=size, byte_overrides={TENANT: None, "other": None})) == 0


@shows("B.4")
async def test_the_oldest_responses_beyond_the_entry_limit_are_removed(store: Store, clock: Clock) -> None:
    names = await make_aged_responses(store, clock, 10)
    others = await make_aged_responses(store, clock, 3, "other")
    assert await store.sweep(RetentionBounds(entries=4), limit=2) == 2
    assert await sweep_all(store, RetentionBounds(entries=4)) == 4
    assert await find_remaining(store, names) == names[6:]
    assert await find_remaining(store, others, "other") == others


@shows("B.4")
async def test_the_oldest_responses_beyond_the_byte_limit_are_removed(store: Store, clock: Clock) -> None:
    names = await make_aged_responses(store, clock, 10)
    size = (await store.tenants())[TENANT][1] // 10
    assert await sweep_all(store, RetentionBounds(bytes=size * 4 + 1)) == 6
    assert await find_remaining(store, names) == names[6:]
    assert await store.tenants() == {TENANT: (4, size * 4)}


async def test_the_entry_limit_also_applies_to_responses_without_expiry(store: Store, clock: Clock) -> None:
    names = []
    for _ in range(6):
        new = make_response(clock)
        await store.finish(TENANT, make_inserting_end(clock, new, None))
        names.append(new.id)
        clock.now += 1
    assert await sweep_all(store, RetentionBounds(entries=2)) == 4
    assert await find_remaining(store, names) == names[4:]


@shows("B.4")
async def test_running_responses_and_their_ancestors_are_never_removed(store: Store, clock: Clock) -> None:
    parent = await store_response(store, clock)
    new = await begin_response(store, clock, previous=parent)
    await store.append(TENANT, new.id, 1, 0, b"batch")
    clock.now += 2 * TTL
    await make_aged_responses(store, clock, 3)
    await sweep_all(store, RetentionBounds(entries=0, bytes=0, conversations=0))
    assert await store.read(TENANT, new.id, -1) == [b"batch"]
    assert [link.id for link in await store.chain(TENANT, new.id)] == [new.id, parent]
    assert (await store.tenants())[TENANT][0] == 2
    await store.finish(TENANT, make_end(clock, new))
    await sweep_all(store, RetentionBounds(entries=0))
    assert await store.tenants() == {}


async def test_a_chain_beyond_the_entry_limit_loses_its_oldest_ids_but_no_history(store: Store, clock: Clock) -> None:
    names: list[str] = []
    for _ in range(10):
        names.append(await store_response(store, clock, names[-1] if names else None))
        clock.now += 1
    assert await sweep_all(store, RetentionBounds(entries=4)) == 6
    assert await find_remaining(store, names) == names[6:]
    assert [link.id for link in await store.chain(TENANT, names[-1])] == names[::-1]


async def test_the_least_recently_used_conversations_are_removed(store: Store, clock: Clock) -> None:
    names = []
    for _ in range(5):
        names.append(await store_conversation(store, clock, make_item()))
        clock.now += 1
    await store.add_items(TENANT, names[0], [make_item()], 100)
    clock.now += 1
    await store.merge_metadata(TENANT, names[1], {"x": "y"}, 100)
    clock.now += 1
    new = make_response(clock, conversation=names[2])
    await store.begin(TENANT, new, make_claim(clock))
    await sweep_all(store, RetentionBounds(conversations=3))
    assert [name for name in names if await store.conversation(TENANT, name)] == names[:3]
    clock.now += 1
    await store.add_items(TENANT, names[0], [make_item()], 100)
    await store.add_items(TENANT, names[1], [make_item()], 100)
    await sweep_all(store, RetentionBounds(conversations=0))
    assert [name for name in names if await store.conversation(TENANT, name)] == [names[2]], (
        "a running response uses the conversation"
    )
    await store.finish(TENANT, make_end(clock, new, items=(make_item(),)))
    await sweep_all(store, RetentionBounds(conversations=0, entries=0))
    assert await store.tenants() == {}


async def test_the_byte_limit_counts_responses_and_conversations(store: Store, clock: Clock) -> None:
    old = await store_conversation(store, clock, make_item("x" * 1000))
    clock.now += 1
    name = await store_response(store, clock)
    clock.now += 1
    new = await store_conversation(store, clock, *[make_item("x" * 10) for _ in range(30)])
    _, size = (await store.tenants())[TENANT]
    await sweep_all(store, RetentionBounds(bytes=size - 1), limit=7)
    assert await store.conversation(TENANT, old) is None
    assert await store.get(TENANT, name)
    await sweep_all(store, RetentionBounds(bytes=300), limit=7)
    assert await store.get(TENANT, name) is None
    assert await store.conversation(TENANT, new)
    await sweep_all(store, RetentionBounds(bytes=299), limit=7)
    assert await store.tenants() == {}


async def test_items_of_deleted_conversations_are_removed_first(store: Store, clock: Clock) -> None:
    one = make_item("x" * 1000)
    name = await store_conversation(store, clock, one)
    clock.now += 1
    await store.delete_conversation(TENANT, name)
    response_id = await store_response(store, clock)
    await sweep_all(store, RetentionBounds(bytes=900))
    assert await store.find_item(TENANT, one.id) is None
    assert await store.get(TENANT, response_id)


async def test_expired_idempotency_keys_are_removed(store: Store, clock: Clock) -> None:
    new = make_response(clock)
    await store.begin(TENANT, new, make_claim(clock), replace(make_key(clock), expires=clock() + 5))
    clock.now += 5
    assert await store.sweep(RetentionBounds()) == 0
    clock.now -= 5  # so that an unswept key would be visible
    assert await store.keyed(TENANT, make_key(clock)) is None

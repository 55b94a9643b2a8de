"""Contract suite of stores: chains of responses, and the rows that remain when a response of a chain is deleted."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from antiphon.stores.base import ChainLink, OwnershipLost
from antiphon.stores.sql.store import Store
from antiphon.testing.rows.response_rows import (
    TENANT,
    TTL,
    Clock,
    begin_response,
    make_claim,
    make_end,
    make_inserting_end,
    make_key,
    make_response,
    store_response,
)
from antiphon.testing.suite import shows


async def make_chain(store: Store, clock: Clock, length: int, previous: str | None = None) -> list[str]:
    """Store a chain of responses and return their ids, the first response first."""
    names: list[str] = []
    for _ in range(length):
        names.append(await store_response(store, clock, names[-1] if names else previous))
    return names


def ids(links: Sequence[ChainLink]) -> list[str]:
    return [link.id for link in links]


async def test_a_chain_is_read_back_to_its_first_response(store: Store, clock: Clock) -> None:
    names = await make_chain(store, clock, 5)
    links = await store.chain(TENANT, names[-1])
    assert ids(links) == names[::-1]
    assert [link.previous for link in links] == [*names[-2::-1], None]
    for link in links:
        row = await store.get(TENANT, link.id)
        assert row
        assert (link.request, link.response) == (row.request, row.response)


async def test_a_chain_is_read_up_to_the_ids_to_stop_at(store: Store, clock: Clock) -> None:
    names = await make_chain(store, clock, 60)
    for first in range(60):
        links = await store.chain(TENANT, names[-1], frozenset(names[:first]) | {"resp_another"})
        assert ids(links) == names[first:][::-1]
    assert await store.chain(TENANT, names[-1], frozenset(names)) == []


@shows("B.9")
async def test_a_response_can_have_many_branches(store: Store, clock: Clock) -> None:
    trunk = await make_chain(store, clock, 3)
    branches = await asyncio.gather(*(store_response(store, clock, trunk[-1]) for _ in range(20)))
    for branch in branches:
        assert ids(await store.chain(TENANT, branch)) == [branch, *trunk[::-1]]


async def test_a_chain_may_be_long(store: Store, clock: Clock) -> None:
    names = await make_chain(store, clock, 300 if store.name == "postgresql" else 1000)
    assert ids(await store.chain(TENANT, names[-1])) == names[::-1]
    assert ids(await store.chain(TENANT, names[-1], frozenset(names[:5]))) == names[5:][::-1]
    assert all(await asyncio.gather(*(store.delete(TENANT, name) for name in names[:-1])))
    assert ids(await store.chain(TENANT, names[-1])) == names[::-1]
    assert await store.delete(TENANT, names[-1])
    assert await store.tenants() == {}


@shows("A.6")
async def test_a_deleted_response_is_not_found(store: Store, clock: Clock) -> None:
    name = await store_response(store, clock)
    assert await store.delete(TENANT, name)
    assert await store.get(TENANT, name) is None
    assert await store.chain(TENANT, name) == []
    assert not await store.delete(TENANT, name)
    assert await store.tenants() == {}


async def test_a_deleted_response_with_descendants_retains_only_its_items(store: Store, clock: Clock) -> None:
    first, second = await make_chain(store, clock, 2)
    _, before = (await store.tenants())[TENANT]
    assert await store.delete(TENANT, first)
    assert await store.get(TENANT, first) is None
    assert await store.chain(TENANT, first) == []
    link = (await store.chain(TENANT, second))[1]
    assert link.id == first
    assert msgspec.json.decode(link.request) == {"asked": {"input": ["hello"]}}
    assert msgspec.json.decode(link.response) == {"id": first, "status": "completed", "output": ["goodbye"]}
    entries, after = (await store.tenants())[TENANT]
    assert entries == 2
    assert after < before


async def test_a_deleted_response_is_removed_with_its_last_descendant(store: Store, clock: Clock) -> None:
    trunk = await make_chain(store, clock, 3)
    first_branch, second_branch = (
        await make_chain(store, clock, 2, trunk[-1]),
        await make_chain(store, clock, 2, trunk[-1]),
    )
    for name in (*trunk, first_branch[0], second_branch[0]):
        assert await store.delete(TENANT, name)
    assert (await store.tenants())[TENANT][0] == 7
    await store.delete(TENANT, first_branch[1])
    assert (await store.tenants())[TENANT][0] == 5
    assert ids(await store.chain(TENANT, second_branch[1])) == [*second_branch[::-1], *trunk[::-1]]
    await store.delete(TENANT, second_branch[1])
    assert await store.tenants() == {}


async def test_a_visible_ancestor_stays(store: Store, clock: Clock) -> None:
    names = await make_chain(store, clock, 4)
    await store.delete(TENANT, names[1])
    await store.delete(TENANT, names[2])
    await store.delete(TENANT, names[3])
    assert (await store.tenants())[TENANT][0] == 1
    assert ids(await store.chain(TENANT, names[0])) == [names[0]]


async def test_concurrent_deletions_of_all_children_remove_the_parents(
    store: Store, other_store: Store, clock: Clock
) -> None:
    for _ in range(10):
        parents = await make_chain(store, clock, 2)
        children = [await store_response(store, clock, parents[-1]) for _ in range(4)]
        for name in parents:
            await store.delete(TENANT, name)
        await asyncio.gather(*((store, other_store)[n % 2].delete(TENANT, name) for n, name in enumerate(children)))
        assert await store.tenants() == {}


async def test_a_running_child_retains_its_deleted_parents(store: Store, clock: Clock) -> None:
    parents = await make_chain(store, clock, 2)
    child = await begin_response(store, clock, previous=parents[-1])
    for name in parents:
        assert await store.delete(TENANT, name)
    await store.finish(TENANT, make_end(clock, child))
    assert ids(await store.chain(TENANT, child.id)) == [child.id, *parents[::-1]]


async def test_the_owner_of_a_deleted_running_response_with_a_child_loses_it(store: Store, clock: Clock) -> None:
    parent = await begin_response(store, clock)
    child = await store_response(store, clock, parent.id)
    assert await store.delete(TENANT, parent.id)
    with pytest.raises(OwnershipLost):
        await store.finish(TENANT, make_end(clock, parent))
    assert await store.renew(make_claim(clock), [parent.id]) == set()
    clock.now += 100
    assert await store.claim(make_claim(clock, "another"), 10) == []
    assert ids(await store.chain(TENANT, child)) == [child, parent.id]


async def test_a_chain_includes_an_expired_first_response(store: Store, clock: Clock) -> None:
    first = await store_response(store, clock)
    clock.now += TTL - 1
    second = await store_response(store, clock, first)
    clock.now += 1
    assert await store.get(TENANT, first) is None
    assert ids(await store.chain(TENANT, second)) == [second, first]


async def test_a_deleted_response_frees_its_idempotency_key(store: Store, clock: Clock) -> None:
    new = make_response(clock)
    await store.begin(TENANT, new, make_claim(clock), make_key(clock))
    child = await store_response(store, clock, new.id)
    await store.delete(TENANT, new.id)
    assert (
        await store.begin(TENANT, make_response(clock), make_claim(clock), make_key(clock, digest=b"another")) is None
    )
    assert ids(await store.chain(TENANT, child)) == [child, new.id]


async def test_a_child_that_ends_while_its_parent_is_deleted_has_the_parent_or_is_rejected(
    store: Store, other_store: Store, clock: Clock
) -> None:
    for _ in range(20):
        parent = await store_response(store, clock)
        child = make_response(clock, previous=parent)
        began, deleted = await asyncio.gather(
            other_store.finish(TENANT, make_inserting_end(clock, child)),
            store.delete(TENANT, parent),
            return_exceptions=True,
        )
        assert deleted is True
        links = ids(await store.chain(TENANT, child.id))
        assert links == ([child.id, parent] if began is None else [])

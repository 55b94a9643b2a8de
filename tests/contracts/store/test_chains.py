"""What every store keeps of responses that continue others, and what stays when one of them is deleted."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from antiphon.stores.base import Link, Lost, Store
from tests.stores.rows import TENANT, TTL, Clock, end, kept, key, owner, response, running, whole

pytestmark = pytest.mark.anyio


async def grown(store: Store, clock: Clock, length: int, previous: str | None = None) -> list[str]:
    """The ids of a chain, the first one first."""
    names: list[str] = []
    for _ in range(length):
        names.append(await kept(store, clock, names[-1] if names else previous))
    return names


def ids(links: Sequence[Link]) -> list[str]:
    return [link.id for link in links]


async def test_a_chain_goes_back_to_the_first(store: Store, clock: Clock) -> None:
    names = await grown(store, clock, 5)
    links = await store.chain(TENANT, names[-1])
    assert ids(links) == names[::-1]
    assert [link.previous for link in links] == [*names[-2::-1], None]
    for link in links:
        row = await store.get(TENANT, link.id)
        assert row
        assert (link.request, link.response) == (row.request, row.response)


async def test_a_chain_ends_before_what_is_known(store: Store, clock: Clock) -> None:
    names = await grown(store, clock, 60)
    for first in range(60):
        links = await store.chain(TENANT, names[-1], frozenset(names[:first]) | {"resp_another"})
        assert ids(links) == names[first:][::-1]
    assert await store.chain(TENANT, names[-1], frozenset(names)) == []


@pytest.mark.shows("B.9")
async def test_any_number_of_branches_grow_from_one(store: Store, clock: Clock) -> None:
    trunk = await grown(store, clock, 3)
    branches = await asyncio.gather(*(kept(store, clock, trunk[-1]) for _ in range(20)))
    for branch in branches:
        assert ids(await store.chain(TENANT, branch)) == [branch, *trunk[::-1]]


async def test_a_chain_may_be_long(store: Store, clock: Clock) -> None:
    names = await grown(store, clock, 300 if store.name == "postgresql" else 1000)
    assert ids(await store.chain(TENANT, names[-1])) == names[::-1]
    assert ids(await store.chain(TENANT, names[-1], frozenset(names[:5]))) == names[5:][::-1]
    assert all(await asyncio.gather(*(store.delete(TENANT, name) for name in names[:-1])))
    assert ids(await store.chain(TENANT, names[-1])) == names[::-1]
    assert await store.delete(TENANT, names[-1])
    assert await store.tenants() == {}


@pytest.mark.shows("A.6")
async def test_a_deleted_response_is_gone(store: Store, clock: Clock) -> None:
    name = await kept(store, clock)
    assert await store.delete(TENANT, name)
    assert await store.get(TENANT, name) is None
    assert await store.chain(TENANT, name) == []
    assert not await store.delete(TENANT, name)
    assert await store.tenants() == {}


async def test_what_continues_a_deleted_response_keeps_its_items_and_nothing_else(store: Store, clock: Clock) -> None:
    first, second = await grown(store, clock, 2)
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


async def test_with_its_last_descendant_a_deleted_response_goes(store: Store, clock: Clock) -> None:
    trunk = await grown(store, clock, 3)
    left, right = await grown(store, clock, 2, trunk[-1]), await grown(store, clock, 2, trunk[-1])
    for name in (*trunk, left[0], right[0]):
        assert await store.delete(TENANT, name)
    assert (await store.tenants())[TENANT][0] == 7
    await store.delete(TENANT, left[1])
    assert (await store.tenants())[TENANT][0] == 5
    assert ids(await store.chain(TENANT, right[1])) == [*right[::-1], *trunk[::-1]]
    await store.delete(TENANT, right[1])
    assert await store.tenants() == {}


async def test_a_visible_ancestor_stays(store: Store, clock: Clock) -> None:
    names = await grown(store, clock, 4)
    await store.delete(TENANT, names[1])
    await store.delete(TENANT, names[2])
    await store.delete(TENANT, names[3])
    assert (await store.tenants())[TENANT][0] == 1
    assert ids(await store.chain(TENANT, names[0])) == [names[0]]


async def test_two_children_that_go_at_once_leave_no_parent_behind(store: Store, another: Store, clock: Clock) -> None:
    for _ in range(10):
        parents = await grown(store, clock, 2)
        children = [await kept(store, clock, parents[-1]) for _ in range(4)]
        for name in parents:
            await store.delete(TENANT, name)
        await asyncio.gather(*((store, another)[n % 2].delete(TENANT, name) for n, name in enumerate(children)))
        assert await store.tenants() == {}


async def test_a_running_child_holds_its_parents(store: Store, clock: Clock) -> None:
    parents = await grown(store, clock, 2)
    child = await running(store, clock, previous=parents[-1])
    for name in parents:
        assert await store.delete(TENANT, name)
    await store.finish(TENANT, end(clock, child))
    assert ids(await store.chain(TENANT, child.id)) == [child.id, *parents[::-1]]


async def test_a_response_that_is_deleted_while_it_runs_and_is_continued_is_lost_to_its_owner(
    store: Store, clock: Clock
) -> None:
    parent = await running(store, clock)
    child = await kept(store, clock, parent.id)
    assert await store.delete(TENANT, parent.id)
    with pytest.raises(Lost):
        await store.finish(TENANT, end(clock, parent))
    assert await store.renew(owner(clock), [parent.id]) == set()
    clock.now += 100
    assert await store.claim(owner(clock, "another"), 10) == []
    assert ids(await store.chain(TENANT, child)) == [child, parent.id]


async def test_a_chain_whose_first_has_expired_goes_on(store: Store, clock: Clock) -> None:
    first = await kept(store, clock)
    clock.now += TTL - 1
    second = await kept(store, clock, first)
    clock.now += 1
    assert await store.get(TENANT, first) is None
    assert ids(await store.chain(TENANT, second)) == [second, first]


async def test_a_deleted_response_gives_its_key_back(store: Store, clock: Clock) -> None:
    new = response(clock)
    await store.begin(TENANT, new, owner(clock), key(clock))
    child = await kept(store, clock, new.id)
    await store.delete(TENANT, new.id)
    assert await store.begin(TENANT, response(clock), owner(clock), key(clock, digest=b"another")) is None
    assert ids(await store.chain(TENANT, child)) == [child, new.id]


async def test_who_begins_while_the_parent_is_deleted_has_it_or_is_refused(
    store: Store, another: Store, clock: Clock
) -> None:
    for _ in range(20):
        parent = await kept(store, clock)
        child = response(clock, previous=parent)
        began, deleted = await asyncio.gather(
            another.finish(TENANT, whole(clock, child)), store.delete(TENANT, parent), return_exceptions=True
        )
        assert deleted is True
        links = ids(await store.chain(TENANT, child.id))
        assert links == ([child.id, parent] if began is None else [])

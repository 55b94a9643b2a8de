"""What every store lists of a tenant: its own, in the order of their ids, each once, whatever is done meanwhile."""

import pytest

from antiphon.errors import InvalidValue
from antiphon.ids import new_id
from antiphon.stores.base import Store
from tests.stores.rows import TENANT, TTL, Clock, kept, running, talk

pytestmark = pytest.mark.anyio

ROOM = 1 << 20


async def responses(store: Store, limit: int, descending: bool, room: int = ROOM, tenant: str = TENANT) -> list[str]:
    """All pages, one after the other."""
    names: list[str] = []
    more = True
    while more:
        page = await store.page_responses(tenant, names[-1] if names else None, limit, descending, room)
        assert len(page.rows) <= limit
        assert page.rows or not page.has_more
        names += [row.id for row in page.rows]
        more = page.has_more
    return names


async def conversations(store: Store, limit: int, descending: bool, tenant: str = TENANT) -> list[str]:
    names: list[str] = []
    more = True
    while more:
        page = await store.page_conversations(tenant, names[-1] if names else None, limit, descending)
        assert len(page.rows) == limit or not page.has_more
        names += [row.id for row in page.rows]
        more = page.has_more
    return names


@pytest.mark.parametrize("limit", [1, 3, 7, 100])
async def test_pages_neither_skip_nor_repeat(store: Store, clock: Clock, limit: int) -> None:
    told = [await kept(store, clock) for _ in range(7)]
    talks = [await talk(store, clock) for _ in range(7)]
    for descending in (False, True):
        order = slice(None, None, -1 if descending else 1)
        assert await responses(store, limit, descending) == sorted(told)[order]
        assert await conversations(store, limit, descending) == sorted(talks)[order]


async def test_a_listed_response_is_as_it_is_got(store: Store, clock: Clock) -> None:
    name = await kept(store, clock)
    runs = await running(store, clock, background=True, previous=name)
    page = await store.page_responses(TENANT, None, 10, False, ROOM)
    assert page.rows == [await store.get(TENANT, name) for name in sorted([name, runs.id])]


async def test_a_listed_conversation_is_as_it_is_got(store: Store, clock: Clock) -> None:
    name = await talk(store, clock)
    page = await store.page_conversations(TENANT, None, 10, True)
    assert page.rows == [await store.conversation(TENANT, name)]


async def test_what_is_deleted_hidden_or_expired_is_not_listed(store: Store, clock: Clock) -> None:
    old = await kept(store, clock)
    clock.now += TTL
    parent = await kept(store, clock)
    child = await kept(store, clock, parent)
    gone, stays = await talk(store, clock), await talk(store, clock)
    await store.delete(TENANT, parent)
    await store.delete_conversation(TENANT, gone)
    assert old not in await responses(store, 10, True)
    assert await responses(store, 10, True) == [child]
    assert await conversations(store, 10, True) == [stays]


async def test_a_tenant_lists_its_own_alone(store: Store, clock: Clock) -> None:
    mine, theirs = await kept(store, clock), await kept(store, clock, tenant="another")
    talk_of_mine, talk_of_theirs = await talk(store, clock), await talk(store, clock, tenant="another")
    assert await responses(store, 10, True) == [mine]
    assert await responses(store, 10, True, tenant="another") == [theirs]
    assert await conversations(store, 10, True) == [talk_of_mine]
    assert await conversations(store, 10, True, tenant="another") == [talk_of_theirs]
    assert await responses(store, 10, True, tenant="nobody") == []
    assert await conversations(store, 10, True, tenant="nobody") == []


async def test_a_cursor_of_another_tenant_is_refused_like_one_that_never_was(store: Store, clock: Clock) -> None:
    await kept(store, clock)
    for name in (await kept(store, clock, tenant="another"), new_id("resp"), "", "resp_\0", "resp_ü", "~" * 100):
        with pytest.raises(InvalidValue) as refused:
            await store.page_responses(TENANT, name, 10, True, ROOM)
        assert refused.value.param == "after"
        assert refused.value.message == f"There is nothing with the id {name!r} in this list."
    for name in (await talk(store, clock, tenant="another"), new_id("conv"), "conv_\0"):
        with pytest.raises(InvalidValue) as refused:
            await store.page_conversations(TENANT, name, 10, True)
        assert refused.value.param == "after"


async def test_a_page_goes_on_behind_what_was_hidden_meanwhile(store: Store, clock: Clock) -> None:
    first = await kept(store, clock)
    others = [await kept(store, clock, first) for _ in range(5)]
    gone, *stay = [await talk(store, clock) for _ in range(5)]
    await store.delete(TENANT, first)
    await store.delete_conversation(TENANT, gone)
    page = await store.page_responses(TENANT, first, 10, False, ROOM)
    assert [row.id for row in page.rows] == sorted(name for name in others if name > first)
    talks = await store.page_conversations(TENANT, gone, 10, False)
    assert [row.id for row in talks.rows] == sorted(name for name in stay if name > gone)


async def test_a_page_has_no_more_bytes_than_there_is_room_for_but_always_one_response(
    store: Store, clock: Clock
) -> None:
    names = [await kept(store, clock) for _ in range(5)]
    _, size = (await store.tenants())[TENANT]
    each = size // 5
    for room, count in ((0, 1), (each, 1), (2 * each, 2), (3 * each - 1, 2), (size, 5)):
        page = await store.page_responses(TENANT, None, 10, False, room)
        assert (len(page.rows), page.has_more) == (count, count < 5)
        assert await responses(store, 10, False, room) == sorted(names)

"""Contract suite of stores: lists. A tenant lists only its own rows, ordered by id, each once, also while rows
change.

Covers `stores/sql/responses.py` and `stores/sql/conversations.py`.
"""

import pytest

from antiphon.errors import InvalidValue
from antiphon.ids import new_id
from antiphon.stores.sql.store import Store
from antiphon.testing.rows.response_rows import TENANT, TTL, Clock, begin_response, store_conversation, store_response

MAX_BYTES = 1 << 20


async def list_responses(
    store: Store, limit: int, descending: bool, max_bytes: int = MAX_BYTES, tenant: str = TENANT
) -> list[str]:
    """Read all pages and return the ids of their responses."""
    names: list[str] = []
    more = True
    while more:
        page = await store.page_responses(tenant, names[-1] if names else None, limit, descending, max_bytes)
        assert len(page.rows) <= limit
        assert page.rows or not names
        names += [row.id for row in page.rows]
        more = page.has_more
    return names


async def list_conversations(store: Store, limit: int, descending: bool, tenant: str = TENANT) -> list[str]:
    names: list[str] = []
    more = True
    while more:
        page = await store.page_conversations(tenant, names[-1] if names else None, limit, descending)
        assert page.rows or not names
        assert len(page.rows) == limit or not page.has_more
        names += [row.id for row in page.rows]
        more = page.has_more
    return names


@pytest.mark.parametrize("limit", [1, 3, 7, 100])
async def test_pages_neither_skip_nor_repeat(store: Store, clock: Clock, limit: int) -> None:
    response_ids = [await store_response(store, clock) for _ in range(7)]
    conversation_ids = [await store_conversation(store, clock) for _ in range(7)]
    for descending in (False, True):
        order = slice(None, None, -1 if descending else 1)
        assert await list_responses(store, limit, descending) == sorted(response_ids)[order]
        assert await list_conversations(store, limit, descending) == sorted(conversation_ids)[order]


async def test_a_listed_response_equals_the_response_read_by_id(store: Store, clock: Clock) -> None:
    name = await store_response(store, clock)
    running_response = await begin_response(store, clock, background=True, previous=name)
    page = await store.page_responses(TENANT, None, 10, False, MAX_BYTES)
    assert page.rows == [await store.get(TENANT, name) for name in sorted([name, running_response.id])]


async def test_a_listed_conversation_equals_the_conversation_read_by_id(store: Store, clock: Clock) -> None:
    name = await store_conversation(store, clock)
    page = await store.page_conversations(TENANT, None, 10, True)
    assert page.rows == [await store.conversation(TENANT, name)]


async def test_deleted_hidden_and_expired_rows_are_not_listed(store: Store, clock: Clock) -> None:
    old = await store_response(store, clock)
    clock.now += TTL
    parent = await store_response(store, clock)
    child = await store_response(store, clock, parent)
    gone, stays = await store_conversation(store, clock), await store_conversation(store, clock)
    await store.delete(TENANT, parent)
    await store.delete_conversation(TENANT, gone)
    assert old not in await list_responses(store, 10, True)
    assert await list_responses(store, 10, True) == [child]
    assert await list_conversations(store, 10, True) == [stays]


async def test_a_tenant_lists_only_its_own_rows(store: Store, clock: Clock) -> None:
    mine, theirs = await store_response(store, clock), await store_response(store, clock, tenant="another")
    my_conversation, their_conversation = (
        await store_conversation(store, clock),
        await store_conversation(store, clock, tenant="another"),
    )
    assert await list_responses(store, 10, True) == [mine]
    assert await list_responses(store, 10, True, tenant="another") == [theirs]
    assert await list_conversations(store, 10, True) == [my_conversation]
    assert await list_conversations(store, 10, True, tenant="another") == [their_conversation]
    assert await list_responses(store, 10, True, tenant="nobody") == []
    assert await list_conversations(store, 10, True, tenant="nobody") == []


async def test_a_cursor_of_another_tenant_is_rejected_like_an_unknown_one(store: Store, clock: Clock) -> None:
    await store_response(store, clock)
    for name in (
        await store_response(store, clock, tenant="another"),
        new_id("resp"),
        "",
        "resp_\0",
        "resp_ü",
        "~" * 100,
    ):
        with pytest.raises(InvalidValue) as refused:
            await store.page_responses(TENANT, name, 10, True, MAX_BYTES)
        assert refused.value.param == "after"
        assert refused.value.message == f"There is nothing with the id {name!r} in this list."
    for name in (await store_conversation(store, clock, tenant="another"), new_id("conv"), "conv_\0"):
        with pytest.raises(InvalidValue) as refused:
            await store.page_conversations(TENANT, name, 10, True)
        assert refused.value.param == "after"


async def test_a_page_continues_after_a_cursor_that_was_deleted(store: Store, clock: Clock) -> None:
    first = await store_response(store, clock)
    others = [await store_response(store, clock, first) for _ in range(5)]
    gone, *stay = [await store_conversation(store, clock) for _ in range(5)]
    await store.delete(TENANT, first)
    await store.delete_conversation(TENANT, gone)
    page = await store.page_responses(TENANT, first, 10, False, MAX_BYTES)
    assert [row.id for row in page.rows] == sorted(name for name in others if name > first)
    conversation_page = await store.page_conversations(TENANT, gone, 10, False)
    assert [row.id for row in conversation_page.rows] == sorted(name for name in stay if name > gone)


async def test_a_page_respects_its_byte_limit_but_has_at_least_one_response(store: Store, clock: Clock) -> None:
    names = [await store_response(store, clock) for _ in range(5)]
    _, size = (await store.tenants())[TENANT]
    each = size // 5
    for max_bytes, count in ((0, 1), (each, 1), (2 * each, 2), (3 * each - 1, 2), (size, 5)):
        page = await store.page_responses(TENANT, None, 10, False, max_bytes)
        assert (len(page.rows), page.has_more) == (count, count < 5)
        assert await list_responses(store, 10, False, max_bytes) == sorted(names)

"""Contract suite of stores: conversations and their items.

Covers `stores/sql/conversations.py`.
"""

import asyncio
from itertools import pairwise

import pytest
from msgspec.structs import replace

from antiphon.errors import InvalidValue
from antiphon.ids import new_id
from antiphon.stores.base import ConversationRow, ItemRow, RetentionBounds
from antiphon.stores.sql.store import Store
from antiphon.testing.rows.response_rows import (
    TENANT,
    TTL,
    Clock,
    make_claim,
    make_end,
    make_inserting_end,
    make_item,
    make_response,
    store_conversation,
)
from antiphon.testing.store_tests.responses import MALFORMED_IDS
from antiphon.testing.suite import shows

MAX_ITEMS = 1000


async def list_item_ids(store: Store, conversation: str, limit: int, descending: bool) -> list[str]:
    """Read all pages and return the ids of their items."""
    names: list[str] = []
    more = True
    while more:
        page = await store.page_items(TENANT, conversation, names[-1] if names else None, limit, descending)
        assert page is not None
        assert page.rows or not names
        names += [row.id for row in page.rows]
        more = page.has_more
        assert len(page.rows) == limit or not more
    return names


async def test_a_conversation_is_read_as_created(store: Store, clock: Clock) -> None:
    row = ConversationRow(new_id("conv"), clock(), {"key": "välue", "null\0": "\0"})
    items = [make_item("one"), make_item("two")]
    await store.create_conversation(TENANT, row, items)
    assert await store.conversation(TENANT, row.id) == row
    assert await store.all_items(TENANT, row.id) == [b"one", b"two"]


async def test_metadata_is_merged(store: Store, clock: Clock) -> None:
    row = ConversationRow(new_id("conv"), clock(), {"keep": "1", "change": "1", "drop": "1"})
    await store.create_conversation(TENANT, row, [])
    changes = {"change": "2", "drop": None, "new": "2", "never": None}
    merged = ConversationRow(row.id, row.created, {"keep": "1", "change": "2", "new": "2"})
    assert await store.merge_metadata(TENANT, row.id, changes, 3) == merged
    with pytest.raises(InvalidValue) as refused:
        await store.merge_metadata(TENANT, row.id, {"one more": "3"}, 3)
    assert refused.value.param == "metadata"
    assert await store.conversation(TENANT, row.id) == merged
    assert await store.merge_metadata(TENANT, new_id("conv"), {}, 3) is None


async def test_concurrent_metadata_merges_are_all_applied(store: Store, other_store: Store, clock: Clock) -> None:
    name = await store_conversation(store, clock)
    merges = [(store, other_store)[n % 2].merge_metadata(TENANT, name, {str(n): ""}, 100) for n in range(20)]
    await asyncio.gather(*merges)
    row = await store.conversation(TENANT, name)
    assert row
    assert row.metadata == {"a": "b"} | {str(n): "" for n in range(20)}


@shows("B.17")
async def test_items_of_a_deleted_conversation_can_be_referenced_until_they_expire(store: Store, clock: Clock) -> None:
    one = make_item("one")
    name = await store_conversation(store, clock, one)
    assert await store.delete_conversation(TENANT, name)
    assert not await store.delete_conversation(TENANT, name)
    assert await store.conversation(TENANT, name) is None
    assert await store.all_items(TENANT, name) is None
    assert await store.page_items(TENANT, name, one.id, 10, False) is None
    assert await store.item(TENANT, name, one.id) is None
    assert not await store.add_items(TENANT, name, [make_item()], MAX_ITEMS)
    assert not await store.delete_item(TENANT, name, one.id)
    assert await store.merge_metadata(TENANT, name, {}, 16) is None
    clock.now += TTL - 1
    assert await store.sweep(RetentionBounds()) == 0
    assert await store.find_item(TENANT, one.id) == b"one"
    clock.now += 1
    assert await store.find_item(TENANT, one.id) is None
    assert await store.sweep(RetentionBounds()) > 0
    assert await store.tenants() == {}


async def test_added_items_follow_the_existing_ones(store: Store, clock: Clock) -> None:
    name = await store_conversation(store, clock, make_item("0"))
    assert await store.add_items(TENANT, name, [make_item("1"), make_item("2")], MAX_ITEMS)
    assert await store.add_items(TENANT, name, [make_item("3")], MAX_ITEMS)
    assert await store.all_items(TENANT, name) == [b"0", b"1", b"2", b"3"]
    assert not await store.add_items(TENANT, new_id("conv"), [make_item()], MAX_ITEMS)


async def test_the_number_of_items_in_a_conversation_is_limited(store: Store, clock: Clock) -> None:
    name = await store_conversation(store, clock, make_item("0"), make_item("1"))
    totals = await store.tenants()
    with pytest.raises(InvalidValue) as refused:
        await store.add_items(TENANT, name, [make_item("2"), make_item("3")], 3)
    assert refused.value.param == "items"
    assert await store.all_items(TENANT, name) == [b"0", b"1"]
    assert await store.tenants() == totals
    assert await store.add_items(TENANT, name, [make_item("2")], 3)


@shows("B.20", "B.21")
async def test_an_item_is_found_and_deleted(store: Store, clock: Clock) -> None:
    one, two = make_item("one"), make_item("two")
    name = await store_conversation(store, clock, one, two)
    assert await store.item(TENANT, name, one.id) == b"one"
    assert await store.item(TENANT, name, new_id("msg")) is None
    assert await store.delete_item(TENANT, name, one.id)
    assert not await store.delete_item(TENANT, name, one.id)
    assert await store.item(TENANT, name, one.id) is None
    assert await store.find_item(TENANT, one.id) is None
    assert await store.all_items(TENANT, name) == [b"two"]
    assert (await store.tenants())[TENANT] == (0, 3)


async def test_an_item_may_belong_to_several_conversations(store: Store, clock: Clock) -> None:
    one = make_item("one")
    first, second = await store_conversation(store, clock, one), await store_conversation(store, clock, one)
    assert await store.delete_item(TENANT, first, one.id)
    assert await store.item(TENANT, first, one.id) is None
    assert await store.item(TENANT, second, one.id) == b"one"
    assert await store.find_item(TENANT, one.id) == b"one"


async def test_a_conversation_contains_an_item_once(store: Store, clock: Clock) -> None:
    one, two = make_item("one"), make_item("two")
    name = await store_conversation(store, clock, one)
    assert await store.add_items(TENANT, name, [one, two], 2)
    assert await store.all_items(TENANT, name) == [b"one", b"two"]
    await store.delete_item(TENANT, name, one.id)
    assert await store.add_items(TENANT, name, [one], 2)
    assert await store.all_items(TENANT, name) == [b"two", b"one"]
    assert (await store.tenants())[TENANT] == (0, 6)


@shows("B.19")
@pytest.mark.parametrize("descending", [False, True])
async def test_pages_of_items_neither_skip_nor_repeat(store: Store, clock: Clock, descending: bool) -> None:
    items = [make_item(str(n)) for n in range(13)]
    name = await store_conversation(store, clock, *items)
    expected = [one.id for one in (items[::-1] if descending else items)]
    for limit in range(1, 15):
        assert await list_item_ids(store, name, limit, descending) == expected


@pytest.mark.parametrize("descending", [False, True])
async def test_pages_are_complete_while_items_are_added_and_deleted(
    store: Store, clock: Clock, descending: bool
) -> None:
    items = [make_item(str(n)) for n in range(12)]
    name = await store_conversation(store, clock, *items)
    seen: list[ItemRow] = []
    more = True
    while more:
        page = await store.page_items(TENANT, name, seen[-1].id if seen else None, 2, descending)
        assert page
        seen += page.rows
        more = page.has_more and len(seen) < 12
        await store.add_items(TENANT, name, [make_item(), make_item()], MAX_ITEMS)
        await store.delete_item(TENANT, name, seen[-1].id)
    assert seen[:12] == (items[::-1] if descending else items)


async def test_a_cursor_that_is_not_in_the_conversation_is_rejected(store: Store, clock: Clock) -> None:
    one, foreign = make_item("one"), make_item("foreign")
    name = await store_conversation(store, clock, one)
    await store_conversation(store, clock, foreign)
    for after in (foreign.id, new_id("msg"), *MALFORMED_IDS):
        with pytest.raises(InvalidValue) as refused:
            await store.page_items(TENANT, name, after, 10, True)
        assert refused.value.param == "after"
    assert await store.page_items(TENANT, new_id("conv"), one.id, 10, True) is None


async def test_a_tenant_sees_no_conversations_of_another(store: Store, clock: Clock) -> None:
    one = make_item("one")
    name = await store_conversation(store, clock, one)
    assert await store.conversation("other", name) is None
    assert await store.all_items("other", name) is None
    assert await store.page_items("other", name, one.id, 10, True) is None
    assert await store.item("other", name, one.id) is None
    assert await store.find_item("other", one.id) is None
    assert await store.merge_metadata("other", name, {"a": None}, 16) is None
    assert not await store.add_items("other", name, [make_item()], MAX_ITEMS)
    assert not await store.delete_item("other", name, one.id)
    assert not await store.delete_conversation("other", name)
    row = await store.conversation(TENANT, name)
    assert row
    assert row.metadata == {"a": "b"}
    assert await store.all_items(TENANT, name) == [b"one"]


async def test_malformed_conversation_ids_find_nothing(store: Store, clock: Clock) -> None:
    one = make_item("one")
    name = await store_conversation(store, clock, one)
    for malformed in MALFORMED_IDS:
        assert await store.conversation(TENANT, malformed) is None
        assert await store.all_items(TENANT, malformed) is None
        assert await store.item(TENANT, malformed, one.id) is None
        assert await store.item(TENANT, name, malformed) is None
        assert await store.find_item(TENANT, malformed) is None
        assert not await store.delete_item(TENANT, name, malformed)
        assert not await store.delete_conversation(TENANT, malformed)
        assert not await store.add_items(TENANT, malformed, [make_item()], MAX_ITEMS)
        assert await store.merge_metadata(TENANT, malformed, {}, 16) is None


@shows("B.26")
async def test_items_of_concurrent_turns_are_neither_lost_nor_interleaved(
    store: Store, other_store: Store, clock: Clock
) -> None:
    name = await store_conversation(store, clock, make_item("first"))
    turns = [make_response(clock, conversation=name) for _ in range(50)]
    stores = [store, other_store] * 25
    await asyncio.gather(*(one.begin(TENANT, new, make_claim(clock)) for one, new in zip(stores, turns, strict=True)))
    blocks = [tuple(make_item(f"{n}.{part}") for part in range(3)) for n in range(50)]
    ends = [make_end(clock, new, items=block) for new, block in zip(turns, blocks, strict=True)]
    await asyncio.gather(*(one.finish(TENANT, done) for one, done in zip(stores, ends, strict=True)))
    await asyncio.gather(*(one.finish(TENANT, done) for one, done in zip(stores, ends, strict=True)))
    found = await store.all_items(TENANT, name)
    assert found
    assert sorted(found) == sorted([b"first", *(row.item for block in blocks for row in block)])
    turn_numbers = [text.split(b".")[0] for text in found[1:]]
    assert sum(one != other for one, other in pairwise(turn_numbers)) == 49, "the items of a turn are contiguous"
    assert [text.split(b".")[1] for text in found[1:]] == [b"0", b"1", b"2"] * 50


async def test_a_turn_that_was_never_begun_adds_its_items(store: Store, clock: Clock) -> None:
    name = await store_conversation(store, clock)
    new = make_response(clock, conversation=name)
    done = make_inserting_end(clock, new)
    rows = (make_item("in"), make_item("out"))
    for _ in range(2):
        await store.finish(TENANT, replace(done, items=rows))
    assert await store.all_items(TENANT, name) == [b"in", b"out"]


async def test_a_turn_ends_although_its_conversation_was_deleted(store: Store, clock: Clock) -> None:
    name = await store_conversation(store, clock)
    new = make_response(clock, conversation=name)
    await store.begin(TENANT, new, make_claim(clock))
    await store.delete_conversation(TENANT, name)
    await store.finish(TENANT, make_end(clock, new, items=(make_item(),)))
    row = await store.get(TENANT, new.id)
    assert row
    assert row.status == "completed"
    assert await store.all_items(TENANT, name) is None

"""What every store keeps of conversations and their items."""

import asyncio
from itertools import pairwise

import pytest
from msgspec.structs import replace

from antiphon.errors import InvalidValue
from antiphon.ids import new_id
from antiphon.stores.base import Bounds, ConversationRow, ItemRow, Store
from tests.contracts.store.test_responses import STRANGE
from tests.stores.rows import TENANT, TTL, Clock, end, item, owner, response, talk, whole

pytestmark = pytest.mark.anyio

MOST = 1000


async def listed(store: Store, conversation: str, limit: int, descending: bool) -> list[str]:
    """All pages, one after the other."""
    names: list[str] = []
    more = True
    while more:
        page = await store.page_items(TENANT, conversation, names[-1] if names else None, limit, descending)
        assert page is not None
        names += [row.id for row in page.rows]
        more = page.has_more
        assert len(page.rows) == limit or not more
    return names


async def test_a_conversation_is_there_as_it_was_made(store: Store, clock: Clock) -> None:
    row = ConversationRow(new_id("conv"), clock(), {"key": "välue", "null\0": "\0"})
    items = [item("one"), item("two")]
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


async def test_no_merge_is_lost(store: Store, another: Store, clock: Clock) -> None:
    name = await talk(store, clock)
    merges = [(store, another)[n % 2].merge_metadata(TENANT, name, {str(n): ""}, 100) for n in range(20)]
    await asyncio.gather(*merges)
    row = await store.conversation(TENANT, name)
    assert row
    assert row.metadata == {"a": "b"} | {str(n): "" for n in range(20)}


@pytest.mark.shows("B.17")
async def test_a_deleted_conversation_is_gone_and_its_items_can_be_referred_to(store: Store, clock: Clock) -> None:
    one = item("one")
    name = await talk(store, clock, one)
    assert await store.delete_conversation(TENANT, name)
    assert not await store.delete_conversation(TENANT, name)
    assert await store.conversation(TENANT, name) is None
    assert await store.all_items(TENANT, name) is None
    assert await store.page_items(TENANT, name, one.id, 10, False) is None
    assert await store.item(TENANT, name, one.id) is None
    assert not await store.add_items(TENANT, name, [item()], MOST)
    assert not await store.delete_item(TENANT, name, one.id)
    assert await store.merge_metadata(TENANT, name, {}, 16) is None
    clock.now += TTL - 1
    assert await store.sweep(Bounds()) == 0
    assert await store.find_item(TENANT, one.id) == b"one"
    clock.now += 1
    assert await store.find_item(TENANT, one.id) is None
    assert await store.sweep(Bounds()) > 0
    assert await store.tenants() == {}


async def test_items_come_after_all_others(store: Store, clock: Clock) -> None:
    name = await talk(store, clock, item("0"))
    assert await store.add_items(TENANT, name, [item("1"), item("2")], MOST)
    assert await store.add_items(TENANT, name, [item("3")], MOST)
    assert await store.all_items(TENANT, name) == [b"0", b"1", b"2", b"3"]
    assert not await store.add_items(TENANT, new_id("conv"), [item()], MOST)


async def test_a_conversation_has_at_most_so_many_items(store: Store, clock: Clock) -> None:
    name = await talk(store, clock, item("0"), item("1"))
    totals = await store.tenants()
    with pytest.raises(InvalidValue) as refused:
        await store.add_items(TENANT, name, [item("2"), item("3")], 3)
    assert refused.value.param == "items"
    assert await store.all_items(TENANT, name) == [b"0", b"1"]
    assert await store.tenants() == totals
    assert await store.add_items(TENANT, name, [item("2")], 3)


@pytest.mark.shows("B.20", "B.21")
async def test_an_item_is_found_and_deleted(store: Store, clock: Clock) -> None:
    one, two = item("one"), item("two")
    name = await talk(store, clock, one, two)
    assert await store.item(TENANT, name, one.id) == b"one"
    assert await store.item(TENANT, name, new_id("msg")) is None
    assert await store.delete_item(TENANT, name, one.id)
    assert not await store.delete_item(TENANT, name, one.id)
    assert await store.item(TENANT, name, one.id) is None
    assert await store.find_item(TENANT, one.id) is None
    assert await store.all_items(TENANT, name) == [b"two"]
    assert (await store.tenants())[TENANT] == (0, 3)


async def test_an_item_may_stand_in_several_conversations(store: Store, clock: Clock) -> None:
    one = item("one")
    first, second = await talk(store, clock, one), await talk(store, clock, one)
    assert await store.delete_item(TENANT, first, one.id)
    assert await store.item(TENANT, first, one.id) is None
    assert await store.item(TENANT, second, one.id) == b"one"
    assert await store.find_item(TENANT, one.id) == b"one"


async def test_an_item_stands_in_a_conversation_once(store: Store, clock: Clock) -> None:
    one, two = item("one"), item("two")
    name = await talk(store, clock, one)
    assert await store.add_items(TENANT, name, [one, two], 2)
    assert await store.all_items(TENANT, name) == [b"one", b"two"]
    await store.delete_item(TENANT, name, one.id)
    assert await store.add_items(TENANT, name, [one], 2)
    assert await store.all_items(TENANT, name) == [b"two", b"one"]
    assert (await store.tenants())[TENANT] == (0, 6)


@pytest.mark.shows("B.19")
@pytest.mark.parametrize("descending", [False, True])
async def test_pages_neither_skip_nor_repeat(store: Store, clock: Clock, descending: bool) -> None:
    items = [item(str(n)) for n in range(13)]
    name = await talk(store, clock, *items)
    expected = [one.id for one in (items[::-1] if descending else items)]
    for limit in range(1, 15):
        assert await listed(store, name, limit, descending) == expected


@pytest.mark.parametrize("descending", [False, True])
async def test_pages_are_whole_while_items_come_and_go(store: Store, clock: Clock, descending: bool) -> None:
    items = [item(str(n)) for n in range(12)]
    name = await talk(store, clock, *items)
    seen: list[ItemRow] = []
    more = True
    while more:
        page = await store.page_items(TENANT, name, seen[-1].id if seen else None, 2, descending)
        assert page
        seen += page.rows
        more = page.has_more and len(seen) < 12
        await store.add_items(TENANT, name, [item(), item()], MOST)
        await store.delete_item(TENANT, name, seen[-1].id)
    assert seen[:12] == (items[::-1] if descending else items)


async def test_a_cursor_from_elsewhere_is_refused(store: Store, clock: Clock) -> None:
    one, foreign = item("one"), item("foreign")
    name = await talk(store, clock, one)
    await talk(store, clock, foreign)
    for after in (foreign.id, new_id("msg"), *STRANGE):
        with pytest.raises(InvalidValue) as refused:
            await store.page_items(TENANT, name, after, 10, True)
        assert refused.value.param == "after"
    assert await store.page_items(TENANT, new_id("conv"), one.id, 10, True) is None


async def test_a_tenant_sees_nothing_of_another_s_conversations(store: Store, clock: Clock) -> None:
    one = item("one")
    name = await talk(store, clock, one)
    assert await store.conversation("other", name) is None
    assert await store.all_items("other", name) is None
    assert await store.page_items("other", name, one.id, 10, True) is None
    assert await store.item("other", name, one.id) is None
    assert await store.find_item("other", one.id) is None
    assert await store.merge_metadata("other", name, {"a": None}, 16) is None
    assert not await store.add_items("other", name, [item()], MOST)
    assert not await store.delete_item("other", name, one.id)
    assert not await store.delete_conversation("other", name)
    row = await store.conversation(TENANT, name)
    assert row
    assert row.metadata == {"a": "b"}
    assert await store.all_items(TENANT, name) == [b"one"]


async def test_strange_ids_find_nothing(store: Store, clock: Clock) -> None:
    one = item("one")
    name = await talk(store, clock, one)
    for strange in STRANGE:
        assert await store.conversation(TENANT, strange) is None
        assert await store.all_items(TENANT, strange) is None
        assert await store.item(TENANT, strange, one.id) is None
        assert await store.item(TENANT, name, strange) is None
        assert await store.find_item(TENANT, strange) is None
        assert not await store.delete_item(TENANT, name, strange)
        assert not await store.delete_conversation(TENANT, strange)
        assert not await store.add_items(TENANT, strange, [item()], MOST)
        assert await store.merge_metadata(TENANT, strange, {}, 16) is None


@pytest.mark.shows("B.26")
async def test_fifty_turns_at_once_neither_get_lost_nor_interleave(store: Store, another: Store, clock: Clock) -> None:
    name = await talk(store, clock, item("first"))
    turns = [response(clock, conversation=name) for _ in range(50)]
    stores = [store, another] * 25
    await asyncio.gather(*(one.begin(TENANT, new, owner(clock)) for one, new in zip(stores, turns, strict=True)))
    blocks = [tuple(item(f"{n}.{part}") for part in range(3)) for n in range(50)]
    ends = [end(clock, new, items=block) for new, block in zip(turns, blocks, strict=True)]
    await asyncio.gather(*(one.finish(TENANT, done) for one, done in zip(stores, ends, strict=True)))
    await asyncio.gather(*(one.finish(TENANT, done) for one, done in zip(stores, ends, strict=True)))
    found = await store.all_items(TENANT, name)
    assert found
    assert sorted(found) == sorted([b"first", *(row.item for block in blocks for row in block)])
    whose = [text.split(b".")[0] for text in found[1:]]
    assert sum(one != other for one, other in pairwise(whose)) == 49, "each turn's items stand together"
    assert [text.split(b".")[1] for text in found[1:]] == [b"0", b"1", b"2"] * 50


async def test_a_turn_that_was_never_begun_gives_its_items_too(store: Store, clock: Clock) -> None:
    name = await talk(store, clock)
    new = response(clock, conversation=name)
    done = whole(clock, new)
    rows = (item("in"), item("out"))
    for _ in range(2):
        await store.finish(TENANT, replace(done, items=rows))
    assert await store.all_items(TENANT, name) == [b"in", b"out"]


async def test_a_turn_ends_though_its_conversation_is_gone(store: Store, clock: Clock) -> None:
    name = await talk(store, clock)
    new = response(clock, conversation=name)
    await store.begin(TENANT, new, owner(clock))
    await store.delete_conversation(TENANT, name)
    await store.finish(TENANT, end(clock, new, items=(item(),)))
    row = await store.get(TENANT, new.id)
    assert row
    assert row.status == "completed"
    assert await store.all_items(TENANT, name) is None

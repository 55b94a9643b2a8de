"""What is large comes back as it was written, whichever way it came in."""

import asyncio

import pytest
from msgspec.structs import replace

from antiphon.stores.base import ItemRow, Store
from antiphon.stores.sql.operation import LARGE
from tests.stores.rows import TENANT, Clock, end, item, kept, key, owner, response, talk, whole

pytestmark = pytest.mark.anyio

TEXT = "text" * LARGE


async def test_a_large_request_is_there_while_it_runs_and_after_its_end(store: Store, clock: Clock) -> None:
    new = response(clock, text=TEXT)
    await store.begin(TENANT, new, owner(clock))
    begun = await store.get(TENANT, new.id)
    assert begun is not None
    assert (begun.request, begun.response, begun.tape) == (new.request, new.response, None)
    ended = end(clock, new, text=TEXT)
    await store.finish(TENANT, ended)
    row = await store.get(TENANT, new.id)
    assert row is not None
    assert (row.request, row.response, row.tape) == (new.request, ended.response, ended.tape)


async def test_a_large_one_that_is_written_at_its_end_is_there_beside_small_ones(store: Store, clock: Clock) -> None:
    news = [response(clock, text=text) for text in ("small", TEXT, "little", TEXT[1:])]
    await asyncio.gather(*[store.finish(TENANT, whole(clock, new)) for new in news])
    rows = [await store.get(TENANT, new.id) for new in news]
    assert [row and row.request for row in rows] == [new.request for new in news]
    assert [row and row.tape for row in rows] == [b"tape"] * 4


async def test_a_large_one_that_is_written_twice_is_as_it_was(store: Store, clock: Clock) -> None:
    first = response(clock, text=TEXT, previous=await kept(store, clock))
    for new in (first, replace(first, request=first.request[::-1])):
        await store.begin(TENANT, new, owner(clock), key(clock))
    row = await store.get(TENANT, first.id)
    assert row is not None
    assert row.request == first.request


@pytest.mark.parametrize("background", [True, False])
async def test_a_large_one_has_whatever_belongs_behind_it(store: Store, clock: Clock, background: bool) -> None:
    new = replace(response(clock, text=TEXT, background=background, rank=2), bearer="key_1")
    await store.begin(TENANT, new, owner(clock), room=10)
    row = await store.get(TENANT, new.id)
    assert row is not None
    assert (row.request, row.response, row.bearer) == (new.request, new.response, "key_1")


async def test_large_items_are_there_in_their_places_also_when_they_come_again(store: Store, clock: Clock) -> None:
    items = [item("small"), item(TEXT), item("little")]
    conversation = await talk(store, clock, *items)
    assert await store.add_items(TENANT, conversation, [ItemRow(items[1].id, b"another")], 100)  # is there already
    assert await store.all_items(TENANT, conversation) == [one.item for one in items]
    await store.delete_item(TENANT, conversation, items[1].id)
    again = ItemRow(items[1].id, TEXT[1:].encode())
    assert await store.add_items(TENANT, conversation, [again], 100)
    assert await store.all_items(TENANT, conversation) == [items[0].item, items[2].item, again.item]
    assert await store.item(TENANT, conversation, again.id) == again.item

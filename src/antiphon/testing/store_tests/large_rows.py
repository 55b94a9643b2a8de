"""Contract suite of stores: large values are read as they were written, by every operation that writes them."""

import asyncio

import msgspec
import pytest
from msgspec.structs import replace

from antiphon.stores.base import ItemRow
from antiphon.stores.sql.operation import LARGE_BYTES
from antiphon.stores.sql.store import Store
from antiphon.testing.rows.response_rows import (
    PACKED_LOG,
    TENANT,
    Clock,
    make_claim,
    make_end,
    make_inserting_end,
    make_item,
    make_key,
    make_response,
    store_conversation,
    store_response,
)

TEXT = " ".join(map(str, range(LARGE_BYTES // 2)))


async def test_a_large_request_is_readable_while_it_runs_and_after_its_end(store: Store, clock: Clock) -> None:
    new = make_response(clock, text=TEXT)
    await store.begin(TENANT, new, make_claim(clock))
    begun = await store.get(TENANT, new.id)
    assert begun is not None
    assert (begun.request, begun.response, begun.packed_log) == (new.request, new.response, None)
    ended = make_end(clock, new, text=TEXT)
    await store.finish(TENANT, ended)
    row = await store.get(TENANT, new.id)
    assert row is not None
    assert (row.request, row.response, row.packed_log) == (new.request, ended.response, ended.packed_log)


async def test_a_large_request_is_read_by_every_operation_that_returns_it(store: Store, clock: Clock) -> None:
    new = make_response(clock, text=TEXT, background=True, previous=await store_response(store, clock))
    await store.begin(TENANT, new, make_claim(clock), max_background=10)
    taken = await store.take(TENANT, new.id, make_claim(clock, "other"))
    assert taken is not None
    assert taken.request == new.request
    clock.now += 100
    [claimed] = await store.claim(make_claim(clock), 10)
    assert claimed.row.request == new.request
    page = await store.page_responses(TENANT, None, 10, True, len(TEXT) * 2)
    assert [row.request for row in page.rows if row.id == new.id] == [new.request]
    assert (await store.chain(TENANT, new.id))[0].request == new.request


@pytest.mark.parametrize("text", ["small", TEXT], ids=["small", "large"])
async def test_a_response_is_read_without_its_request(store: Store, clock: Clock, text: str) -> None:
    new = make_response(clock, text=text)
    await store.begin(TENANT, new, make_claim(clock))
    row = await store.get(TENANT, new.id)
    assert row is not None
    assert row.request == new.request
    assert await store.get(TENANT, new.id, with_request=False) == replace(row, request=b"")


async def test_a_large_request_is_counted_with_its_end_and_removed_with_its_response(
    store: Store, clock: Clock
) -> None:
    new = make_response(clock, text=TEXT)
    await store.begin(TENANT, new, make_claim(clock))
    for end in (make_end(clock, new), replace(make_end(clock, new), status="failed", replaces_unconfirmed=True)):
        await store.finish(TENANT, end)
        assert await store.tenants() == {TENANT: (1, len(new.request) + len(end.response) + len(PACKED_LOG))}
    assert await store.delete(TENANT, new.id)
    assert await store.tenants() == {}
    await store.begin(TENANT, new, make_claim(clock))  # nothing is left of the first one
    row = await store.get(TENANT, new.id)
    assert row is not None
    assert row.request == new.request


async def test_a_deleted_large_response_with_descendants_retains_only_its_items(store: Store, clock: Clock) -> None:
    new = make_response(clock, text=TEXT)
    await store.finish(TENANT, make_inserting_end(clock, new))
    child = await store_response(store, clock, new.id)
    assert await store.delete(TENANT, new.id)
    assert msgspec.json.decode((await store.chain(TENANT, child))[1].request) == {"asked": {"input": [TEXT]}}
    assert await store.delete(TENANT, child)
    assert await store.tenants() == {}


async def test_large_and_small_responses_are_written_concurrently_at_their_end(store: Store, clock: Clock) -> None:
    news = [make_response(clock, text=text) for text in ("small", TEXT, "little", TEXT[1:])]
    await asyncio.gather(*[store.finish(TENANT, make_inserting_end(clock, new)) for new in news])
    rows = [await store.get(TENANT, new.id) for new in news]
    assert [row and row.request for row in rows] == [new.request for new in news]
    assert [row and row.packed_log for row in rows] == [b"tape"] * 4


async def test_a_second_write_does_not_change_a_large_response(store: Store, clock: Clock) -> None:
    first = make_response(clock, text=TEXT, previous=await store_response(store, clock))
    for new in (first, replace(first, request=first.request[::-1])):
        await store.begin(TENANT, new, make_claim(clock), make_key(clock))
    row = await store.get(TENANT, first.id)
    assert row is not None
    assert row.request == first.request


@pytest.mark.parametrize("background", [True, False])
async def test_a_large_response_is_read_with_all_its_fields(store: Store, clock: Clock, background: bool) -> None:
    new = replace(make_response(clock, text=TEXT, background=background, rank=2), charged_key="key_1")
    await store.begin(TENANT, new, make_claim(clock), max_background=10)
    row = await store.get(TENANT, new.id)
    assert row is not None
    assert (row.request, row.response, row.charged_key) == (new.request, new.response, "key_1")


async def test_large_items_retain_their_order_when_added_again(store: Store, clock: Clock) -> None:
    items = [make_item("small"), make_item(TEXT), make_item("little")]
    conversation = await store_conversation(store, clock, *items)
    assert await store.add_items(TENANT, conversation, [ItemRow(items[1].id, b"another")], 100)  # exists already
    assert await store.all_items(TENANT, conversation) == [one.item for one in items]
    await store.delete_item(TENANT, conversation, items[1].id)
    again = ItemRow(items[1].id, TEXT[1:].encode())
    assert await store.add_items(TENANT, conversation, [again], 100)
    assert await store.all_items(TENANT, conversation) == [items[0].item, items[2].item, again.item]
    assert await store.item(TENANT, conversation, again.id) == again.item
    assert await store.find_item(TENANT, again.id) == again.item
    page = await store.page_items(TENANT, conversation, None, 1, True)
    assert page is not None
    assert page.rows == [again]

"""Contract suite of stores: what keys use per day is summed over all servers.

Covers `stores/sql/totals.py`.
"""

import asyncio

from antiphon.stores.base import Page, UsageRow
from antiphon.stores.sql.store import Store


async def test_servers_add_to_the_same_sums(store: Store, other_store: Store) -> None:
    rows = [UsageRow(5, "a", "k", 1, 10, 2, 3), UsageRow(5, "b", "", 1, 2**40, 0, 1)]
    async with asyncio.timeout(60):
        await asyncio.gather(*[one.add_usage(rows, 0) for one in (store, other_store) * 5])
    expected = [UsageRow(5, "a", "k", 10, 100, 20, 30), UsageRow(5, "b", "", 10, 10 * 2**40, 0, 10)]
    assert await store.usage(5, None, 10) == Page(expected, False)
    assert await store.usage(5, "b", 10) == Page(expected[1:], False)
    assert await store.usage(6, None, 10) == Page([], False)
    assert await store.usage(0, "no\0body", 10) == Page([], False)


async def test_the_latest_days_come_first_and_old_ones_are_forgotten(store: Store) -> None:
    for day in (3, 1, 2):
        await store.add_usage([UsageRow(day, "a", "k", day, 0, 0, 0)], 0)
    assert [row.day for row in (await store.usage(0, None, 10)).rows] == [3, 2, 1]
    page = await store.usage(0, None, 2)
    assert ([row.day for row in page.rows], page.has_more) == ([3, 2], True)
    await store.add_usage([], 3)
    assert [row.day for row in (await store.usage(0, None, 10)).rows] == [3]

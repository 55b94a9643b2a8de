"""Contract suite of stores: API keys. Everything about a key is stored except the key itself.

Covers `stores/sql/keys.py`.
"""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from antiphon.errors import InvalidValue
from antiphon.ids import new_id
from antiphon.service.access.api_keys import issue
from antiphon.stores.base import ApiKey, RetentionBounds
from antiphon.stores.sql.store import Store
from antiphon.testing.rows.response_rows import Clock


def make_api_key(clock: Clock, tenant: str = "acme", expires: float | None = None) -> ApiKey:
    row, _ = issue(tenant, "Ünïcode name", ("inference", "admin"), clock(), expires)
    return row


def sort_by_id(*rows: ApiKey) -> list[ApiKey]:
    return sorted(rows, key=lambda row: row.id)


async def test_a_key_is_read_as_written(store: Store, other_store: Store, clock: Clock) -> None:
    permanent, expiring = make_api_key(clock), make_api_key(clock, expires=clock() + 10)
    for row in (permanent, expiring):
        await store.add_api_key(row)
    assert await other_store.find_api_keys([expiring.id]) == [expiring]
    assert await other_store.api_keys() == sort_by_id(permanent, expiring)


async def test_a_revoked_key_counts_as_an_existing_key(store: Store, clock: Clock) -> None:
    assert not await store.has_api_keys()
    row = make_api_key(clock)
    await store.add_api_key(row)
    await store.revoke_api_key(row.id)
    assert await store.has_api_keys()


async def test_a_key_is_revoked_once_for_all_servers(store: Store, other_store: Store, clock: Clock) -> None:
    row, other = make_api_key(clock), make_api_key(clock)
    await store.add_api_key(row)
    await store.add_api_key(other)
    clock.now += 5
    revoked = replace(row, revoked=clock())
    assert await store.revoke_api_key(row.id) == revoked
    clock.now += 5
    assert await other_store.revoke_api_key(row.id) == revoked
    assert sort_by_id(*await other_store.find_api_keys([row.id, other.id])) == sort_by_id(revoked, other)


@pytest.mark.parametrize("name", ["", "key_\0", "key_ü", "' OR '1'='1", "x" * 5000])
async def test_an_unknown_key_is_not_found(store: Store, clock: Clock, name: str) -> None:
    await store.add_api_key(make_api_key(clock))
    assert await store.find_api_keys([name]) == []
    assert await store.revoke_api_key(name) is None


async def test_many_keys_are_found_at_once(store: Store, clock: Clock) -> None:
    rows = [make_api_key(clock) for _ in range(150)]
    async with asyncio.timeout(60):
        await asyncio.gather(*(store.add_api_key(row) for row in rows))
    names = [row.id for row in rows[:140]] + [new_id("key")]
    assert sort_by_id(*await store.find_api_keys(names)) == sort_by_id(*rows[:140])
    assert await store.find_api_keys([]) == []


async def test_a_sweep_does_not_remove_keys_and_they_do_not_count_as_entries(store: Store, clock: Clock) -> None:
    row = make_api_key(clock, expires=clock() + 1)
    await store.add_api_key(row)
    clock.now += 1e9
    await store.sweep(RetentionBounds(entries=0, bytes=0, conversations=0))
    assert await store.api_keys() == [row]
    assert await store.tenants() == {}


async def test_the_key_itself_is_not_stored(store: Store, store_location: str, clock: Clock) -> None:
    row, key = issue("acme", "", (), clock(), None)
    await store.add_api_key(row)
    assert key.encode() not in row.digest
    if store.name == "sqlite":
        written = b"".join(path.read_bytes() for path in Path(store_location).parent.iterdir())
        assert row.id.encode() in written
        assert key.rpartition("_")[2].encode() not in written


@pytest.mark.parametrize("limit", [1, 2, 10])
async def test_pages_of_keys_neither_skip_nor_repeat(store: Store, clock: Clock, limit: int) -> None:
    rows = [make_api_key(clock, tenant) for tenant in ("acme", "other", "acme", "acme")]
    for row in rows:
        await store.add_api_key(row)
    for tenant, descending in ((None, True), (None, False), ("acme", True), ("acme", False), ("no\0body", True)):
        found: list[ApiKey] = []
        more = True
        while more:
            page = await store.page_api_keys(tenant, found[-1].id if found else None, limit, descending)
            assert page.rows or not found
            found, more = found + page.rows, page.has_more
        expected = sort_by_id(*[row for row in rows if tenant in (None, row.tenant)])
        assert found == (expected[::-1] if descending else expected)


@pytest.mark.parametrize("name", ["", "key_\0", "key_ü", new_id("key")])
async def test_an_unknown_cursor_of_keys_is_rejected(store: Store, name: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        await store.page_api_keys(None, name, 10, True)
    assert refused.value.param == "after"

"""What every store keeps of the keys that let clients in: all but the keys."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from antiphon.ids import new_id
from antiphon.service.access.api_key_format import issue
from antiphon.stores.base import ApiKey, Bounds, Store
from tests.stores.rows import Clock

pytestmark = pytest.mark.anyio


def made(clock: Clock, tenant: str = "acme", expires: float | None = None) -> ApiKey:
    row, _ = issue(tenant, "Ünïcode name", ("inference", "admin"), clock(), expires)
    return row


def by_id(*rows: ApiKey) -> list[ApiKey]:
    return sorted(rows, key=lambda row: row.id)


async def test_a_key_is_there_as_it_was_made(store: Store, another: Store, clock: Clock) -> None:
    forever, for_a_while = made(clock), made(clock, expires=clock() + 10)
    for row in (forever, for_a_while):
        await store.add_api_key(row)
    assert await another.find_api_keys([for_a_while.id]) == [for_a_while]
    assert await another.api_keys() == by_id(forever, for_a_while)


async def test_whether_there_are_any_is_known_and_a_revoked_one_is_one(store: Store, clock: Clock) -> None:
    assert not await store.has_api_keys()
    row = made(clock)
    await store.add_api_key(row)
    await store.revoke_api_key(row.id)
    assert await store.has_api_keys()


async def test_a_key_is_revoked_once_for_everybody(store: Store, another: Store, clock: Clock) -> None:
    row, other = made(clock), made(clock)
    await store.add_api_key(row)
    await store.add_api_key(other)
    clock.now += 5
    revoked = replace(row, revoked=clock())
    assert await store.revoke_api_key(row.id) == revoked
    clock.now += 5
    assert await another.revoke_api_key(row.id) == revoked
    assert by_id(*await another.find_api_keys([row.id, other.id])) == by_id(revoked, other)


@pytest.mark.parametrize("name", ["", "key_\0", "key_ü", "' OR '1'='1", "x" * 5000])
async def test_what_was_never_made_is_not_found(store: Store, clock: Clock, name: str) -> None:
    await store.add_api_key(made(clock))
    assert await store.find_api_keys([name]) == []
    assert await store.revoke_api_key(name) is None


async def test_many_are_found_at_once(store: Store, clock: Clock) -> None:
    rows = [made(clock) for _ in range(150)]
    async with asyncio.timeout(60):
        await asyncio.gather(*(store.add_api_key(row) for row in rows))
    names = [row.id for row in rows[:140]] + [new_id("key")]
    assert by_id(*await store.find_api_keys(names)) == by_id(*rows[:140])
    assert await store.find_api_keys([]) == []


async def test_a_sweep_leaves_them_and_they_are_no_entries(store: Store, clock: Clock) -> None:
    row = made(clock, expires=clock() + 1)
    await store.add_api_key(row)
    clock.now += 1e9
    await store.sweep(Bounds(entries=0, bytes=0, conversations=0))
    assert await store.api_keys() == [row]
    assert await store.tenants() == {}


async def test_the_key_itself_is_nowhere_in_the_file(store: Store, place: str, clock: Clock) -> None:
    row, key = issue("acme", "", (), clock(), None)
    await store.add_api_key(row)
    assert key.encode() not in row.digest
    if store.name == "sqlite":
        written = b"".join(path.read_bytes() for path in Path(place).parent.iterdir())
        assert row.id.encode() in written
        assert key.rpartition("_")[2].encode() not in written

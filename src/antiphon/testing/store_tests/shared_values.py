"""Contract suite of stores: values that all servers of a store share."""

import asyncio

from antiphon.stores.base import RetentionBounds
from antiphon.stores.sql.store import Store
from antiphon.testing.rows.response_rows import Clock
from antiphon.testing.suite import shows


@shows("A6.2")
async def test_the_first_caller_sets_the_shared_value(store: Store, other_store: Store) -> None:
    assert await store.shared("key", b"\0first") == b"\0first"
    assert await other_store.shared("key", b"second") == b"\0first"
    assert await store.shared("key", b"third") == b"\0first"
    assert await store.shared("other", b"") == b""


@shows("A6.2")
async def test_concurrent_callers_get_the_same_value(store: Store, other_store: Store) -> None:
    calls = [(store if number % 2 else other_store).shared("key", b"%d" % number) for number in range(20)]
    async with asyncio.timeout(60):
        assert len({*await asyncio.gather(*calls)}) == 1


async def test_a_shared_value_belongs_to_no_tenant_and_never_expires(store: Store, clock: Clock) -> None:
    await store.shared("key", b"value")
    assert await store.tenants() == {}
    clock.now += 10_000_000
    await store.sweep(RetentionBounds(entries=0, bytes=0, conversations=0))
    assert await store.shared("key", b"new") == b"value"

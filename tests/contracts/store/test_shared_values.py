"""What all who share a store have in common."""

import asyncio

import pytest

from antiphon.stores.base import Bounds, Store
from tests.stores.rows import Clock

pytestmark = pytest.mark.anyio


@pytest.mark.shows("A6.2")
async def test_whoever_comes_first_says_what_it_is(store: Store, another: Store) -> None:
    assert await store.shared("key", b"\0first") == b"\0first"
    assert await another.shared("key", b"second") == b"\0first"
    assert await store.shared("key", b"third") == b"\0first"
    assert await store.shared("other", b"") == b""


@pytest.mark.shows("A6.2")
async def test_all_who_come_at_once_get_the_same(store: Store, another: Store) -> None:
    asked = [(store if number % 2 else another).shared("key", b"%d" % number) for number in range(20)]
    async with asyncio.timeout(60):
        assert len({*await asyncio.gather(*asked)}) == 1


async def test_it_is_nobodys_and_stays(store: Store, clock: Clock) -> None:
    await store.shared("key", b"value")
    assert await store.tenants() == {}
    clock.now += 10_000_000
    await store.sweep(Bounds(entries=0, bytes=0, conversations=0))
    assert await store.shared("key", b"new") == b"value"

"""What every store keeps of approvals: a call is made once, for its own tenant, and only as it was asked for."""

import asyncio

import pytest

from antiphon.ids import ItemIds, new_id
from antiphon.stores.base import Approval, Bounds, Store
from tests.stores.rows import TENANT, Clock

pytestmark = pytest.mark.anyio

DIGEST = bytes(range(64))


def asked_for() -> str:
    """The id of a request as an item has it."""
    return ItemIds(new_id("resp"))("mcpr")


async def ask(store: Store, clock: Clock, digest: bytes = DIGEST, seconds: float = 100) -> str:
    name = asked_for()
    await store.ask_approval(TENANT, name, digest, clock() + seconds)
    return name


@pytest.mark.shows("E.9")
async def test_what_was_asked_for_may_be_used_once(store: Store, another: Store, clock: Clock) -> None:
    name = await ask(store, clock)
    assert await another.approval(TENANT, name) == Approval(DIGEST, used=False)
    assert await another.use_approval(TENANT, name, DIGEST) == "ok"
    assert await store.approval(TENANT, name) == Approval(DIGEST, used=True)
    assert await store.use_approval(TENANT, name, DIGEST) == "used"


async def test_of_many_who_use_it_at_once_one_may(store: Store, another: Store, clock: Clock) -> None:
    name = await ask(store, clock)
    async with asyncio.timeout(60):
        said = await asyncio.gather(*([one.use_approval(TENANT, name, DIGEST) for one in (store, another) * 10]))
    assert sorted(said) == ["ok", *["used"] * 19]


async def test_another_call_than_the_one_that_was_asked_for_is_told_and_uses_nothing_up(
    store: Store, clock: Clock
) -> None:
    name = await ask(store, clock)
    assert await store.use_approval(TENANT, name, DIGEST[::-1]) == "changed"
    assert await store.use_approval(TENANT, name, b"") == "changed"
    assert await store.use_approval(TENANT, name, DIGEST) == "ok"
    assert await store.use_approval(TENANT, name, DIGEST[::-1]) == "used"


@pytest.mark.parametrize("name", ["mcpr_never", "", "mcpr_\0", "mcpr_ü", "x" * 5000])
async def test_what_was_never_asked_for_is_unknown(store: Store, name: str) -> None:
    assert await store.approval(TENANT, name) is None
    assert await store.use_approval(TENANT, name, DIGEST) == "unknown"


async def test_the_request_of_another_tenant_is_unknown(store: Store, clock: Clock) -> None:
    name = await ask(store, clock)
    assert await store.approval("another", name) is None
    assert await store.use_approval("another", name, DIGEST) == "unknown"
    await store.ask_approval("another", name, b"theirs", clock() + 100)
    assert await store.use_approval("another", name, b"theirs") == "ok"
    assert await store.use_approval(TENANT, name, DIGEST) == "ok"


async def test_asked_again_the_last_one_counts_unless_it_was_used(store: Store, clock: Clock) -> None:
    name = await ask(store, clock)
    await store.ask_approval(TENANT, name, b"other", clock() + 200)
    assert await store.use_approval(TENANT, name, DIGEST) == "changed"
    assert await store.use_approval(TENANT, name, b"other") == "ok"
    await store.ask_approval(TENANT, name, DIGEST, clock() + 300)
    assert await store.approval(TENANT, name) == Approval(b"other", used=True)


async def test_it_is_unknown_after_its_time_and_swept_then(store: Store, clock: Clock) -> None:
    early, late = await ask(store, clock, seconds=10), await ask(store, clock, seconds=20)
    clock.now += 10
    assert await store.approval(TENANT, early) is None
    assert await store.use_approval(TENANT, early, DIGEST) == "unknown"
    await store.sweep(Bounds())
    clock.now -= 10  # to see what is still there
    assert await store.approval(TENANT, early) is None
    assert await store.use_approval(TENANT, late, DIGEST) == "ok"


async def test_a_sweep_takes_no_more_at_a_time_than_it_is_told(store: Store, clock: Clock) -> None:
    names = [await ask(store, clock, seconds=number) for number in range(1, 6)]
    clock.now += 10
    await store.sweep(Bounds(), 3)
    clock.now -= 10
    left = [name for name in names if await store.approval(TENANT, name) is not None]
    assert len(left) == 2


async def test_it_is_no_entry_of_the_tenant(store: Store, clock: Clock) -> None:
    name = await ask(store, clock)
    assert await store.tenants() == {}
    await store.sweep(Bounds(entries=0, bytes=0, conversations=0))
    assert await store.use_approval(TENANT, name, DIGEST) == "ok"

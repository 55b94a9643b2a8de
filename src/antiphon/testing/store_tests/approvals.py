"""Contract suite of stores: approvals. A call is made once, for its own tenant, and only exactly as it was
requested.

Covers `stores/sql/keys.py`.
"""

import asyncio

import pytest

from antiphon.errors import InvalidValue
from antiphon.ids import ItemIds, new_id
from antiphon.stores.base import Approval, Page, RetentionBounds
from antiphon.stores.sql.store import Store
from antiphon.testing.rows.response_rows import TENANT, Clock
from antiphon.testing.suite import shows

DIGEST = bytes(range(64))


def new_request_id() -> str:
    """Return a new id of an approval request item."""
    return ItemIds(new_id("resp"))("mcpr")


async def request_approval(store: Store, clock: Clock, digest: bytes = DIGEST, seconds: float = 100) -> str:
    name = new_request_id()
    await store.ask_approval(TENANT, name, digest, clock() + seconds)
    return name


@shows("E.9")
async def test_an_approval_is_used_once(store: Store, other_store: Store, clock: Clock) -> None:
    name = await request_approval(store, clock)
    assert await other_store.approval(TENANT, name) == Approval(DIGEST, used=False)
    assert await other_store.use_approval(TENANT, name, DIGEST) == "ok"
    assert await store.approval(TENANT, name) == Approval(DIGEST, used=True)
    assert await store.use_approval(TENANT, name, DIGEST) == "used"


async def test_one_of_many_concurrent_uses_of_an_approval_succeeds(
    store: Store, other_store: Store, clock: Clock
) -> None:
    name = await request_approval(store, clock)
    async with asyncio.timeout(60):
        verdicts = await asyncio.gather(
            *([one.use_approval(TENANT, name, DIGEST) for one in (store, other_store) * 10])
        )
    assert sorted(verdicts) == ["ok", *["used"] * 19]


async def test_a_changed_call_is_rejected_and_does_not_use_the_approval(store: Store, clock: Clock) -> None:
    name = await request_approval(store, clock)
    assert await store.use_approval(TENANT, name, DIGEST[::-1]) == "changed"
    assert await store.use_approval(TENANT, name, b"") == "changed"
    assert await store.use_approval(TENANT, name, DIGEST) == "ok"
    assert await store.use_approval(TENANT, name, DIGEST[::-1]) == "used"


@pytest.mark.parametrize("name", ["mcpr_never", "", "mcpr_\0", "mcpr_ü", "x" * 5000])
async def test_an_approval_that_was_never_requested_is_unknown(store: Store, name: str) -> None:
    assert await store.approval(TENANT, name) is None
    assert await store.use_approval(TENANT, name, DIGEST) == "unknown"


async def test_the_approval_of_another_tenant_is_unknown(store: Store, clock: Clock) -> None:
    name = await request_approval(store, clock)
    assert await store.approval("another", name) is None
    assert await store.use_approval("another", name, DIGEST) == "unknown"
    await store.ask_approval("another", name, b"theirs", clock() + 100)
    assert await store.use_approval("another", name, b"theirs") == "ok"
    assert await store.use_approval(TENANT, name, DIGEST) == "ok"


async def test_a_repeated_request_replaces_the_approval_unless_it_was_used(store: Store, clock: Clock) -> None:
    name = await request_approval(store, clock)
    await store.ask_approval(TENANT, name, b"other", clock() + 200)
    assert await store.use_approval(TENANT, name, DIGEST) == "changed"
    assert await store.use_approval(TENANT, name, b"other") == "ok"
    await store.ask_approval(TENANT, name, DIGEST, clock() + 300)
    assert await store.approval(TENANT, name) == Approval(b"other", used=True)


async def test_an_expired_approval_is_unknown_and_swept(store: Store, clock: Clock) -> None:
    early, late = await request_approval(store, clock, seconds=10), await request_approval(store, clock, seconds=20)
    clock.now += 10
    assert await store.approval(TENANT, early) is None
    assert await store.use_approval(TENANT, early, DIGEST) == "unknown"
    await store.sweep(RetentionBounds())
    clock.now -= 10  # so that an unswept approval would be visible
    assert await store.approval(TENANT, early) is None
    assert await store.use_approval(TENANT, late, DIGEST) == "ok"


async def test_a_sweep_removes_at_most_its_limit(store: Store, clock: Clock) -> None:
    names = [await request_approval(store, clock, seconds=number) for number in range(1, 6)]
    clock.now += 10
    await store.sweep(RetentionBounds(), 3)
    clock.now -= 10
    remaining = [name for name in names if await store.approval(TENANT, name) is not None]
    assert len(remaining) == 2


async def test_an_approval_does_not_count_as_an_entry_of_the_tenant(store: Store, clock: Clock) -> None:
    name = await request_approval(store, clock)
    assert await store.tenants() == {}
    await store.sweep(RetentionBounds(entries=0, bytes=0, conversations=0))
    assert await store.use_approval(TENANT, name, DIGEST) == "ok"


async def test_pending_approvals_are_those_without_an_answer(store: Store, other_store: Store, clock: Clock) -> None:
    pending, used, denied, expired = [await request_approval(store, clock) for _ in range(4)]
    await store.ask_approval(TENANT, expired, DIGEST, clock() + 1)
    await store.ask_approval("another", new_request_id(), DIGEST, clock() + 100)
    clock.now += 1
    await store.use_approval(TENANT, used, DIGEST)
    await store.deny_approval(TENANT, denied)
    await store.deny_approval("another", pending)
    for descending in (True, False):
        assert await other_store.page_approvals(TENANT, None, 10, descending) == Page([pending], False)
    assert await store.use_approval(TENANT, denied, DIGEST) == "ok"  # in another branch


@pytest.mark.parametrize("limit", [1, 2, 10])
async def test_pages_of_pending_approvals_neither_skip_nor_repeat(store: Store, clock: Clock, limit: int) -> None:
    names = sorted([await request_approval(store, clock) for _ in range(4)], reverse=True)
    found: list[str] = []
    more = True
    while more:
        page = await store.page_approvals(TENANT, found[-1] if found else None, limit, True)
        assert page.rows or not found
        found, more = found + page.rows, page.has_more
    assert found == names
    with pytest.raises(InvalidValue) as refused:
        await store.page_approvals("another", names[0], limit, True)
    assert refused.value.param == "after"

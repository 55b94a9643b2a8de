"""Deletion where its amounts matter: the bytes of a hidden response, and rows beyond those that are read together."""

import pytest

from antiphon.stores.base import RetentionBounds
from antiphon.stores.sql import deletion
from antiphon.stores.sql.store import Store
from antiphon.testing.rows.response_rows import TENANT, Clock, make_item, store_conversation, store_response

pytestmark = pytest.mark.anyio


async def test_a_hidden_response_counts_with_the_bytes_that_it_retains(store: Store, clock: Clock) -> None:
    first = await store_response(store, clock)
    full_size = (await store.tenants())[TENANT][1]
    second = await store_response(store, clock, first)
    assert await store.delete(TENANT, first)
    retained = (await store.chain(TENANT, second))[-1]
    assert len(retained.request) + len(retained.response) < full_size
    size = (await store.tenants())[TENANT][1]
    assert size == full_size + len(retained.request) + len(retained.response)
    assert await store.delete(TENANT, second)
    assert await store.tenants() == {}


@pytest.mark.parametrize("kind", ["responses", "conversations"])
async def test_one_sweep_removes_more_rows_of_one_kind_than_are_read_together(
    store: Store, clock: Clock, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "_STRIDE", 2)
    for _ in range(5):
        if kind == "responses":
            await store_response(store, clock)
        else:
            await store_conversation(store, clock, make_item())
        clock.now += 1
    assert await store.sweep(RetentionBounds(bytes=0), 3) == 3
    assert await store.sweep(RetentionBounds(bytes=0), 9) >= 2

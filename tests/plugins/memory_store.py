"""The clock and the store in memory that tests of single parts share. Packages with others define fixtures of these
names.
"""

from collections.abc import AsyncIterator

import pytest

from antiphon.stores.registry import make_store
from antiphon.stores.sql.store import Store
from antiphon.testing.rows.response_rows import TTL, Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(clock: Clock) -> AsyncIterator[Store]:
    store = make_store("memory", TTL, clock)
    await store.open()
    yield store
    await store.close()

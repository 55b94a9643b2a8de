"""Every store of the registry, empty; and another one at the same place, where that can be."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from antiphon.stores import postgres_pool
from antiphon.stores.base import Store
from antiphon.stores.registry import STORES, make_store
from tests.stores.rows import TTL, Clock
from tests.support.services import Postgres

NEEDS = {"postgresql": [pytest.mark.needs("postgresql")]}
TABLES = "responses, owners, live, keys, conversations, items, totals, shared, approvals, outputs, api_keys"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long it waits for its server is not for a busy machine to find out."""
    monkeypatch.setattr(postgres_pool, "DEADLINE", 60.0)


@pytest.fixture(params=[pytest.param(name, marks=NEEDS.get(name, [])) for name in STORES])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "postgresql":
        yield from emptied(request.getfixturevalue("postgres"), request.getfixturevalue("database"))
    else:
        yield "memory" if request.param == "memory" else str(tmp_path / "new" / "store.db")


@pytest.fixture(scope="session")
def database(postgres: Postgres) -> Iterator[str]:
    with postgres.database() as url:
        yield url


def emptied(postgres: Postgres, url: str) -> Iterator[str]:
    """One database for all tests: to make one takes longer than most of them."""
    yield url
    postgres.sql(f"TRUNCATE {TABLES}", urlsplit(url).path.lstrip("/"))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(place: str, clock: Clock) -> AsyncIterator[Store]:
    store = make_store(place, TTL, clock)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def another(place: str, store: Store, clock: Clock) -> AsyncIterator[Store]:
    """As from another process; a store that only one can have is itself."""
    if place == "memory":
        yield store
        return
    another = make_store(place, TTL, clock)
    await another.open()
    yield another
    await another.close()

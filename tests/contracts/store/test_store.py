"""Runs the contract suite of stores against every registered store; `testing/store_tests/` has the tests."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from antiphon.stores import postgres_pool
from antiphon.stores.registry import STORES
from antiphon.testing.contracts import StoreContract
from tests.support.services import Postgres

NEEDS = {"postgresql": [pytest.mark.needs("postgresql")]}
TABLES = (
    "responses, owners, live, keys, conversations, items, totals, shared, approvals, outputs, api_keys, files, "
    "uploads, upload_parts, contents, vector_stores, vector_files, vector_batches, vector_chunks, vector_embeddings, "
    "vector_garbage, containers, container_files, skills, skill_versions, images, usage, pieces"
)


@pytest.fixture(autouse=True)
def long_postgres_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengthen the deadline of PostgreSQL operations, so that a busy machine fails no test."""
    monkeypatch.setattr(postgres_pool, "DEADLINE", 60.0)


@pytest.fixture(scope="session")
def database(postgres: Postgres) -> Iterator[str]:
    with postgres.temporary_database() as url:
        yield url


def truncate_after_use(postgres: Postgres, url: str) -> Iterator[str]:
    """Yield one database to all tests and empty it after each: creating a database takes longer than most tests."""
    yield url
    postgres.run_sql(f"TRUNCATE {TABLES} CASCADE", urlsplit(url).path.lstrip("/"))


class TestStore(StoreContract):
    @pytest.fixture(params=[pytest.param(name, marks=NEEDS.get(name, [])) for name in STORES])
    def store_location(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
        if request.param == "postgresql":
            yield from truncate_after_use(request.getfixturevalue("postgres"), request.getfixturevalue("database"))
        else:
            yield "memory" if request.param == "memory" else str(tmp_path / "new" / "store.db")

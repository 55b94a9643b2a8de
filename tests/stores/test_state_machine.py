"""Random operations on each real store, compared with `ReferenceStore`."""

from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import apsw
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from antiphon.stores.registry import make_store
from antiphon.stores.sql import operation
from antiphon.testing.rows.response_rows import TTL
from tests.contracts.store.test_store import TABLES
from tests.stores.state_machine import LARGE_BYTES, StoreMachine
from tests.support.services import Postgres

LONG = settings(max_examples=15, stateful_step_count=40)
SHORT = settings(max_examples=4, stateful_step_count=25)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Store values in pieces that are otherwise in their rows."""
    monkeypatch.setattr(operation, "LARGE_BYTES", LARGE_BYTES)


def run_machine(machine: Callable[[], StoreMachine], config: settings) -> None:
    run_state_machine_as_test(machine, settings=config)  # type: ignore[arg-type]  # the argument is only called


def test_sqlite_behaves_as_the_reference_store(tmp_path: Path) -> None:
    numbers = count()

    def machine() -> StoreMachine:
        path = str(tmp_path / f"{next(numbers)}.db")

        def rows(text: str) -> list[tuple[Any, ...]]:
            with closing(apsw.Connection(path)) as connection:
                return connection.execute(text).fetchall()

        return StoreMachine(partial(make_store, path, TTL), rows)

    run_machine(machine, LONG)


def test_postgresql_behaves_as_the_reference_store(postgres: Postgres, postgres_url: str) -> None:
    name = urlsplit(postgres_url).path.lstrip("/")

    def rows(text: str) -> list[Any]:
        return postgres.run_sql(text, name).splitlines()

    class TruncatingMachine(StoreMachine):
        def teardown(self) -> None:
            super().teardown()
            postgres.run_sql(f"TRUNCATE {TABLES} CASCADE", name)

    run_machine(lambda: TruncatingMachine(partial(make_store, postgres_url, TTL), rows), SHORT)

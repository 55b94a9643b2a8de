"""Random work on a real store, held to the model: the same for each of them, so they are alike."""

from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import apsw
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from antiphon.stores.registry import make_store
from tests.contracts.store.conftest import TABLES
from tests.stores.rows import TTL
from tests.stores.state_machine import Machine
from tests.support.services import Postgres

LONG = settings(max_examples=15, stateful_step_count=40)
SHORT = settings(max_examples=4, stateful_step_count=25)


def run(machine: Callable[[], Machine], how: settings) -> None:
    run_state_machine_as_test(machine, settings=how)  # type: ignore[arg-type]  # all it wants is to call it


def test_a_file_does_as_the_model(tmp_path: Path) -> None:
    numbers = count()

    def machine() -> Machine:
        path = str(tmp_path / f"{next(numbers)}.db")

        def rows(text: str) -> list[tuple[Any, ...]]:
            with closing(apsw.Connection(path)) as connection:
                return connection.execute(text).fetchall()

        return Machine(partial(make_store, path, TTL), rows)

    run(machine, LONG)


def test_postgresql_does_as_the_model(postgres: Postgres, postgres_url: str) -> None:
    name = urlsplit(postgres_url).path.lstrip("/")

    def rows(text: str) -> list[Any]:
        return postgres.sql(text, name).splitlines()

    class Emptied(Machine):
        def teardown(self) -> None:
            super().teardown()
            postgres.sql(f"TRUNCATE {TABLES}", name)

    run(lambda: Emptied(partial(make_store, postgres_url, TTL), rows), SHORT)

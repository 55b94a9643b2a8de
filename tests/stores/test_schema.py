"""Both dialects have the same migrations: a table added to one is added to the other under the same number."""

import re
from typing import Any

from antiphon.stores.schema import Migration, load_migrations


def _find_tables(migration: Migration) -> dict[str, list[str]]:
    found = re.findall(r"CREATE TABLE (\w+) \((.*?)\n\)", migration.text, re.DOTALL)
    return {name: re.findall(r"^    ([a-z]\w*)", columns, re.MULTILINE) for name, columns in found}


def _find_indexes(migration: Migration) -> list[Any]:
    """Return all primary keys, and each index up to its first column: further columns may differ by dialect."""
    return re.findall(r"CREATE (?:UNIQUE )?INDEX \w+ ON \w+ \(\w+|PRIMARY KEY.*", migration.text)


def _find_columns(migration: Migration) -> list[Any]:
    return re.findall(r"ALTER TABLE (\w+) ADD COLUMN (\w+)", migration.text)


def test_both_dialects_have_the_same_migrations_tables_and_indexes() -> None:
    pairs = list(zip(load_migrations("sqlite"), load_migrations("postgres"), strict=True))
    assert pairs
    for sqlite, postgres in pairs:
        assert (sqlite.number, sqlite.name) == (postgres.number, postgres.name)
        assert _find_tables(sqlite) == _find_tables(postgres)
        assert _find_indexes(sqlite) == _find_indexes(postgres)
        assert {*_find_columns(sqlite)} <= {*_find_columns(postgres)}  # which has a generated one
        assert _find_tables(sqlite) or _find_indexes(sqlite) or _find_columns(sqlite), sqlite.name

"""Both dialects have the same migrations: a table added to one is added to the other under the same number."""

import re
from typing import Any

from antiphon.stores.schema import Migration, load_migrations

ORDER_OF_COLUMNS = "0014_response_columns"
SQLITE_ONLY = {ORDER_OF_COLUMNS, "0015_large_requests"}  # PostgreSQL stores large values apart from their row


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
        if sqlite.name in SQLITE_ONLY:
            continue
        assert _find_tables(sqlite) == _find_tables(postgres)
        assert _find_indexes(sqlite) == _find_indexes(postgres)
        assert {*_find_columns(sqlite)} <= {*_find_columns(postgres)}  # which has a generated one
        assert _find_tables(sqlite) or _find_indexes(sqlite) or _find_columns(sqlite), sqlite.name


def test_the_new_order_of_columns_has_all_columns_with_the_large_ones_at_the_end() -> None:
    before: list[str] = []
    for migration in load_migrations("sqlite"):
        if migration.name == ORDER_OF_COLUMNS:
            [(_, columns)] = _find_tables(migration).items()
            assert sorted(columns) == sorted(before)
            assert columns[-3:] == ["request", "response", "tape"]
        before += _find_tables(migration).get("responses", [])
        before += [column for table, column in _find_columns(migration) if table == "responses"]

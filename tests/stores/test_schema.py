"""The two dialects have the same tables: what is added to one is added to the other, under the same number."""

import re
from typing import Any

from antiphon.stores.schema import Migration, migrations


def _tables(migration: Migration) -> dict[str, list[str]]:
    found = re.findall(r"CREATE TABLE (\w+) \((.*?)\n\)", migration.text, re.DOTALL)
    return {name: re.findall(r"^    ([a-z]\w*)", columns, re.MULTILINE) for name, columns in found}


def _indexes(migration: Migration) -> list[Any]:
    """What they hold beyond their first column is each database's own affair; a primary key is one too."""
    return re.findall(r"CREATE (?:UNIQUE )?INDEX \w+ ON \w+ \(\w+|PRIMARY KEY.*", migration.text)


def test_both_dialects_have_the_same_migrations_tables_and_indexes() -> None:
    pairs = list(zip(migrations("sqlite"), migrations("postgres"), strict=True))
    assert pairs
    for here, there in pairs:
        assert (here.number, here.name) == (there.number, there.name)
        assert _tables(here) == _tables(there)
        assert _indexes(here) == _indexes(there)
        assert _tables(here) or _indexes(here), here.name

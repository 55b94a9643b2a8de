"""The tables of a store, as numbered files of plain SQL: each is carried out once, in order, and never changed again.

A store that is further than the newest file belongs to a newer Antiphon: we do not touch it.
"""

from importlib.resources import files
from typing import Literal

from msgspec import Struct

from antiphon.errors import StartupError
from antiphon.stores.base import Schema
from antiphon.stores.sql.operation import Operation, sql

Dialect = Literal["sqlite", "postgres"]

# Which of them a store has seen; the one table that is there before all others.
LEDGER = """
CREATE TABLE IF NOT EXISTS migrations (number INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL)
"""


class Migration(Struct, frozen=True):
    number: int
    name: str  # of its file, without the suffix
    text: str


def migrations(dialect: Dialect) -> list[Migration]:
    folder = files("antiphon.stores") / "migrations" / dialect
    found = [file for file in folder.iterdir() if file.name.endswith(".sql")]
    return sorted(
        (Migration(int(file.name[:4]), file.name.removesuffix(".sql"), file.read_text("utf-8")) for file in found),
        key=lambda migration: migration.number,
    )


def current() -> Operation[int]:
    """The number of the last one that was carried out; the ledger must be there."""
    rows = yield sql("SELECT COALESCE(MAX(number), 0) FROM migrations")
    return int(rows[0][0])


def done(migration: Migration) -> Operation[None]:
    yield sql("INSERT INTO migrations (number, name) VALUES ($1, $2)", migration.number, migration.name)


def schema(dialect: Dialect, number: int) -> Schema:
    known = migrations(dialect)
    return Schema(number, known[-1].number, [migration.name for migration in known if migration.number > number])


def pending(dialect: Dialect, number: int) -> list[Migration]:
    """What is still to be done. Raises StartupError for a newer schema than ours."""
    known = migrations(dialect)
    if number > known[-1].number:
        raise StartupError(
            f"The store was made by a newer Antiphon (schema {number}, this one knows {known[-1].number}): "
            "use that version, or another --store."
        )
    return [migration for migration in known if migration.number > number]

"""The schema of a store as numbered SQL files. Each is applied once, in order, and never changed afterwards.

A store whose version is above the newest file belongs to a newer Antiphon and is not touched.
"""

from importlib.resources import files
from typing import Literal

from msgspec import Struct

from antiphon.errors import StartupError
from antiphon.stores.base import SchemaStatus
from antiphon.stores.sql.operation import Operation, sql

Dialect = Literal["sqlite", "postgres"]

# Records the applied migrations; this table exists before all others.
MIGRATIONS_TABLE = """
CREATE TABLE IF NOT EXISTS migrations (number INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL)
"""


class Migration(Struct, frozen=True):
    number: int
    name: str  # file name without suffix
    text: str


def load_migrations(dialect: Dialect) -> list[Migration]:
    folder = files("antiphon.stores") / "migrations" / dialect
    found = [file for file in folder.iterdir() if file.name.endswith(".sql")]
    return sorted(
        (Migration(int(file.name[:4]), file.name.removesuffix(".sql"), file.read_text("utf-8")) for file in found),
        key=lambda migration: migration.number,
    )


def read_version() -> Operation[int]:
    """Return the number of the last applied migration. The migrations table must exist."""
    rows = yield sql("SELECT COALESCE(MAX(number), 0) FROM migrations")
    return int(rows[0][0])


def record_migration(migration: Migration) -> Operation[None]:
    yield sql("INSERT INTO migrations (number, name) VALUES ($1, $2)", migration.number, migration.name)


def describe(dialect: Dialect, number: int) -> SchemaStatus:
    """Describe a store whose last applied migration is `number`."""
    available = load_migrations(dialect)
    return SchemaStatus(
        number, available[-1].number, [migration.name for migration in available if migration.number > number]
    )


def pending_migrations(dialect: Dialect, number: int) -> list[Migration]:
    """Return the migrations still to apply. Raises StartupError if the schema is newer than this server supports."""
    available = load_migrations(dialect)
    if number > available[-1].number:
        raise StartupError(
            f"The store was made by a newer Antiphon (schema {number}, this version supports {available[-1].number}): "
            "use that version, or another --store."
        )
    return [migration for migration in available if migration.number > number]

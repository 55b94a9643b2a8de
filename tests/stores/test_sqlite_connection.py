"""Large rows in SQLite, which are inserted as zeroblobs and then filled.

A table without rowids cannot be filled: it would keep the zeros, so it must be rejected.
"""

import apsw
import pytest

from antiphon.stores import sqlite_connection
from antiphon.stores.sql.operation import Statement

ROW = Statement(
    "INSERT INTO kept (id, body) VALUES (?1, ?2) ON CONFLICT DO NOTHING RETURNING 1", ("a", b"x" * 9), large=True
)


def create_table(kind: str = "") -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    connection.execute(f"CREATE TABLE kept (id TEXT PRIMARY KEY, body BLOB) {kind}")
    return connection


def insert_row(connection: apsw.Connection) -> int:
    """Return the number of inserted rows."""
    return len(
        sqlite_connection.insert_large(connection, ROW, lambda values: connection.execute(ROW.text, values).fetchall())
    )


def test_a_large_row_is_written_once_and_an_existing_row_is_unchanged() -> None:
    connection = create_table()
    assert [insert_row(connection), insert_row(connection)] == [1, 0]
    assert connection.execute("SELECT body FROM kept").fetchall() == [(b"x" * 9,)]


def test_a_table_without_rowids_is_rejected() -> None:
    with pytest.raises(AssertionError, match="rowids"):
        insert_row(create_table("WITHOUT ROWID"))

"""Large rows in SQLite, filled once they are there: where that cannot be, nothing is taken for written."""

import apsw
import pytest

from antiphon.stores import sqlite_file
from antiphon.stores.sql.operation import Statement

ROW = Statement(
    "INSERT INTO kept (id, body) VALUES (?1, ?2) ON CONFLICT DO NOTHING RETURNING 1", ("a", b"x" * 9), large=True
)


def kept(kind: str = "") -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    connection.execute(f"CREATE TABLE kept (id TEXT PRIMARY KEY, body BLOB) {kind}")
    return connection


def inserted(connection: apsw.Connection) -> int:
    """How many rows came."""
    return len(sqlite_file.insert(connection, ROW, lambda values: connection.execute(ROW.text, values).fetchall()))


def test_a_row_is_filled_once_and_left_as_it_is_if_it_was_there() -> None:
    connection = kept()
    assert [inserted(connection), inserted(connection)] == [1, 0]
    assert connection.execute("SELECT body FROM kept").fetchall() == [(b"x" * 9,)]


def test_a_table_without_rowids_would_keep_zeros_and_is_not_taken() -> None:
    with pytest.raises(AssertionError, match="rowids"):
        inserted(kept("WITHOUT ROWID"))

"""A connection to SQLite: its large rows, which are inserted as zeroblobs and then filled, and its write-ahead log.

A table without rowids cannot be filled: it would keep the zeros, so it must be rejected.
"""

from pathlib import Path

import apsw
import pytest

from antiphon.stores.sql.operation import Operation, Statement
from antiphon.stores.sqlite_connection import SqliteConnection

ROW = Statement(
    "INSERT INTO kept (id, body) VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING 1", ("a", b"x" * 9), large=True
)


def create_table(path: Path, kind: str = "") -> SqliteConnection:
    apsw.Connection(str(path)).execute(f"CREATE TABLE kept (id TEXT PRIMARY KEY, body BLOB) {kind}")
    return SqliteConnection(str(path))


def insert_row() -> Operation[int]:
    """Return the number of inserted rows."""
    return len((yield ROW))


def test_a_large_row_is_written_once_and_an_existing_row_is_unchanged(tmp_path: Path) -> None:
    connection = create_table(tmp_path / "kept.db")
    assert [connection.drive(insert_row()), connection.drive(insert_row())] == [1, 0]
    assert connection.run("SELECT body FROM kept") == [(b"x" * 9,)]


def test_a_table_without_rowids_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="rowids"):
        create_table(tmp_path / "kept.db", "WITHOUT ROWID").drive(insert_row())


def test_the_log_is_truncated_when_no_other_connection_reads_it(tmp_path: Path) -> None:
    connection, other = create_table(tmp_path / "kept.db"), apsw.Connection(str(tmp_path / "kept.db"))
    connection.run("PRAGMA journal_mode = WAL")
    other.execute("BEGIN; SELECT * FROM kept")
    connection.drive(insert_row())
    log = tmp_path / "kept.db-wal"
    assert (connection.truncate_log(), log.stat().st_size > 0) == (False, True)
    other.execute("COMMIT")
    assert (connection.truncate_log(), log.stat().st_size) == (True, 0)


def test_a_commit_after_write_page_reaches_the_disk(tmp_path: Path) -> None:
    connection, log = create_table(tmp_path / "kept.db"), tmp_path / "kept.db-wal"
    connection.run("PRAGMA journal_mode = WAL")
    for writes in (False, True):
        connection.run("BEGIN IMMEDIATE")
        if writes:
            connection.write_page()
        connection.run("COMMIT")
        assert (log.stat().st_size > 0) is writes

"""A connection to SQLite and its write-ahead log."""

from pathlib import Path

import apsw

from antiphon.stores.sqlite_connection import SqliteConnection


def create_table(path: Path) -> SqliteConnection:
    apsw.Connection(str(path)).execute("CREATE TABLE kept (id TEXT PRIMARY KEY)")
    return SqliteConnection(str(path))


def test_the_log_is_truncated_when_no_other_connection_reads_it(tmp_path: Path) -> None:
    connection, other = create_table(tmp_path / "kept.db"), apsw.Connection(str(tmp_path / "kept.db"))
    connection.run("PRAGMA journal_mode = WAL")
    other.execute("BEGIN; SELECT * FROM kept")
    connection.run("INSERT INTO kept VALUES ('a')")
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

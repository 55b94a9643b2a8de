"""A connection to a SQLite database, which runs operations, and the kinds of its errors.

Large values are written into an existing row by incremental blob I/O. Bound to a statement, they would be copied twice
more, into the statement and into the row, and the statement would retain its copy until its next execution. A zeroblob
in their place takes no memory, as long as only zeroblobs follow it in the row.

The request of a large response has a row of its own (see `sql/responses.py`).
"""

import re
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar

import apsw

from antiphon.stores.sql.operation import Operation, Rows, Statement

T = TypeVar("T")

BUSY_MS = 5000  # how long a locked database is waited for
# Errors of a single operation: the others in its commit are not affected.
OPERATION_ERRORS = (apsw.ConstraintError, apsw.SQLError, apsw.TooBigError, apsw.MismatchError, apsw.BindingsError)
# Errors a connection may never recover from: the disk was gone, and the open files are not the current ones.
CONNECTION_ERRORS = (
    *(apsw.IOError, apsw.CantOpenError, apsw.ReadOnlyError, apsw.ProtocolError),
    *(apsw.ConnectionClosedError, apsw.CursorClosedError),  # an earlier attempt to reopen failed
)
_CACHED_STATEMENTS = 512  # size of apsw's cache of prepared statements
_CACHED_TEXTS = 4096
_INSERT_REQUEST = "INSERT INTO large_requests (tenant, id, request) VALUES ($1, $2, $3)"
_INSERT_TARGET = re.compile(r"INTO (\w+) \(([^)]*)\) VALUES")


class _StatementTexts(dict[str, str]):
    """Statements in SQLite's syntax, converted once."""

    def __missing__(self, text: str) -> str:
        if len(self) >= _CACHED_TEXTS:  # each vector store has statements of its own
            self.clear()
        sqlite_text = re.sub(r"\$(\d+)", r"?\1", text).replace("{lock}", "").replace("{skip}", "").strip()
        self[text] = sqlite_text
        return sqlite_text


class SqliteConnection:
    """A connection that runs operations; used by one thread at a time."""

    def __init__(self, path: str) -> None:
        self._connection = apsw.Connection(
            path, flags=apsw.SQLITE_OPEN_READWRITE, statementcachesize=_CACHED_STATEMENTS
        )
        self._connection.set_busy_timeout(BUSY_MS)
        self._execute = self._connection.cursor().execute
        self.total_changes = self._connection.total_changes  # returns the rows written since it was opened
        self._texts = _StatementTexts()

    def run(self, text: str) -> Rows:
        return self._execute(text).fetchall()

    def drive(self, operation: Operation[T]) -> T:
        execute, texts = self._execute, self._texts
        try:
            statement = next(operation)
            while True:
                text, values = texts[statement.text], statement.values
                rows = self._insert_large(statement) if statement.large else execute(text, values).fetchall()
                statement = operation.send(rows)
        except StopIteration as stop:
            value: T = stop.value
            return value

    def _insert_large(self, statement: Statement) -> Rows:
        """Insert a row with zeroblobs, then write the large values."""
        connection, text, values = self._connection, self._texts[statement.text], statement.values
        table, columns = _parse_target(statement.text)
        request = b""
        if table == "responses":
            at = columns.index("request")
            request, values = values[at], (*values[:at], b"", *values[at + 1 :])
        rows: list[int] = []
        connection.set_update_hook(lambda kind, database, name, row: rows.append(row))
        try:
            zeroblobs = [apsw.zeroblob(len(value)) if type(value) is bytes else value for value in values]
            result = self._execute(text, tuple(zeroblobs)).fetchall()
        finally:
            connection.set_update_hook(None)
        assert rows or not connection.changes(), f"{table} reported no row: it must be a table with rowids"
        for row in rows:  # empty if the row already existed
            for column, value in zip(columns, values):  # noqa: B905 - the remaining columns are not bound
                if type(value) is bytes and value:
                    with connection.blob_open("main", table, column, row, True) as blob:
                        blob.write(value)
        if rows and request:
            self._insert_large(Statement(_INSERT_REQUEST, (*values[:2], request)))
        return result

    def set_pragmas(self, settings: dict[str, Any]) -> None:
        for name, value in settings.items():
            self._connection.pragma(name, value)

    def write_page(self) -> None:
        """Make the next commit write a page: user_version is unused and keeps its value."""
        self.run("PRAGMA user_version = 0")

    def roll_back(self) -> None:
        """Roll back an open transaction. If the disk fails here too, the next BEGIN reports it."""
        with suppress(apsw.Error):
            if self._connection.in_transaction:
                self.run("ROLLBACK")

    def truncate_log(self) -> bool:
        """Checkpoint the write-ahead log and truncate it. Returns False if another connection is using it."""
        self._connection.set_busy_timeout(0)
        try:
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.BusyError:
            return False
        finally:
            self._connection.set_busy_timeout(BUSY_MS)
        return True

    def close(self) -> None:
        self._connection.close()


@cache
def _parse_target(text: str) -> tuple[str, list[str]]:
    """Return the table and its columns in the order of the values."""
    found = _INSERT_TARGET.search(text)
    assert found is not None, text
    return found[1], found[2].split(", ")


def describe_error(error: apsw.Error) -> str:
    """Return the sentence for clients of a failed store."""
    match error:
        case apsw.FullError():
            return "The store's disk is full."
        case apsw.BusyError():
            return "The store is locked by another process."
        case _:
            return "The store cannot be reached."

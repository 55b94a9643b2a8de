"""A connection to a SQLite database, which runs operations, and the kinds of its errors."""

import re
from contextlib import suppress
from typing import Any, TypeVar

import apsw

from antiphon.stores.sql.operation import Operation, Rows

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
                statement = operation.send(execute(texts[statement.text], statement.values).fetchall())
        except StopIteration as stop:
            value: T = stop.value
            return value

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


def describe_error(error: apsw.Error) -> str:
    """Return the sentence for clients of a failed store."""
    match error:
        case apsw.FullError():
            return "The store's disk is full."
        case apsw.BusyError():
            return "The store is locked by another process."
        case _:
            return "The store cannot be reached."

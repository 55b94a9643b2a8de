"""A SQLite file: how it is opened and set, brought up to date, and how an operation runs on it.

What a commit acknowledged is on the disk (synchronous=FULL). Deleted content is overwritten (secure_delete).

Large values are written into a row of a SQLite file once it is there.

Bound to a statement they would be copied twice more, into the statement and into the row; and the statement would hold
on to its copy until it is run again. Zeros in their place take no memory, as long as nothing but zeros follows them.
"""

import errno
import os
import re
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from functools import cache
from pathlib import Path
from time import monotonic, sleep
from typing import Any, TypeVar

import apsw

from antiphon.errors import StartupError
from antiphon.stores import schema
from antiphon.stores.base import Schema
from antiphon.stores.sql.operation import Operation, Rows, Statement

_INTO = re.compile(r"INTO (\w+) \(([^)]*)\) VALUES")


def insert(connection: apsw.Connection, statement: Statement, run: Callable[[tuple[Any, ...]], Rows]) -> Rows:
    """`run` carries it out with these values in place of its own."""
    table, columns = _target(statement.text)
    rows: list[int] = []
    connection.set_update_hook(lambda kind, database, name, row: rows.append(row))
    try:
        told = run(tuple([apsw.zeroblob(len(one)) if type(one) is bytes else one for one in statement.values]))
    finally:
        connection.set_update_hook(None)
    assert rows or not connection.changes(), f"{table} tells of no row: it has to be a table with rowids"
    for row in rows:  # none, if it was there already
        for column, value in zip(columns, statement.values):  # noqa: B905 - what follows are no values
            if type(value) is bytes and value:
                with connection.blob_open("main", table, column, row, True) as blob:
                    blob.write(value)
    return told


@cache
def _target(text: str) -> tuple[str, list[str]]:
    """The table, and its columns in the order of the values."""
    found = _INTO.search(text)
    assert found is not None, text
    return found[1], found[2].split(", ")


T = TypeVar("T")
MEMORY = ":memory:"

BUSY_MS = 5000
_STATEMENTS = 512  # uses for which apsw remembers a prepared statement: it forgets what was not among the last so many
_AGAIN = 0.05  # seconds
_PAGES = 2000  # of the log of changes, after which they are brought into the file: 8 MB
_SETTINGS: dict[str, Any] = {
    "journal_mode": "WAL",
    "synchronous": "FULL",
    "secure_delete": "ON",
    "cache_size": -8000,  # KiB; more does not pay, since the system has the file in memory too
    "wal_autocheckpoint": _PAGES,
    "journal_size_limit": _PAGES * 4096,
    "temp_store": "MEMORY",
}


class _Texts(dict[str, str]):
    """Statements as SQLite wants them, made once."""

    def __missing__(self, text: str) -> str:
        own = re.sub(r"\$(\d+)", r"?\1", text).replace("{lock}", "").replace("{skip}", "").strip()
        self[text] = own
        return own


class Connection:
    """Used by one thread at a time."""

    def __init__(self, path: str) -> None:
        self._connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE, statementcachesize=_STATEMENTS)
        self._connection.set_busy_timeout(BUSY_MS)
        self._execute = self._connection.cursor().execute
        self.changes = self._connection.total_changes  # rows that were written, since it was opened
        self._texts = _Texts()

    def run(self, text: str) -> Rows:
        return self._execute(text).fetchall()

    def drive(self, operation: Operation[T]) -> T:
        execute, texts = self._execute, self._texts
        try:
            statement = next(operation)
            while True:
                text, values = texts[statement.text], statement.values
                rows = self._insert(statement) if statement.large else execute(text, values).fetchall()
                statement = operation.send(rows)
        except StopIteration as stop:
            value: T = stop.value
            return value

    def _insert(self, statement: Statement) -> Rows:
        execute, text = self._execute, self._texts[statement.text]
        return insert(self._connection, statement, lambda values: execute(text, values).fetchall())

    def set(self, settings: dict[str, Any]) -> None:
        for name, value in settings.items():
            self._connection.pragma(name, value)

    def touch(self) -> None:
        """Have a page written by the next commit, with what stands in it: this number is nobody's."""
        self.run("PRAGMA user_version = 0")

    def roll_back(self) -> None:
        """Whatever was not committed. Where the disk fails at this too, the next one that begins is told."""
        with suppress(apsw.Error):
            if self._connection.in_transaction:
                self.run("ROLLBACK")

    def clear_log(self) -> bool:
        """Bring the log of changes into the file and empty it. False: somebody else is using it just now."""
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


def connect(path: str) -> tuple[Connection, Connection | None]:
    """One to write and one to read, to a file that is made if need be; memory has but one. Raises StartupError."""
    try:
        if path == MEMORY:
            return _migrated(_set(path)), None
        _make(Path(path))
        pair = _migrated(_set(path)), _set(path, query_only=True)
        _sync(Path(path).parent)
        return pair
    except (OSError, apsw.Error) as error:
        raise _explained(path, error) from None


def reconnect(path: str) -> tuple[Connection, Connection]:
    """The same again, to a file that is there. Raises apsw.Error."""
    with ExitStack() as failed:
        writer = _set(path)
        failed.callback(writer.close)
        reader = _set(path, query_only=True)
        failed.pop_all()
    return writer, reader


def look(path: str) -> Schema:
    """At the schema of a file, which may not be there. Raises StartupError."""
    if path == MEMORY or not os.path.exists(path):
        return schema.schema("sqlite", 0)
    try:
        with closing(Connection(path)) as connection:
            known = connection.run("SELECT 1 FROM sqlite_master WHERE name = 'migrations'")
            return schema.schema("sqlite", connection.drive(schema.current()) if known else 0)
    except apsw.Error as error:
        raise _explained(path, error) from None


def _set(path: str, **settings: Any) -> Connection:
    """Who makes a file the first time locks others out without letting them wait: they come again."""
    over = monotonic() + BUSY_MS / 1000
    while True:
        with ExitStack() as failed, suppress(apsw.BusyError):
            connection = Connection(path)
            failed.callback(connection.close)
            connection.set({**_SETTINGS, **settings})
            failed.pop_all()
            return connection
        if monotonic() > over:
            raise apsw.BusyError("The file stays locked.")
        sleep(_AGAIN)


def _migrated(connection: Connection) -> Connection:
    """By one process at a time; another one then finds nothing left to do. Closed, unless that goes well."""
    with ExitStack() as failed:
        failed.callback(connection.close)
        failed.callback(connection.roll_back)
        connection.run("BEGIN IMMEDIATE")
        connection.run(schema.LEDGER)
        for migration in schema.pending("sqlite", connection.drive(schema.current())):
            connection.run(migration.text)
            connection.drive(schema.done(migration))
        connection.run("COMMIT")
        failed.pop_all()
    return connection


def _make(path: Path) -> None:
    """For its owner alone, who may have given it to others since.

    A file that is there is left alone: closing it would give up every lock that this process has on it (fcntl(2)), and
    the next process to leave would think it was the last one, and take the log of changes with it.
    """
    missing = [folder for folder in path.parents if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
    if not path.exists():
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    elif path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))


def _sync(folder: Path) -> None:
    """The log of changes is a new file: its name is to survive a power cut like what stands in it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _explained(path: str, error: Exception) -> StartupError:
    match error:
        case NotADirectoryError() | FileExistsError():
            said = f"The store {path} cannot be: a file is where its folder should be."
        case IsADirectoryError():
            said = f"The store {path} is a folder; --store takes a file."
        case PermissionError() | apsw.ReadOnlyError() | apsw.PermissionsError():
            said = f"The store {path} may not be written by this user."
        case apsw.NotADBError() | apsw.CorruptError():
            said = f"The file {path} is no store of ours: it is not a SQLite database, or is damaged."
        case apsw.BusyError():
            said = f"The store {path} is taken by another process."
        case OSError():
            said = f"The store {path} cannot be opened: {error.strerror}."
        case _:
            said = f"The store {path} cannot be opened: {error}."
    return StartupError(said)

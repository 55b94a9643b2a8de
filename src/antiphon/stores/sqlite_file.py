"""A SQLite file: opening it, its settings, its migrations, and a copy made while servers write to it.

A committed transaction is on disk (synchronous=FULL). Deleted content is overwritten (secure_delete).
"""

import errno
import os
import tempfile
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import apsw

from antiphon.errors import StartupError
from antiphon.stores import schema
from antiphon.stores.base import SchemaStatus
from antiphon.stores.sqlite_connection import BUSY_MS, SqliteConnection

MEMORY = ":memory:"

_RETRY_SECONDS = 0.05  # pause between two attempts to open a locked file
_CHECKPOINT_PAGES = 2000  # of the write-ahead log before a checkpoint: 8 MB
_SETTINGS: dict[str, Any] = {
    "journal_mode": "WAL",
    "synchronous": "FULL",
    "secure_delete": "ON",
    "cache_size": -8000,  # KiB; a larger cache has no benefit, since the file is in the page cache of the system
    "wal_autocheckpoint": _CHECKPOINT_PAGES,
    "journal_size_limit": _CHECKPOINT_PAGES * 4096,
    "temp_store": "MEMORY",
}


def connect(path: str) -> tuple[SqliteConnection, SqliteConnection | None]:
    """Open a connection to write and one to read, creating the file if needed. Raises StartupError.

    An in-memory database has a single connection.
    """
    try:
        if path == MEMORY:
            return _migrate(_open_configured(path)), None
        _create_file(Path(path))
        pair = _migrate(_open_configured(path)), _open_configured(path, query_only=True)
        sync_folder(Path(path).parent)
        return pair
    except (OSError, apsw.Error) as error:
        raise _to_startup_error(path, error) from None


def reconnect(path: str) -> tuple[SqliteConnection, SqliteConnection]:
    """Open both connections again, to an existing file. Raises apsw.Error."""
    with ExitStack() as cleanup:
        writer = _open_configured(path)
        cleanup.callback(writer.close)
        reader = _open_configured(path, query_only=True)
        cleanup.pop_all()
    return writer, reader


def read_schema(path: str) -> SchemaStatus:
    """Read the schema version of a file, which may not exist. Raises StartupError."""
    if path == MEMORY or not os.path.exists(path):
        return schema.describe("sqlite", 0)
    try:
        with closing(SqliteConnection(path)) as connection:
            migrated = connection.run("SELECT 1 FROM sqlite_master WHERE name = 'migrations'")
            return schema.describe("sqlite", connection.drive(schema.read_version()) if migrated else 0)
    except apsw.Error as error:
        raise _to_startup_error(path, error) from None


def _open_configured(path: str, **settings: Any) -> SqliteConnection:
    """Open and configure a connection, retrying while the file is locked.

    The process that creates a file locks it in a way that ignores the busy timeout of others.
    """
    deadline = monotonic() + BUSY_MS / 1000
    while True:
        with ExitStack() as cleanup, suppress(apsw.BusyError):
            connection = SqliteConnection(path)
            cleanup.callback(connection.close)
            connection.set_pragmas({**_SETTINGS, **settings})
            cleanup.pop_all()
            return connection
        if monotonic() > deadline:
            raise apsw.BusyError("The file stays locked.")
        sleep(_RETRY_SECONDS)


def _migrate(connection: SqliteConnection) -> SqliteConnection:
    """Apply the pending migrations under a write lock, so only one process does. Closes the connection on failure."""
    with ExitStack() as cleanup:
        cleanup.callback(connection.close)
        cleanup.callback(connection.roll_back)
        connection.run("BEGIN IMMEDIATE")
        connection.run(schema.MIGRATIONS_TABLE)
        for migration in schema.pending_migrations("sqlite", connection.drive(schema.read_version())):
            connection.run(migration.text)
            connection.drive(schema.record_migration(migration))
        connection.run("COMMIT")
        cleanup.pop_all()
    return connection


def _create_file(path: Path) -> None:
    """Create the file, readable by its owner only; later changes to its permissions are respected.

    An existing file is not opened here: closing it would release every lock of this process on it (fcntl(2)), and the
    next process to close the database would take itself for the last one and remove the write-ahead log.
    """
    missing = [folder for folder in path.parents if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
    if not path.exists():
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    elif path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that the names of new files in it survive a power failure like their content."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows: folders cannot be opened
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _to_startup_error(path: str, error: Exception) -> StartupError:
    match error:
        case NotADirectoryError() | FileExistsError():
            message = f"The store {path} cannot be created: one of its parent folders is a file."
        case IsADirectoryError():
            message = f"The store {path} is a folder; --store takes a file."
        case PermissionError() | apsw.ReadOnlyError() | apsw.PermissionsError():
            message = f"The store {path} is not writable by this user."
        case apsw.NotADBError() | apsw.CorruptError():
            message = f"The file {path} is not a store: it is not a SQLite database, or it is damaged."
        case apsw.BusyError():
            message = f"The store {path} is locked by another process."
        case OSError():
            message = f"The store {path} cannot be opened: {error.strerror}."
        case _:
            message = f"The store {path} cannot be opened: {error}."
    return StartupError(message)


def back_up(path: Path, target: Path) -> int:
    """Copy the store and return the size of the copy in bytes. Raises StartupError; never overwrites a file.

    The copy appears under its name complete or not at all, and only its owner can read it.
    """
    if not path.is_file():
        raise StartupError(f"There is no store {path} to copy.")
    if target.exists():
        raise StartupError(f"{target} already exists: name another file for the copy.")
    try:
        return _copy(path, target)
    except OSError as error:
        raise StartupError(f"{target} cannot be created: {error.strerror}.") from None
    except apsw.Error as error:
        raise StartupError(f"{path} cannot be copied: {error}.") from None


def _copy(path: Path, target: Path) -> int:
    with ExitStack() as cleanup:
        descriptor, name = tempfile.mkstemp(dir=target.absolute().parent, prefix=f".{target.name}.")
        cleanup.callback(os.unlink, name)
        try:
            _copy_pages(path, name)
            os.fsync(descriptor)
            size = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        os.link(name, target)  # fails if the target was created meanwhile; a rename would replace it
    return size


def _copy_pages(path: Path, name: str) -> None:
    with (
        closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)) as source,
        closing(apsw.Connection(name)) as copy,
    ):
        source.set_busy_timeout(BUSY_MS)
        with copy.backup("main", source, "main") as backup:
            backup.step(-1)  # all pages in one step: a later step would see writes made in between
        copy.pragma("journal_mode", "DELETE")  # a single file, without a write-ahead log beside it

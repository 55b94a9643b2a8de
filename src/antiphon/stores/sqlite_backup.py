"""A consistent copy of a SQLite file, made while servers write to it.

The copy appears under its name complete or not at all, and only its owner can read it.
"""

import os
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path

import apsw

from antiphon.errors import StartupError
from antiphon.stores.sqlite_connection import BUSY_MS


def back_up(path: Path, target: Path) -> int:
    """Copy the store and return the size of the copy in bytes. Raises StartupError; never overwrites a file."""
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

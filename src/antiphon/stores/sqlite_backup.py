"""A copy of a SQLite file as it was at one moment, made while servers go on writing to it.

It appears under its name whole or not at all, and is for its owner alone.
"""

import os
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path

import apsw

from antiphon.errors import StartupError

_BUSY_MS = 5000


def back_up(path: Path, target: Path) -> int:
    """Gives the bytes of the copy. Raises StartupError; a file that is there is never overwritten."""
    if not path.is_file():
        raise StartupError(f"There is no store {path} to be copied.")
    if target.exists():
        raise StartupError(f"{target} is there already: name another file for the copy.")
    try:
        return _copy(path, target)
    except OSError as error:
        raise StartupError(f"{target} cannot be made: {error.strerror}.") from None
    except apsw.Error as error:
        raise StartupError(f"{path} cannot be copied: {error}.") from None


def _copy(path: Path, target: Path) -> int:
    with ExitStack() as failed:
        descriptor, name = tempfile.mkstemp(dir=target.absolute().parent, prefix=f".{target.name}.")
        failed.callback(os.unlink, name)
        try:
            _fill(path, name)
            os.fsync(descriptor)
            size = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        os.link(name, target)  # fails if somebody else made it meanwhile, where a rename would replace it
    return size


def _fill(path: Path, name: str) -> None:
    with (
        closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)) as source,
        closing(apsw.Connection(name)) as copy,
    ):
        source.set_busy_timeout(_BUSY_MS)
        with copy.backup("main", source, "main") as backup:
            backup.step(-1)  # all at once: a later step would see what was written between the two
        copy.pragma("journal_mode", "DELETE")  # one file, without a log of changes beside it

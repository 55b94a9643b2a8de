"""Storage of servers under drill: a new folder with a SQLite file, or a database on a separate PostgreSQL server,
optionally with a Redis.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from msgspec import Struct

from tests.support.services import postgres_server, redis_server

StorageKind = Literal["sqlite", "postgres", "postgres with redis"]


class StorageLocation(Struct, frozen=True, kw_only=True):
    folder: Path
    store: str
    live: str | None = None

    @property
    def journal(self) -> Path:
        return self.folder / "journal"


@contextlib.contextmanager
def open_storage(kind: "StorageKind | StorageLocation") -> Iterator[StorageLocation]:
    """Yield a new location of this kind and remove it afterwards; an existing location is yielded as it is."""
    if isinstance(kind, StorageLocation):
        yield kind
        return
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="antiphon-drill-")))
        if kind == "sqlite":
            yield StorageLocation(folder=folder, store=str(folder / "drill.db"))
            return
        store = stack.enter_context(stack.enter_context(postgres_server()).temporary_database())
        live = stack.enter_context(redis_server()).url if kind == "postgres with redis" else None
        yield StorageLocation(folder=folder, store=store, live=live)

"""Where servers under drill keep things: a fresh folder with a SQLite file, or a database of a PostgreSQL of our own,
and if wished a Redis."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from msgspec import Struct

from tests.support.services import postgres_server, redis_server

Kind = Literal["sqlite", "postgres", "postgres with redis"]


class Place(Struct, frozen=True, kw_only=True):
    folder: Path
    store: str
    live: str | None = None

    @property
    def journal(self) -> Path:
        return self.folder / "journal"


@contextlib.contextmanager
def place(kind: "Kind | Place") -> Iterator[Place]:
    """A new one of this kind, gone afterwards; or the one that is given."""
    if isinstance(kind, Place):
        yield kind
        return
    with contextlib.ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="antiphon-drill-")))
        if kind == "sqlite":
            yield Place(folder=folder, store=str(folder / "drill.db"))
            return
        store = opened.enter_context(opened.enter_context(postgres_server()).database())
        live = opened.enter_context(redis_server()).url if kind == "postgres with redis" else None
        yield Place(folder=folder, store=store, live=live)

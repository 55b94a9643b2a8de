"""The stores there are. A line here makes a store selectable and puts it under the contract suite.

A store is made of the place that --store names, the seconds that ended responses are kept, and a clock.
"""

import re
import time
from collections.abc import Callable

from antiphon.errors import StartupError
from antiphon.stores.base import Store
from antiphon.stores.plugin_loading import load

STORES: dict[str, str] = {
    "memory": "antiphon.stores.sqlite:SqliteStore",
    "sqlite": "antiphon.stores.sqlite:SqliteStore",
    "postgresql": "antiphon.stores.postgres:PostgresStore",
}

_MEMORY = ":memory:"  # what SQLite calls it


def make_store(place: str, ttl: float, clock: Callable[[], float] = time.time) -> Store:
    """From what --store says: memory, postgresql://…, or a file."""
    name, where = named(place)
    store: Store = load(STORES[name])(where, ttl, clock)
    return store


def named(place: str) -> tuple[str, str]:
    """The name of the store, and the place as that store wants it."""
    if place in ("memory", _MEMORY):
        return "memory", _MEMORY
    scheme = re.match(r"([a-zA-Z][a-zA-Z0-9+.-]*)://", place)
    match scheme and scheme[1].lower():
        case None:
            return "sqlite", place
        case "sqlite":
            return "sqlite", place[len("sqlite://") :]
        case "postgresql" | "postgres":
            return "postgresql", place
        case other:
            raise StartupError(f"--store takes a file, postgresql://… or memory; {other}:// is none of them.")

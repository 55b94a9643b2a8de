"""The registered stores. An entry here makes a store selectable and subject to the contract tests.

A store is constructed from the location in --store, the retention time of ended responses in seconds, and a clock.
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

_MEMORY = ":memory:"  # SQLite's name for an in-memory database


def make_store(location: str, ttl: float, clock: Callable[[], float] = time.time) -> Store:
    """Create the store for a value of --store: memory, postgresql://…, or a file."""
    name, target = parse_location(location)
    store: Store = load(STORES[name])(target, ttl, clock)
    return store


def parse_location(location: str) -> tuple[str, str]:
    """Return the name of the store and the location in the form which that store expects."""
    if location in ("memory", _MEMORY):
        return "memory", _MEMORY
    scheme = re.match(r"([a-zA-Z][a-zA-Z0-9+.-]*)://", location)
    match scheme and scheme[1].lower():
        case None:
            return "sqlite", location
        case "sqlite":
            return "sqlite", location[len("sqlite://") :]
        case "postgresql" | "postgres":
            return "postgresql", location
        case other:
            raise StartupError(f"--store takes a file, postgresql://… or memory; {other}:// is not supported.")

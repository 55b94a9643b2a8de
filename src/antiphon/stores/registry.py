"""The registered stores, content stores, live logs and shared rate limits, which are imported on demand.

An entry makes a store or live log selectable and subject to the contract tests. A store is constructed from the
location in --store, the retention time of ended responses in seconds, and a clock.
"""

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from antiphon.errors import StartupError
from antiphon.plugins import find_plugin, list_names, load_reference
from antiphon.stores.contents.base import ContentStore
from antiphon.stores.live.base import LiveLog, SharedLimits
from antiphon.stores.sql.store import Store

EXTRAS = {"asyncpg": "postgres", "obstore": "s3", "redis": "redis"}  # package → extra of antiphon that installs it
_MEMORY = ":memory:"  # SQLite's name for an in-memory database

STORES: dict[str, str] = {
    "memory": "antiphon.stores.sqlite:SqliteStore",
    "sqlite": "antiphon.stores.sqlite:SqliteStore",
    "postgresql": "antiphon.stores.postgres:PostgresStore",
}

# Content stores, which hold the bytes of files.
CONTENTS: dict[str, str] = {
    "folder": "antiphon.stores.contents.folder:FolderContents",
    "store": "antiphon.stores.contents.database:DatabaseContents",
    "s3": "antiphon.stores.contents.s3:S3Contents",
}

# Live logs, by the name of the store whose rows hold the batches.
BY_STORE: dict[str, str] = {
    "local": "antiphon.stores.live.base:LocalLiveLog",
    "postgresql": "antiphon.stores.live.postgres:PostgresLiveLog",
}

# By the URL scheme of --live: a live log, and the rate limits shared by all servers on it.
BY_SCHEME: dict[str, tuple[str, str]] = {
    "redis": ("antiphon.stores.live.redis:RedisLiveLog", "antiphon.stores.live.redis:RedisLimits"),
    "rediss": ("antiphon.stores.live.redis:RedisLiveLog", "antiphon.stores.live.redis:RedisLimits"),
}


def load(reference: str) -> Any:
    """Import the object named by "module:Class". Raises StartupError if its package is not installed."""
    try:
        return load_reference(reference)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        message = f"The package {package} is not installed: pip install 'antiphon[{EXTRAS[package]}]'"
        raise StartupError(message) from None


def make_store(location: str, ttl: float, clock: Callable[[], float] = time.time) -> Store:
    """Create the store for a value of --store: memory, postgresql://…, a file, or the scheme of a plug-in."""
    name, target = parse_location(location)
    kind: Any = load(STORES[name]) if name in STORES else find_plugin("stores", name, {}, Store)
    store: Store = kind(target, ttl, clock)
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
        case other if other in list_names("stores", {}):
            return other, location
        case other:
            raise StartupError(f"--store takes a file, postgresql://… or memory; {other}:// is not supported.")


def make_contents(location: str | None, store_location: str, store: Store) -> ContentStore:
    """Create the content store for a value of --files: a folder, `store`, s3://…, or None for --store's default."""
    if location is None:
        kind, target = parse_location(store_location)
        location = f"{target}.files" if kind == "sqlite" and hasattr(os, "pread") else "store"  # not on Windows
    contents: ContentStore
    match location.partition("://"):
        case ("store", "", _):
            contents = load(CONTENTS["store"])(store)
        case (_, "", _):
            contents = load(CONTENTS["folder"])(Path(location))
        case ("s3", _, _):
            contents = load(CONTENTS["s3"])(location)
        case (other, _, _):
            raise StartupError(f"--files takes a folder, `store` or s3://…; {other}:// is not supported.")
    return contents


def make_live_log(address: str | None, store: Store, ttl: float) -> LiveLog:
    """Create the live log named by --live, or the store's own. `ttl`: seconds that a separate log retains data."""
    log: LiveLog
    if address is None:
        log = load(BY_STORE.get(store.name, BY_STORE["local"]))(store)
    else:
        log = load(_find_by_scheme(address)[0])(address, ttl)
    return log


def make_shared_limits(address: str | None) -> SharedLimits | None:
    """Create the shared limits for --live; None if there are no other servers to share with."""
    return None if address is None else load(_find_by_scheme(address)[1])(address)


def _find_by_scheme(address: str) -> tuple[str, str]:
    scheme = address.partition("://")[0]
    if scheme not in BY_SCHEME:
        raise StartupError(f"--live takes a URL that begins with {' or '.join(f'{s}://' for s in BY_SCHEME)}.")
    return BY_SCHEME[scheme]

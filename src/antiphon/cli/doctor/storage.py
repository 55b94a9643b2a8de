"""Checks of the store and the live log: reachability, schema version and free space. Nothing is created or migrated."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import apsw

from antiphon.cli.doctor.findings import Finding, format_bytes, ok, shorten, warning, wrong
from antiphon.cli.terminal import redact_password
from antiphon.config import Config
from antiphon.errors import AntiphonError, StartupError
from antiphon.stores.base import SchemaStatus
from antiphon.stores.registry import load, make_store, parse_location
from antiphon.stores.sqlite_connection import SqliteConnection
from antiphon.stores.sqlite_file import read_schema

_MIN_POSTGRES_VERSION = 140000
_LOW_DISK_BYTES = 1024**3
_CONNECT_REMEDY = "Start it, allow connections from this machine, or correct {}: address, user, password and database."
_EXTRA_CONNECTIONS = 2  # connections of each server besides its pool: LISTEN, and migrations


async def check_store(config: Config) -> AsyncIterator[Finding]:
    kind, location = parse_location(config.storage.store_location)
    if kind == "memory":
        yield (
            ok("Disabled by --disable-store.")
            if config.storage.disable_store
            else warning("Stored data is lost when the server stops.", "Set a file with --store to keep it.")
        )
    elif kind == "sqlite":
        for finding in await asyncio.to_thread(lambda: [*_check_sqlite(location, config)]):
            yield finding
    elif kind == "postgresql":
        async for finding in _check_postgres(location, config):
            yield finding
    else:
        schema = await make_store(config.storage.store_location, config.storage.store_ttl).schema()
        yield _assess_schema(redact_password(config.storage.store_location), schema)


def _check_sqlite(location: str, config: Config) -> Iterator[Finding]:
    path = Path(location)
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not path.exists():
        yield from [*_check_folder(folder, path)] or [ok(f"{path} is created at startup."), _check_disk(folder, config)]
        return
    try:
        schema = read_schema(location)
        with closing(SqliteConnection(location)) as connection:
            connection.run("BEGIN IMMEDIATE")
            connection.roll_back()
    except StartupError as error:
        yield wrong(str(error), "Choose another file with --store, or give this user access to it.")
    except apsw.BusyError:
        yield warning(f"{path} is locked by another process for a long time.", "Find the process that has it open.")
    except apsw.Error as error:
        remedy = "Give this user write permission for it and its folder, or choose another."
        yield wrong(f"{path} is not writable: {error}.", remedy)
    else:
        yield _assess_schema(f"{path}, SQLite {apsw.sqlite_lib_version()}", schema)
        yield _check_disk(folder, config)


def _check_folder(folder: Path, path: Path) -> Iterator[Finding]:
    """Check that the file can be created in the folder."""
    if not folder.is_dir():
        yield wrong(f"The store {path} cannot be created: {folder} is a file.", "Choose another path with --store.")
        return
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        remedy = "Give this user write permission there, or choose another path with --store."
        yield wrong(f"The store {path} cannot be created in {folder}: {error.strerror}.", remedy)


def _check_disk(folder: Path, config: Config) -> Finding:
    free, minimum = shutil.disk_usage(folder).free, config.shed.free_disk
    if free < minimum:
        consequence = f"below {format_bytes(minimum)} new work is rejected."
        remedy = "Free disk space, or lower --shed-free-disk."
        return wrong(f"{format_bytes(free)} are free on the disk of {folder}; {consequence}", remedy)
    if free < _LOW_DISK_BYTES:
        return warning(f"Only {format_bytes(free)} are free on the disk of {folder}.", "Free disk space.")
    return ok(f"{format_bytes(free)} are free on its disk.")


def _assess_schema(label: str, schema: SchemaStatus) -> Finding:
    if schema.current > schema.newest:
        return wrong(
            f"{label}: schema {schema.current} is of a newer Antiphon; this version supports {schema.newest}.",
            "Run the newer version, or choose another store.",
        )
    if schema.current and schema.pending:
        return warning(
            f"{label}: schema {schema.current} of {schema.newest}; the next start migrates it.",
            "Make a backup first (see upgrades), then run: antiphon db migrate",
        )
    state = f"schema {schema.current}" if schema.current else "empty, tables are created at startup"
    return ok(f"{label}: {state}.")


async def _check_postgres(location: str, config: Config) -> AsyncIterator[Finding]:
    try:
        info = await load("antiphon.stores.postgres:inspect_server")(location)
        schema = await make_store(config.storage.store_location, config.storage.store_ttl).schema()
    except (AntiphonError, StartupError, OSError) as error:
        yield wrong(shorten(error), _CONNECT_REMEDY.format("--store"))
        return
    yield _assess_schema(f"{redact_password(config.storage.store_location)}, PostgreSQL {info.version}", schema)
    yield ok(info.vectors)
    if info.number < _MIN_POSTGRES_VERSION:
        yield warning("This PostgreSQL is older than 14, the oldest supported version.", "Upgrade it.")
    if info.standby:
        yield wrong("It is a read-only standby.", "Set the primary in --store.")
    if schema.pending and not info.may_create:
        remedy = "Run `antiphon db migrate` as a user with that permission, or grant CREATE on the schema."
        yield wrong("The user of --store lacks the permission to create the missing tables.", remedy)
    needed = config.server.workers * (info.pool + _EXTRA_CONNECTIONS)
    if info.used + needed > info.connections:
        yield warning(
            f"It allows {info.connections} connections, {info.used} are in use, and this server needs up to {needed}.",
            "Raise max_connections, or run fewer workers.",
        )


async def check_live_log(config: Config) -> AsyncIterator[Finding]:
    if config.storage.live is None:
        yield ok("The live log is part of the store.")
        return
    try:
        info = await load("antiphon.stores.live.redis:inspect_server")(config.storage.live)
    except (AntiphonError, StartupError, OSError) as error:
        yield wrong(shorten(error), _CONNECT_REMEDY.format("--live"))
        return
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = info.get(f"{name.lower()}_version", "(unknown version)")
    yield ok(f"{redact_password(config.storage.live)}, {name} {version}.")
    if info.get("role") == "slave":
        yield wrong("It is a read-only replica.", "Set the primary in --live.")
    policy = info.get("maxmemory_policy", "noeviction")
    if info.get("maxmemory") and policy != "noeviction":
        yield warning(
            f"Its eviction policy ({policy}) may delete data of running streams when memory is full.",
            "Set maxmemory-policy to noeviction.",
        )

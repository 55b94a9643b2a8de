"""The store and the live log: reachable, of our age, with room. Nothing is made there, nor brought up to date."""

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw

from antiphon.cli.db import shown
from antiphon.cli.doctor.findings import Finding, cut, fine, size, warning, wrong
from antiphon.config import Config
from antiphon.errors import AntiphonError, StartupError
from antiphon.stores.base import Schema
from antiphon.stores.plugin_loading import load
from antiphon.stores.registry import make_store, named
from antiphon.stores.sqlite_file import Connection, look

_OLDEST_POSTGRES = 140000
_LITTLE_ROOM = 1024**3
_START = "Start it, let this machine reach it, or correct {}: its address, user, password and database."
_SPARE = 2  # connections of each server beside its pool: the one that listens, and one that migrates


async def store(config: Config) -> list[Finding]:
    kind, where = named(config.store_place)
    if kind == "memory":
        return [_in_memory(config)]
    if kind == "sqlite":
        return await asyncio.to_thread(_sqlite, where, config)
    return await _postgres(where, config)


def _in_memory(config: Config) -> Finding:
    if config.disable_store:
        return fine("Nothing is kept, as --disable-store says.")
    return warning("What is stored is gone when the server stops.", "Name a file with --store to keep it.")


def _sqlite(where: str, config: Config) -> list[Finding]:
    path = Path(where)
    folder = next(one for one in path.absolute().parents if one.exists())
    if not path.exists():
        return [*_unwritable(folder, path)] or [fine(f"{path} is made at the start."), *_room(folder, config)]
    try:
        schema = look(where)
        _write_nothing(where)
    except StartupError as error:
        return [wrong(str(error), "Name another with --store, or give the file to this user.")]
    except apsw.BusyError:
        return [warning(f"{path} is being written by another process, for long.", "Look who has it open.")]
    except apsw.Error as error:
        return [wrong(f"{path} cannot be written: {error}.", "Let this user write it and its folder, or name another.")]
    return [_judged(f"{path}, SQLite {apsw.sqlite_lib_version()}", schema), *_room(folder, config)]


def _write_nothing(path: str) -> None:
    """Take the right to write, and give it back. Raises apsw.Error."""
    with closing(Connection(path)) as connection:
        connection.run("BEGIN IMMEDIATE")
        connection.roll_back()


def _unwritable(folder: Path, path: Path) -> Iterator[Finding]:
    """Where the file is to be made."""
    if not folder.is_dir():
        yield wrong(f"The store {path} cannot be: {folder} is a file.", "Name another one with --store.")
        return
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        yield wrong(
            f"The store {path} cannot be made in {folder}: {error.strerror}.",
            "Let this user write there, or name another place with --store.",
        )


def _room(folder: Path, config: Config) -> Iterator[Finding]:
    free = shutil.disk_usage(folder).free
    least = config.shed.free_disk
    if free < least:
        yield wrong(
            f"{size(free)} are free on the disk of {folder}; below {size(least)} no new work is taken.",
            "Make room there, or lower --shed-free-disk.",
        )
    elif free < _LITTLE_ROOM:
        yield warning(f"Only {size(free)} are free on the disk of {folder}.", "Make room there.")
    else:
        yield fine(f"{size(free)} are free on its disk.")


def _judged(what: str, schema: Schema) -> Finding:
    if schema.current > schema.newest:
        return wrong(
            f"{what}: schema {schema.current} is of a newer Antiphon; this one knows {schema.newest}.",
            "Run the newer version, or name another store.",
        )
    if schema.current and schema.pending:
        return warning(
            f"{what}: schema {schema.current} of {schema.newest}; the next start brings it up to date.",
            "Take a backup first (see upgrades), then: antiphon db migrate",
        )
    return fine(f"{what}: schema {schema.current}." if schema.current else f"{what}: empty, to be filled at the start.")


async def _postgres(where: str, config: Config) -> list[Finding]:
    try:
        looked = await load("antiphon.stores.postgres:look")(where)
        schema = await make_store(config.store_place, config.store_ttl).schema()
    except (AntiphonError, StartupError, OSError) as error:
        return [wrong(cut(error), _START.format("--store"))]
    found = [_judged(f"{shown(config.store_place)}, PostgreSQL {looked.version}", schema)]
    if looked.number < _OLDEST_POSTGRES:
        found.append(warning("This PostgreSQL is older than 14, the oldest that is supported.", "Upgrade it."))
    if looked.standby:
        found.append(wrong("It is a standby: nothing can be written there.", "Name the primary in --store."))
    if schema.pending and not looked.may_create:
        found.append(
            wrong(
                "The user of --store may not create the tables that are missing.",
                "Run `antiphon db migrate` with an account that may, or grant CREATE on the schema.",
            )
        )
    wanted = config.workers * (looked.pool + _SPARE)
    if looked.used + wanted > looked.connections:
        found.append(
            warning(
                f"It allows {looked.connections} connections, {looked.used} are in use, and this server takes up to "
                f"{wanted}.",
                "Raise max_connections, or run fewer workers.",
            )
        )
    return found


async def live_log(config: Config) -> list[Finding]:
    if config.live is None:
        return [fine("It is the store's own.")]
    try:
        looked = await load("antiphon.stores.live.redis:look")(config.live)
    except (AntiphonError, StartupError, OSError) as error:
        return [wrong(cut(error), _START.format("--live"))]
    found = [fine(f"{shown(config.live)}, {looked.name} {looked.version}.")]
    if looked.replica:
        found.append(wrong("It is a replica: nothing can be written there.", "Name the primary in --live."))
    if looked.bounded and looked.evicts != "noeviction":
        found.append(
            warning(
                f"It throws away what it has no room for ({looked.evicts}), which may be a stream that runs.",
                "Set maxmemory-policy to noeviction.",
            )
        )
    return found

"""`antiphon db`: show the schema version of a store, migrate it (as a server does at startup), and back it up."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import click

from antiphon.cli.options import SettingsCommand, settings_by_name
from antiphon.cli.terminal import redact_password
from antiphon.config import Config
from antiphon.errors import StartupError, Unavailable
from antiphon.stores.base import SchemaStatus
from antiphon.stores.registry import make_store, parse_location
from antiphon.stores.sql.store import Store

T = TypeVar("T")

NOT_CURRENT = 1
_IN_MEMORY = "A store in memory is created at every start; it has no tables to manage."

DB = """Manage the tables of a store.

\b
  antiphon db status                          the default store
  antiphon db migrate --store postgresql://…  another store
  antiphon db backup copy.db                  copy the file, even while a server uses it
"""


@click.group(help=DB)
def db() -> None:
    pass


@db.command(cls=SettingsCommand, rows=settings_by_name("store", "config"))
def status(config: Config) -> None:
    """Show the schema version; the exit code is 1 unless it is current."""
    schema = run_with_store(config, lambda store: store.schema(), _IN_MEMORY)
    click.echo(f"{redact_password(config.storage.store_location)}: {_describe_schema(schema)}")
    if schema.current != schema.newest:
        raise click.exceptions.Exit(NOT_CURRENT)


@db.command(cls=SettingsCommand, rows=settings_by_name("store", "config"))
def migrate(config: Config) -> None:
    """Migrate the tables to the current schema version."""
    applied = run_with_store(config, _migrate, _IN_MEMORY)
    result = f"applied {', '.join(applied)}." if applied else "up to date, nothing to migrate."
    click.echo(f"{redact_password(config.storage.store_location)}: {result}")


@db.command(cls=SettingsCommand, rows=settings_by_name("store", "config"))
@click.argument("target", type=click.Path(path_type=Path, dir_okay=False))
def backup(config: Config, target: Path) -> None:
    """Copy a SQLite store to TARGET, even while servers use it. TARGET must not exist."""
    from antiphon.stores.sqlite_file import back_up  # imported on demand: other commands do not need SQLite

    kind, path = parse_location(config.storage.store_location)
    if kind != "sqlite":
        raise StartupError("Only SQLite stores can be copied; use pg_dump for PostgreSQL (see upgrades).")
    click.echo(f"{target}: {back_up(Path(path), target)} bytes.")


def run_with_store(config: Config, operation: Callable[[Store], Awaitable[T]], in_memory: str) -> T:
    """Run an operation on the store of the settings, which is closed afterwards. Raises StartupError; `in_memory` is
    the message about a store in memory.
    """
    location = config.storage.store_location
    if location == "memory":
        raise StartupError(in_memory)
    store = make_store(location, config.storage.store_ttl)

    async def run() -> T:
        try:
            return await operation(store)
        except Unavailable as error:
            raise StartupError(f"{redact_password(location)}: {error.message}") from None
        finally:
            await store.close()

    return asyncio.run(run())


async def _migrate(store: Store) -> list[str]:
    before = await store.schema()
    await store.open()
    return before.pending


def _describe_schema(schema: SchemaStatus) -> str:
    if schema.current > schema.newest:
        return f"schema {schema.current} of a newer Antiphon; this version supports {schema.newest}."
    if schema.pending:
        names = ", ".join(schema.pending)
        return f"schema {schema.current} of {schema.newest}; pending: {names}. Run: antiphon db migrate"
    return f"schema {schema.current}, up to date."

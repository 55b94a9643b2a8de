"""`antiphon db`: how far a store's tables are, bringing them up to date, which a server does by itself, and copies."""

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import click

from antiphon.cli.options import SettingsCommand, named
from antiphon.config import Config
from antiphon.errors import StartupError, Unavailable
from antiphon.stores.base import Schema, Store
from antiphon.stores.registry import make_store
from antiphon.stores.registry import named as place_of

NOT_CURRENT = 1

DB = """Look after the tables of a store.

\b
  antiphon db status                          the default store
  antiphon db migrate --store postgresql://…  another one
  antiphon db backup copy.db                  a copy of the file, while a server uses it
"""


@click.group(help=DB)
def db() -> None:
    pass


@db.command(cls=SettingsCommand, rows=named("store", "config"))
def status(config: Config) -> None:
    """Say how far the tables are; exit with 1 unless they are up to date."""
    place, store = _store(config)
    found = asyncio.run(_schema(store))
    click.echo(f"{place}: {_told(found)}")
    if found.current != found.newest:
        raise click.exceptions.Exit(NOT_CURRENT)


@db.command(cls=SettingsCommand, rows=named("store", "config"))
def migrate(config: Config) -> None:
    """Bring the tables up to date."""
    place, store = _store(config)
    done = asyncio.run(_migrate(store))
    click.echo(f"{place}: {', '.join(done)} done." if done else f"{place}: up to date, nothing to be done.")


@db.command(cls=SettingsCommand, rows=named("store", "config"))
@click.argument("target", type=click.Path(path_type=Path, dir_okay=False))
def backup(config: Config, target: Path) -> None:
    """Copy a store that is a file, also while servers use it, to TARGET, which must not be there yet."""
    from antiphon.stores.sqlite_backup import back_up  # not before it is needed: other commands do without SQLite

    kind, where = place_of(config.store_place)
    if kind != "sqlite":
        raise StartupError("Only a store that is a file is copied so; PostgreSQL has pg_dump for it (see upgrades).")
    click.echo(f"{target}: {back_up(Path(where), target)} bytes.")


def shown(place: str) -> str:
    """A place as it may be printed: without its password, wherever that stands."""
    if "://" not in place:
        return place
    parts = urlsplit(place)
    plain = "&".join(pair for pair in parts.query.split("&") if "pass" not in pair.partition("=")[0].lower())
    user = f"{parts.username}@" if parts.username else ""
    netloc = user + parts.netloc.rpartition("@")[2] if parts.password else parts.netloc
    return parts._replace(netloc=netloc, query=plain).geturl()


def _store(config: Config) -> tuple[str, Store]:
    if config.store_place == "memory":
        raise StartupError("A store in memory is made anew with every start; it has no tables to look after.")
    return shown(config.store_place), make_store(config.store_place, config.store_ttl)


async def _schema(store: Store) -> Schema:
    try:
        return await store.schema()
    except Unavailable as error:
        raise StartupError(error.message)


async def _migrate(store: Store) -> list[str]:
    before = await _schema(store)
    try:
        await store.open()
    except Unavailable as error:
        raise StartupError(error.message)
    finally:
        await store.close()
    return before.pending


def _told(found: Schema) -> str:
    if found.current > found.newest:
        return f"schema {found.current}, of a newer Antiphon; this one knows {found.newest}."
    if found.pending:
        names = ", ".join(found.pending)
        return f"schema {found.current} of {found.newest}; to be done: {names}. Run: antiphon db migrate"
    return f"schema {found.current}, up to date."

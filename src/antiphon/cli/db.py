"""`antiphon db`: how far a store's tables are, and bringing them up to date. A server does the latter by itself."""

import asyncio
from urllib.parse import urlsplit

import click

from antiphon.cli.options import SettingsCommand, named
from antiphon.config import Config
from antiphon.errors import StartupError, Unavailable
from antiphon.stores.base import Schema, Store
from antiphon.stores.registry import make_store

NOT_CURRENT = 1

DB = """Look after the tables of a store.

\b
  antiphon db status                          the default store
  antiphon db migrate --store postgresql://…  another one
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


def shown(place: str) -> str:
    """A place as it may be printed: without its password."""
    parts = urlsplit(place)
    if not parts.password:
        return place
    user = f"{parts.username}@" if parts.username else ""
    return parts._replace(netloc=user + parts.netloc.rpartition("@")[2]).geturl()


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

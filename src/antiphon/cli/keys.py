"""`antiphon keys`: who may come in. A key is shown once, when it is made; after that there is only its digest."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from typing import TypeVar

import click

from antiphon.cli.db import shown
from antiphon.cli.options import SettingsCommand, named
from antiphon.config import Config
from antiphon.config.key_settings import GivenKey, given_keys
from antiphon.errors import StartupError, Unavailable
from antiphon.service.access.api_key_format import check_tenant, is_key_id, issue, secret_of
from antiphon.service.access.api_keys import given_principal
from antiphon.service.access.principal import INFERENCE, SCOPES
from antiphon.stores.base import ApiKey, Store
from antiphon.stores.registry import make_store

T = TypeVar("T")

KEYS = """Make, list and revoke the keys of clients.

As soon as there is one, every client needs one. Who comes with a key sees what its tenant has, and nothing else.

\b
  antiphon keys create --tenant acme                  prints the key, once
  antiphon keys create --tenant acme --name laptop --expires 90
  antiphon keys create --tenant ops --scope admin     may look after the server
  antiphon keys list
  antiphon keys revoke key_…                          out within seconds, on every server
"""

_DAY = 86_400.0
_HEADS = ("id", "tenant", "scopes", "created", "expires", "state", "name")


@click.group(help=KEYS)
def keys() -> None:
    pass


@keys.command(cls=SettingsCommand, rows=named("store", "config"))
@click.option("--tenant", metavar="NAME", required=True, help="Whose key it is: small letters, digits, . - and _.")
@click.option("--name", metavar="TEXT", default="", help="What you will know it by.")
@click.option(
    "--scope",
    metavar="|".join(sorted(SCOPES)),
    multiple=True,
    help=f"What it may do; can be repeated.  [{INFERENCE}]",
)
@click.option(
    "--expires", metavar="DAYS|DATE", help="Days that it is good for, or the day (UTC) on which it ends.  [never]"
)
def create(config: Config, tenant: str, name: str, scope: tuple[str, ...], expires: str | None) -> None:
    """Make a key. It is the last line that is printed, and is never shown again."""
    now = time.time()
    row, key = issue(tenant, name, scope, now, None if expires is None else _moment(expires, now))
    _with_store(config, lambda store: store.add_api_key(row))
    until = "" if row.expires is None else f", until {_day(row.expires)}"
    click.echo(
        f"{row.id} of {row.tenant} ({_listed(row.scopes)}{until}). Keep the key: it is shown this once.", err=True
    )
    click.echo(key)


@keys.command("list", cls=SettingsCommand, rows=named("store", "config", "api_key_file"))
@click.option("--tenant", metavar="NAME", help="Those of this tenant alone.")
def listed(config: Config, tenant: str | None) -> None:
    """List the keys, without the keys themselves: those of the store, and those that the settings give."""
    if tenant is not None:
        check_tenant(tenant)
    now, given = time.time(), given_keys(config)
    rows, secret = _with_store(config, lambda store: _all(store, bool(given)))
    lines = [*(_cells(row, now) for row in rows), *(_given_cells(one, secret) for one in given)]
    lines = [line for line in lines if tenant in (None, line[1])]
    for line in _aligned([_HEADS, *lines]) if lines else ():
        click.echo(line)
    if not lines:
        click.echo("There are no keys.", err=True)


@keys.command(cls=SettingsCommand, rows=named("store", "config"))
@click.argument("key_id", metavar="ID")
def revoke(config: Config, key_id: str) -> None:
    """Revoke a key, by its id. Every server refuses it within seconds, also on open WebSockets."""
    row = _with_store(config, lambda store: store.revoke_api_key(key_id)) if is_key_id(key_id) else None
    if row is None:
        raise StartupError("There is no key with this id; `antiphon keys list` tells the ids.")
    click.echo(f"{row.id} of {row.tenant} is revoked.")


async def _all(store: Store, given: bool) -> tuple[list[ApiKey], bytes]:
    """And the secret by which keys are called that are given, if there are any."""
    return await store.api_keys(), await secret_of(store) if given else b""


def _with_store(config: Config, work: Callable[[Store], Awaitable[T]]) -> T:
    if config.store_place == "memory":
        raise StartupError("A store in memory ends with its server; keys for that are given with --api-key.")
    return asyncio.run(_done(make_store(config.store_place, config.store_ttl), shown(config.store_place), work))


async def _done(store: Store, place: str, work: Callable[[Store], Awaitable[T]]) -> T:
    try:
        await store.open()
        return await work(store)
    except Unavailable as error:
        raise StartupError(f"{place}: {error.message}") from None
    finally:
        await store.close()


def _moment(text: str, now: float) -> float:
    try:
        moment = now + float(text) * _DAY if text[:1].isdigit() and "-" not in text else _midnight(text)
        datetime.fromtimestamp(moment, UTC)  # a day that there is
        return moment
    except (ValueError, OverflowError):
        raise StartupError("--expires takes a number of days, or a day such as 2027-01-31.") from None


def _midnight(text: str) -> float:
    return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()


def _cells(row: ApiKey, now: float) -> tuple[str, ...]:
    expired = row.expires is not None and row.expires <= now
    state = f"revoked {_day(row.revoked)}" if row.revoked is not None else "expired" if expired else "good"
    until = "never" if row.expires is None else _day(row.expires)
    return row.id, row.tenant, _listed(row.scopes), _day(row.created), until, state, row.name


def _given_cells(given: GivenKey, secret: bytes) -> tuple[str, ...]:
    whose = given_principal(given, secret)
    return whose.key, whose.tenant, _listed(whose.scopes), "", "never", "good", given.place


def _aligned(lines: list[tuple[str, ...]]) -> Iterable[str]:
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADS))]
    for line in lines:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def _day(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M")


def _listed(scopes: Iterable[str]) -> str:
    return ",".join(sorted(scopes))

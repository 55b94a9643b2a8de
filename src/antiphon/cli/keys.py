"""`antiphon keys`: manage API keys. A key is printed once, when it is created; the store holds its digest only."""

import time
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from typing import TypeVar

import click

from antiphon.cli.db import run_with_store
from antiphon.cli.options import SettingsCommand, settings_by_name
from antiphon.cli.terminal import print_table
from antiphon.config import Config
from antiphon.config.key_settings import ConfiguredKey, load_configured_keys
from antiphon.errors import StartupError
from antiphon.ids import is_id
from antiphon.service.access import api_keys
from antiphon.stores.base import ApiKey
from antiphon.stores.sql.store import Store

T = TypeVar("T")

KEYS = """Create, list and revoke the API keys of clients.

Once a key exists, every client needs one. A key gives access to the data of its tenant only.

\b
  antiphon keys create --tenant acme                  print the new key, once
  antiphon keys create --tenant acme --name laptop --expires 90
  antiphon keys create --tenant ops --scope admin     may administer the server
  antiphon keys list
  antiphon keys revoke key_…                          effective within seconds on all servers
"""

_IN_MEMORY = "A store in memory ends with its server: configure its keys with --api-key."
_DAY_SECONDS = 86_400.0
_COLUMNS = ("id", "tenant", "scopes", "created", "expires", "state", "name")


@click.group(help=KEYS)
def keys() -> None:
    pass


@keys.command(cls=SettingsCommand, rows=settings_by_name("store", "config"))
@click.option(
    "--tenant", metavar="NAME", required=True, help="Tenant of the key: lower-case letters, digits, . - and _."
)
@click.option("--name", metavar="TEXT", default="", help="Description of the key.")
@click.option(
    "--scope",
    metavar="|".join(sorted(api_keys.SCOPES)),
    multiple=True,
    help=f"Scope of the key; can be repeated.  [{api_keys.INFERENCE}]",
)
@click.option(
    "--expires", metavar="DAYS|DATE", help="Validity in days, or the date (UTC) on which the key expires.  [never]"
)
def create(config: Config, tenant: str, name: str, scope: tuple[str, ...], expires: str | None) -> None:
    """Create a key. It is the last line of the output, and is not shown again."""
    now = time.time()
    row, key = api_keys.issue(tenant, name, scope, now, None if expires is None else _parse_expiry(expires, now))
    _run_with_open_store(config, lambda store: store.add_api_key(row))
    until = "" if row.expires is None else f", until {_format_time(row.expires)}"
    click.echo(
        f"{row.id} of {row.tenant} ({_join_scopes(row.scopes)}{until}). Save the key: it is not shown again.", err=True
    )
    click.echo(key)


@keys.command("list", cls=SettingsCommand, rows=settings_by_name("store", "config", "api_key_file"))
@click.option("--tenant", metavar="NAME", help="List the keys of this tenant only.")
def list_keys(config: Config, tenant: str | None) -> None:
    """List the keys of the store and of the settings. The keys themselves are not shown."""
    if tenant is not None:
        api_keys.check_tenant(tenant)
    now, configured = time.time(), load_configured_keys(config)
    rows, secret = _run_with_open_store(config, lambda store: _load_keys(store, bool(configured)))
    lines = [*(_stored_cells(row, now) for row in rows), *(_configured_cells(key, secret) for key in configured)]
    lines = [line for line in lines if tenant in (None, line[1])]
    if lines:
        print_table([_COLUMNS, *lines])
    else:
        click.echo("There are no keys.", err=True)


@keys.command(cls=SettingsCommand, rows=settings_by_name("store", "config"))
@click.argument("key_id", metavar="ID")
def revoke(config: Config, key_id: str) -> None:
    """Revoke the key with this id. All servers reject it within seconds, also on open WebSockets."""
    row = _run_with_open_store(config, lambda store: store.revoke_api_key(key_id)) if is_id(key_id, "key") else None
    if row is None:
        raise StartupError("There is no key with this id; `antiphon keys list` shows the ids.")
    click.echo(f"{row.id} of {row.tenant} is revoked.")


async def _load_keys(store: Store, with_secret: bool) -> tuple[list[ApiKey], bytes]:
    """Return the stored keys, and the secret from which the ids of configured keys are derived, if wanted."""
    return await store.api_keys(), await api_keys.load_secret(store.shared) if with_secret else b""


def _run_with_open_store(config: Config, operation: Callable[[Store], Awaitable[T]]) -> T:
    async def run(store: Store) -> T:
        await store.open()
        return await operation(store)

    return run_with_store(config, run, _IN_MEMORY)


def _parse_expiry(text: str, now: float) -> float:
    try:
        if "-" in text:
            return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
        timestamp = now + float(text) * _DAY_SECONDS
        datetime.fromtimestamp(timestamp, UTC)  # raises if the date is out of range; it rounds to microseconds
        return timestamp
    except (ValueError, OverflowError):
        raise StartupError("--expires takes a number of days, or a date such as 2027-01-31.") from None


def _stored_cells(row: ApiKey, now: float) -> tuple[str, ...]:
    expired = row.expires is not None and row.expires <= now
    state = f"revoked {_format_time(row.revoked)}" if row.revoked is not None else "expired" if expired else "good"
    until = "never" if row.expires is None else _format_time(row.expires)
    return row.id, row.tenant, _join_scopes(row.scopes), _format_time(row.created), until, state, row.name


def _configured_cells(configured: ConfiguredKey, secret: bytes) -> tuple[str, ...]:
    principal = api_keys.make_principal(configured, secret)
    return principal.key, principal.tenant, _join_scopes(principal.scopes), "", "never", "good", configured.origin


def _format_time(timestamp: float) -> str:
    return datetime.fromtimestamp(timestamp, UTC).strftime("%Y-%m-%d %H:%M")


def _join_scopes(scopes: Iterable[str]) -> str:
    return ",".join(sorted(scopes))

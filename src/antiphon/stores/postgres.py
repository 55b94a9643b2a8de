"""The store on PostgreSQL, which several processes can share.

Whoever opens it first brings the tables up to date, alone: the others wait for a lock that only this is done under.

What can be told of a PostgreSQL without opening a store there: nothing is changed.
"""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from asyncpg import CannotConnectNowError
from asyncpg.exceptions import UndefinedTableError
from msgspec import Struct

from antiphon.stores import schema
from antiphon.stores.base import Bounds, Schema
from antiphon.stores.postgres_pool import CONNECTIONS, STARTUP, Line, Pool, connect, drive, startup_error
from antiphon.stores.sql.operation import Operation
from antiphon.stores.sql.store import Clock, SqlStore

T = TypeVar("T")

_LOCK = 0x616E7469  # «anti»: any number that nobody else locks in this database
_MIGRATION_SECONDS = 600.0
_SWEPT = 100
_BOOT_SECONDS = 30.0  # that a server which is still starting is waited for


class PostgresStore(SqlStore):
    name = "postgresql"

    def __init__(self, url: str, ttl: float, clock: Clock = time.time) -> None:
        super().__init__(ttl, clock)
        self.url = url
        self._pool = Pool(url)

    async def open(self) -> None:
        try:
            line = await self._reached()
            try:
                await _migrate(line)
            finally:
                line.terminate()
            await self._pool.open()
        except STARTUP as error:
            raise startup_error(error, self.url) from None

    async def close(self) -> None:
        await self._pool.close()

    def healthy(self) -> bool:
        return self._pool.healthy

    async def schema(self) -> Schema:
        """As it is, without opening: nothing is changed."""
        try:
            line = await self._reached()
            try:
                return schema.schema("postgres", await drive(line, schema.current()))
            finally:
                line.terminate()
        except UndefinedTableError:
            return schema.schema("postgres", 0)
        except STARTUP as error:
            raise startup_error(error, self.url) from None

    async def sweep(self, bounds: Bounds, most: int = _SWEPT) -> int:
        """Each row that goes takes several questions, and together they have one deadline."""
        return await super().sweep(bounds, min(most, _SWEPT))

    async def _do(self, make: Callable[[], Operation[T]], *, write: bool) -> T:
        return await self._pool.run(make, write=write)

    async def _reached(self) -> Line:
        async with asyncio.timeout(_BOOT_SECONDS):
            while True:
                try:
                    return await connect(self.url)
                except CannotConnectNowError:
                    await asyncio.sleep(0.1)


async def _migrate(line: Line) -> None:
    await line.execute("SET statement_timeout = 0")
    await line.execute(f"SELECT pg_advisory_lock({_LOCK})", timeout=_MIGRATION_SECONDS)
    await line.execute(schema.LEDGER)
    for migration in schema.pending("postgres", await drive(line, schema.current())):
        async with line.transaction():
            await line.execute(migration.text, timeout=_MIGRATION_SECONDS)
            await drive(line, schema.done(migration))


_ASKED = """
SELECT current_setting('server_version'), current_setting('server_version_num')::int, pg_is_in_recovery(),
       COALESCE(has_schema_privilege(current_schema(), 'CREATE'), false), current_setting('max_connections')::int,
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')
"""


class Looked(Struct, frozen=True, kw_only=True):
    version: str
    number: int  # 160004: 16.4
    standby: bool
    may_create: bool  # tables, where the store's are
    connections: int  # that it allows, of all clients together
    used: int
    pool: int = CONNECTIONS  # that each server of ours takes at most


async def look(url: str) -> Looked:
    """Raises StartupError."""
    try:
        line = await connect(url)
        try:
            row = await line.fetchrow(_ASKED)
        finally:
            line.terminate()
    except STARTUP as error:
        raise startup_error(error, url) from None
    assert row is not None
    version, number, standby, may_create, connections, used = row
    return Looked(
        version=version.partition(" ")[0],
        number=number,
        standby=standby,
        may_create=may_create,
        connections=connections,
        used=used,
    )

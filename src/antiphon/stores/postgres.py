"""The store on PostgreSQL, which several processes can share.

The first process to open it migrates the schema; the others wait for an advisory lock that is used only for this.
`inspect_server` reads facts about a server without opening a store or changing anything.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from asyncpg import CannotConnectNowError
from asyncpg.exceptions import UndefinedTableError
from msgspec import Struct

from antiphon.offload import BackgroundTasks
from antiphon.stores import schema
from antiphon.stores.base import RetentionBounds, SchemaStatus
from antiphon.stores.postgres_pool import (
    MAX_CONNECTIONS,
    STARTUP_FAULTS,
    PostgresConnection,
    PostgresPool,
    connect,
    drive,
    to_startup_error,
)
from antiphon.stores.postgres_vectors import build_indexes, describe_pgvector, open_pgvector, prepare_connection
from antiphon.stores.sql.operation import Operation
from antiphon.stores.sql.store import Clock, Store
from antiphon.stores.sql.text_index import TsvectorIndex

T = TypeVar("T")

_MIGRATION_LOCK = 0x616E7469  # "anti" in ASCII; any number that no other application locks in this database
_MIGRATION_SECONDS = 600.0
_MAX_SWEEP = 100
_BOOT_SECONDS = 30.0  # time to wait for a server that is still starting


class PostgresStore(Store):
    name = "postgresql"

    def __init__(self, url: str, ttl: float, clock: Clock = time.time) -> None:
        super().__init__(ttl, clock)
        self.url = url
        self._pool = PostgresPool(url)
        self._text_index = TsvectorIndex()
        self._builds = BackgroundTasks()

    async def open(self) -> None:
        async with _connect_at_startup(self.url) as connection:
            await _migrate(connection)
            self.has_points = await open_pgvector(connection)
            await self._pool.open(prepare_connection if self.has_points else None)

    def maintain_points(self) -> bool:
        if self.has_points and not self._builds:
            self._builds.start(build_indexes(self.url))
        return self.has_points

    async def close(self) -> None:
        await self._builds.close()
        await self._pool.close()

    def is_healthy(self) -> bool:
        return self._pool.healthy

    async def schema(self) -> SchemaStatus:
        """Read the schema version without opening or changing the store."""
        async with _connect_at_startup(self.url) as connection:
            try:
                return schema.describe("postgres", await drive(connection, schema.read_version()))
            except UndefinedTableError:
                return schema.describe("postgres", 0)

    async def sweep(self, bounds: RetentionBounds, limit: int = _MAX_SWEEP) -> int:
        """Remove fewer rows at a time: each takes several round trips, and all of them share one deadline."""
        return await super().sweep(bounds, min(limit, _MAX_SWEEP))

    async def _run(self, make: Callable[[], Operation[T]], *, write: bool) -> T:
        return await self._pool.run(make, write=write)


@asynccontextmanager
async def _connect_at_startup(url: str) -> AsyncIterator[PostgresConnection]:
    """Connect once the server is ready. Failures, also those of the block, are raised as StartupError."""
    try:
        async with asyncio.timeout(_BOOT_SECONDS):
            connection = await _connect_when_ready(url)
        try:
            yield connection
        finally:
            connection.terminate()
    except STARTUP_FAULTS as error:
        raise to_startup_error(error, url) from None


async def _connect_when_ready(url: str) -> PostgresConnection:
    while True:
        try:
            return await connect(url)
        except CannotConnectNowError:
            await asyncio.sleep(0.1)


async def _migrate(connection: PostgresConnection) -> None:
    await connection.execute("SET statement_timeout = 0")
    await connection.execute(f"SELECT pg_advisory_lock({_MIGRATION_LOCK})", timeout=_MIGRATION_SECONDS)
    await connection.execute(schema.MIGRATIONS_TABLE)
    for migration in schema.pending_migrations("postgres", await drive(connection, schema.read_version())):
        async with connection.transaction():
            await connection.execute(migration.text, timeout=_MIGRATION_SECONDS)
            await drive(connection, schema.record_migration(migration))


_SERVER_QUERY = """
SELECT split_part(current_setting('server_version'), ' ', 1), current_setting('server_version_num')::int,
       pg_is_in_recovery(), COALESCE(has_schema_privilege(current_schema(), 'CREATE'), false),
       current_setting('max_connections')::int,
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
       (SELECT extversion FROM pg_extension WHERE extname = 'vector'),
       (SELECT default_version FROM pg_available_extensions WHERE name = 'vector')
"""


class PostgresInfo(Struct, frozen=True):
    """Facts about a PostgreSQL server."""

    version: str
    number: int  # for example 160004 for 16.4
    standby: bool
    may_create: bool  # whether the user may create tables in the current schema
    connections: int  # max_connections, for all clients together
    used: int
    vectors: str  # a sentence about how they are searched
    pool: int = MAX_CONNECTIONS  # maximum number of connections of one Antiphon process


async def inspect_server(url: str) -> PostgresInfo:
    """Query the server. Raises StartupError if it cannot be reached."""
    async with _connect_at_startup(url) as connection:
        [row] = await connection.fetch(_SERVER_QUERY)
    facts: list[Any] = [*row[:-2], describe_pgvector(row[-2], row[-1])]
    return PostgresInfo(*facts)

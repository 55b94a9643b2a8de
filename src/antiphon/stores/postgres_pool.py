"""Runs operations on a bounded pool of PostgreSQL connections, each within a deadline.

    run ──▶ attempt ──▶ done
      ▲        │ conflict or lost connection: short pause
      └────────┘ … until the deadline: Unavailable

An operation may be repeated although its commit succeeded, if the confirmation was lost; all operations allow for that.
A started operation is completed even if its caller was cancelled: aborting it would cost a connection.

PostgreSQL errors are classified here. No message contains a password.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar
from urllib.parse import parse_qs, urlsplit

import asyncpg
from asyncpg import Connection, Record
from asyncpg import exceptions as pg
from asyncpg.pool import PoolConnectionProxy

from antiphon.errors import AntiphonError, StartupError, Unavailable
from antiphon.stores.base import OwnershipLost
from antiphon.stores.sql.operation import Operation, Rows, Statement

# The transaction conflicted with another and was rolled back; it can be retried.
CONFLICT = (pg.SerializationError, pg.DeadlockDetectedError)

# The connection is unusable or was never established. Whether a commit succeeded is unknown.
CONNECTION_LOST = (
    pg.PostgresConnectionError,
    pg.AdminShutdownError,
    pg.CrashShutdownError,
    pg.CannotConnectNowError,
    pg.DatabaseDroppedError,
    pg.IdleSessionTimeoutError,
    pg.IdleInTransactionSessionTimeoutError,
    pg.ReadOnlySQLTransactionError,  # after a failover the former primary may be a replica
    pg.TargetServerAttributeNotMatched,  # there is no primary yet
    asyncpg.InterfaceError,  # the connection was closed while in use
    asyncpg.InternalClientError,  # asyncpg's own state error after the server has closed the connection
    OSError,
)

# The server is reachable but cannot run the statement now: it timed out or lacks resources.
OVERLOADED = (pg.QueryCanceledError, pg.LockNotAvailableError, pg.InsufficientResourcesError)

FAULTS = (*CONFLICT, *CONNECTION_LOST, *OVERLOADED)

STARTUP_FAULTS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    pg.TargetServerAttributeNotMatched,
    OSError,
    ValueError,
)


def describe_address(url: str) -> str:
    """Return host, port and database of a URL, without anything that could be part of a password."""
    try:
        parts = urlsplit(url)
        hosts = parse_qs(parts.query).get("host", [])
    except ValueError:
        return "the address of --store"
    address = f"{parts.netloc}{parts.path}".rpartition("@")[2]
    return f"{', '.join(hosts)}{address}" if hosts else address


def to_startup_error(error: Exception, url: str) -> StartupError:
    """Convert an error of STARTUP_FAULTS into a message for the operator."""
    address = describe_address(url)
    match error:
        case pg.InvalidAuthorizationSpecificationError():
            message = f"PostgreSQL at {address} rejects the user or the password in --store."
        case pg.InvalidCatalogNameError():
            message = f"PostgreSQL at {address} has no such database. Create it: createdb {address.rpartition('/')[2]}"
        case pg.InsufficientPrivilegeError():
            message = f"The user in --store may not create tables in PostgreSQL at {address}."
        case asyncpg.ClientConfigurationError() | ValueError():
            message = "--store is not a valid PostgreSQL URL, such as postgresql://user:password@host/database."
        case _:
            reason = str(error) or "timed out"
            message = f"PostgreSQL at {address} does not answer: {reason}"
    return StartupError(message)


log = logging.getLogger(__name__)

T = TypeVar("T")
PostgresConnection: TypeAlias = "Connection[Record]"
PooledConnection: TypeAlias = "PoolConnectionProxy[Record]"

DEADLINE = 5.0
MAX_CONNECTIONS = 10
_CLOSE_SECONDS = 1.0
PAUSES = (0.01, 0.05, 0.2, 0.5, 1.0, 1.0)  # seconds before the second, third … attempt; bridges a server restart

# The timeouts, in milliseconds, release row locks if this process is suspended, and stop statements that it has
# abandoned. Every query has an index, so sequential scans are disabled for a planner that has no statistics yet.
_SETTINGS = """
SET application_name = 'antiphon'; SET default_transaction_isolation = 'read committed';
SET idle_in_transaction_session_timeout = {0}; SET statement_timeout = {0};
SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off
"""


async def connect(url: str) -> PostgresConnection:
    """Open a connection outside of the pool."""
    connection: PostgresConnection = await asyncpg.connect(url, timeout=DEADLINE, command_timeout=DEADLINE)
    await _set_up(connection)
    return connection


async def _set_up(connection: PostgresConnection) -> None:
    await connection.execute(_SETTINGS.format(round(DEADLINE * 1000)))


class PostgresPool:
    """Runs operations on pooled connections and tracks whether the server is healthy."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._pool: asyncpg.Pool[Record] | None = None
        self._running: set[asyncio.Task[Any]] = set()
        self.healthy = True

    async def open(self, prepare: Callable[[PostgresConnection], Awaitable[None]] | None = None) -> None:
        """Open the pool. `prepare` is called with every connection first."""

        async def init(connection: PostgresConnection) -> None:
            await _set_up(connection)
            if prepare is not None:
                await prepare(connection)

        self._pool = await asyncpg.create_pool(
            self._url, min_size=1, max_size=MAX_CONNECTIONS, timeout=DEADLINE, init=init, reset=_skip_reset
        )

    async def close(self) -> None:
        """Wait for the running operations, all of which have a deadline, then close the pool."""
        if self._running:
            await asyncio.wait(self._running)
        pool, self._pool = self._pool, None
        if pool is not None:
            with suppress(*CONNECTION_LOST):  # the server may already be gone
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await pool.close()

    async def run(self, make: Callable[[], Operation[T]], *, write: bool) -> T:
        """Run one operation. A read-only one needs no transaction: each statement sees the data committed so far."""
        attempt = _transact if write else drive
        task = asyncio.create_task(self._run_with_deadline(lambda connection: attempt(connection, make())))
        self._running.add(task)
        task.add_done_callback(self._on_done)
        return await asyncio.shield(task)

    def _on_done(self, task: "asyncio.Task[Any]") -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # retrieve it: the caller may have been cancelled

    async def _run_with_deadline(self, attempt: Callable[[PooledConnection], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(DEADLINE):
                result = await self._retry(attempt)
        except FAULTS as error:
            self._set_health(False, f"{type(error).__name__}: {error}")
            raise Unavailable("The store does not answer.", retry_after=1.0) from error
        self._set_health(True, "the connection is restored")
        return result

    def _set_health(self, healthy: bool, reason: str) -> None:
        if healthy != self.healthy:
            log.log(logging.INFO if healthy else logging.ERROR, "PostgreSQL: %s", reason)
        self.healthy = healthy

    async def _retry(self, attempt: Callable[[PooledConnection], Awaitable[T]]) -> T:
        for pause in PAUSES if self.healthy else PAUSES[:1]:  # fail fast while the server is down
            try:
                return await self._attempt(attempt)
            except (*CONFLICT, *CONNECTION_LOST):
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        return await self._attempt(attempt)

    async def _attempt(self, attempt: Callable[[PooledConnection], Awaitable[T]]) -> T:
        if self._pool is None:
            raise Unavailable("The store is closed.", retry_after=5.0)
        connection = await self._pool.acquire()
        lost = False
        try:
            return await attempt(connection)
        except (*CONNECTION_LOST, asyncio.CancelledError):
            lost = True
            raise
        finally:
            if lost or connection.is_in_transaction():  # an open transaction here means a defect in the operation
                connection.terminate()
            await self._pool.release(connection)


async def drive(
    connection: "PostgresConnection | PooledConnection", operation: Operation[T], first: Statement | None = None
) -> T:
    """Run the statements of an operation, starting with `first` if it was already taken, and return the result."""
    try:
        statement = first or next(operation)
        while True:
            statement = operation.send(await _fetch_rows(connection, statement))
    except StopIteration as done:
        result: T = done.value
        return result


async def _transact(connection: PooledConnection, operation: Operation[T]) -> T:
    """Like `drive`, in a transaction; a first statement marked as `autocommit` runs without one."""
    try:
        first = next(operation)
        if first.autocommit:
            first = operation.send(await _fetch_rows(connection, first))
    except StopIteration as done:
        value: T = done.value
        return value
    transaction = connection.transaction()
    await transaction.start()
    try:
        result = await drive(connection, operation, first)
    except (AntiphonError, OwnershipLost, asyncpg.PostgresError):
        if not connection.is_closed():
            await transaction.rollback()
        raise
    await transaction.commit()
    return result


async def _fetch_rows(connection: "PostgresConnection | PooledConnection", statement: Statement) -> Rows:
    try:
        return [tuple(record) for record in await connection.fetch(_to_postgres(statement.text), *statement.values)]
    except asyncpg.DataError as error:  # DataError is a subclass of InterfaceError, which stands for a lost connection
        raise TypeError(str(error)) from error


async def _skip_reset(connection: PostgresConnection) -> None:
    """Replace asyncpg's reset query: there is no session state to reset, and this saves a round trip."""


@lru_cache(1000)
def _to_postgres(text: str) -> str:
    return text.replace("{lock}", "FOR UPDATE").replace("{skip}", "FOR UPDATE SKIP LOCKED")

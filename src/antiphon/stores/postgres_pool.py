"""Runs operations on a bounded pool of connections to PostgreSQL, each within a deadline.

    run ──▶ attempt ──▶ done
      ▲        │ a conflict, or the connection was lost: a short pause
      └────────┘ … until the deadline: Unavailable

An operation may be run again although its commit had got through, because nobody said so: all of them allow for that.
One that was begun is carried to its end even if nobody waits for it any more: to break it off would cost a connection.

What can go wrong with PostgreSQL, told apart in one place; no sentence that is made here holds a password.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cache
from typing import Any, TypeAlias, TypeVar
from urllib.parse import parse_qs, urlsplit

import asyncpg
from asyncpg import Connection, Record
from asyncpg import exceptions as pg
from asyncpg.pool import PoolConnectionProxy

from antiphon.errors import AntiphonError, StartupError, Unavailable
from antiphon.stores.base import Lost
from antiphon.stores.sql.operation import Operation, Rows, Statement

# The transaction was in another's way and has been rolled back: it may simply be run again.
CONFLICT = (pg.SerializationError, pg.DeadlockDetectedError)

# The connection is of no use any more, or never came about. Whether a commit got through is not known.
LOST = (
    pg.PostgresConnectionError,
    pg.AdminShutdownError,
    pg.CrashShutdownError,
    pg.CannotConnectNowError,
    pg.DatabaseDroppedError,
    pg.IdleSessionTimeoutError,
    pg.IdleInTransactionSessionTimeoutError,
    pg.ReadOnlySQLTransactionError,  # after a failover the former primary may be a replica
    pg.TargetServerAttributeNotMatched,  # or there is no primary yet
    asyncpg.InterfaceError,  # it has been closed while it was used
    asyncpg.InternalClientError,  # or the server has just said goodbye on it: what asyncpg then says of its own state
    OSError,
)

# The server is there and cannot do it now: it took too long, or has no room.
REFUSED = (pg.QueryCanceledError, pg.LockNotAvailableError, pg.InsufficientResourcesError)

FAULTS = (*CONFLICT, *LOST, *REFUSED)

STARTUP = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    pg.TargetServerAttributeNotMatched,
    OSError,
    ValueError,
)


def where(url: str) -> str:
    """Host, port and database of an address; whatever could be a part of a password is left out."""
    try:
        parts = urlsplit(url)
        hosts = parse_qs(parts.query).get("host", [])
    except ValueError:
        return "its address"
    place = f"{parts.netloc}{parts.path}".rpartition("@")[2]
    return f"{', '.join(hosts)}{place}" if hosts else place


def startup_error(error: Exception, url: str) -> StartupError:
    """A sentence for whoever starts the server; `error` is one of STARTUP."""
    place = where(url)
    match error:
        case pg.InvalidAuthorizationSpecificationError():
            said = f"PostgreSQL at {place} refuses the user or the password of --store."
        case pg.InvalidCatalogNameError():
            said = f"PostgreSQL at {place} has no such database. Create it: createdb {place.rpartition('/')[2]}"
        case pg.InsufficientPrivilegeError():
            said = f"The user of --store may not create tables in PostgreSQL at {place}."
        case asyncpg.ClientConfigurationError() | ValueError():
            said = "--store is no address of a PostgreSQL database, such as postgresql://user:password@host/database."
        case _:
            reason = str(error) or "it takes too long"
            said = f"PostgreSQL at {place} does not answer: {reason}"
    return StartupError(said)


log = logging.getLogger(__name__)

T = TypeVar("T")
Line: TypeAlias = "Connection[Record]"
Lent: TypeAlias = "PoolConnectionProxy[Record]"

DEADLINE = 5.0
CONNECTIONS = 10
_GOODBYE = 1.0
PAUSES = (0.01, 0.05, 0.2, 0.5, 1.0, 1.0)  # before the second, third … attempt; a server that restarts is waited for

# The timeouts free a row's lock if this process is halted, and end work that it has given up. Every question has its
# index: a planner that has no statistics yet must not think of reading whole tables.
SETTINGS = f"""
SET application_name = 'antiphon'; SET default_transaction_isolation = 'read committed';
SET idle_in_transaction_session_timeout = {round(DEADLINE * 1000)}; SET statement_timeout = {round(DEADLINE * 1000)};
SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off
"""


async def connect(url: str) -> Line:
    """A connection beside the pool."""
    line: Line = await asyncpg.connect(url, timeout=DEADLINE, command_timeout=DEADLINE)
    await line.execute(SETTINGS)
    return line


class Pool:
    def __init__(self, url: str) -> None:
        self._url = url
        self._pool: asyncpg.Pool[Record] | None = None
        self._under_way: set[asyncio.Task[Any]] = set()
        self.healthy = True

    async def open(self) -> None:
        self._pool = await asyncpg.create_pool(
            self._url, min_size=1, max_size=CONNECTIONS, timeout=DEADLINE, init=_prepare, reset=_keep
        )

    async def close(self) -> None:
        """What is under way ends first; all of it has its deadline."""
        if self._under_way:
            await asyncio.wait(self._under_way)
        pool, self._pool = self._pool, None
        if pool is not None:
            with suppress(*LOST):  # a server that is gone need not be told
                async with asyncio.timeout(_GOODBYE):
                    await pool.close()

    async def run(self, make: Callable[[], Operation[T]], *, write: bool) -> T:
        """One that does not write needs no transaction: each of its statements sees what is committed then."""
        attempt = _transact if write else drive
        task = asyncio.create_task(self._answer(lambda line: attempt(line, make())))
        self._under_way.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # nobody may be waiting for it any more

    async def _answer(self, attempt: Callable[[Lent], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(DEADLINE):
                result = await self._persist(attempt)
        except FAULTS as error:
            self._turn(False, f"{type(error).__name__}: {error}")
            raise Unavailable("The store does not answer.", retry_after=1.0) from error
        self._turn(True, "it answers again")
        return result

    def _turn(self, healthy: bool, reason: str) -> None:
        if healthy != self.healthy:
            log.log(logging.INFO if healthy else logging.ERROR, "PostgreSQL: %s", reason)
        self.healthy = healthy

    async def _persist(self, attempt: Callable[[Lent], Awaitable[T]]) -> T:
        for pause in PAUSES if self.healthy else PAUSES[:1]:  # who asks a server that is known to be away soon hears so
            try:
                return await self._attempt(attempt)
            except (*CONFLICT, *LOST):
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        return await self._attempt(attempt)

    async def _attempt(self, attempt: Callable[[Lent], Awaitable[T]]) -> T:
        if self._pool is None:
            raise Unavailable("The store is closed.", retry_after=5.0)
        line = await self._pool.acquire()
        lost = False
        try:
            return await attempt(line)
        except (*LOST, asyncio.CancelledError):
            lost = True
            raise
        finally:
            if lost or line.is_in_transaction():  # in one still: after a defect of ours
                line.terminate()
            await self._pool.release(line)


async def drive(line: "Line | Lent", operation: Operation[T], first: Statement | None = None) -> T:
    """Give an operation the rows of its statements, from the first or this one on, until it has its result."""
    try:
        statement = first or next(operation)
        while True:
            statement = operation.send(await _rows(line, statement))
    except StopIteration as done:
        result: T = done.value
        return result


async def _transact(line: Lent, operation: Operation[T]) -> T:
    """As `drive`, in a transaction, without which a first statement that stands alone does."""
    try:
        first = next(operation)
        if first.alone:
            first = operation.send(await _rows(line, first))
    except StopIteration as done:
        only: T = done.value
        return only
    transaction = line.transaction()
    await transaction.start()
    try:
        result = await drive(line, operation, first)
    except (AntiphonError, Lost, asyncpg.PostgresError):
        if not line.is_closed():
            await transaction.rollback()
        raise
    await transaction.commit()
    return result


async def _rows(line: "Line | Lent", statement: Statement) -> Rows:
    try:
        return [tuple(record) for record in await line.fetch(_dialect(statement.text), *statement.values)]
    except asyncpg.DataError as error:  # asyncpg takes it for the kind of error that a lost connection is
        raise TypeError(str(error)) from error


async def _prepare(line: Line) -> None:
    await line.execute(SETTINGS)


async def _keep(line: Line) -> None:
    """Nothing to put back between two operations: a question less each time."""


@cache
def _dialect(text: str) -> str:
    return text.replace("{lock}", "FOR UPDATE").replace("{skip}", "FOR UPDATE SKIP LOCKED")

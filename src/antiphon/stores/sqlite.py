"""The store in one file (or in memory): one thread writes, all that waits in one commit, and another one reads.

Each operation of a commit has a savepoint, so that one that is refused leaves the others alone. If the commit itself
fails, all of them have failed. Other processes may use the same file; who finds it taken waits a few seconds.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

import apsw

from antiphon.errors import AntiphonError, Unavailable
from antiphon.stores.base import Lost, Schema
from antiphon.stores.sql.operation import Operation
from antiphon.stores.sql.store import Clock, SqlStore
from antiphon.stores.sqlite_file import MEMORY, Connection, connect, look
from antiphon.stores.worker import Job, Jobs, Worker

T = TypeVar("T")
log = logging.getLogger(__name__)

# An operation's own fault: the others of its commit are none the worse for it.
_DEFECTS = (apsw.ConstraintError, apsw.SQLError, apsw.TooBigError, apsw.MismatchError, apsw.BindingsError)


class SqliteStore(SqlStore):
    def __init__(self, path: str, ttl: float, clock: Clock = time.time) -> None:
        super().__init__(ttl, clock)
        self.name = "memory" if path == MEMORY else "sqlite"
        self._path = path
        self._writes: _Commits | None = None
        self._reads: _Reads | None = None

    async def open(self) -> None:
        writer, reader = await asyncio.to_thread(connect, self._path)
        self._writes = _Commits(writer)
        self._reads = None if reader is None else _Reads(reader)

    async def close(self) -> None:
        for side in (self._reads, self._writes):
            if side is not None:
                await side.close()
        self._reads = self._writes = None

    def healthy(self) -> bool:
        return all(side.healthy for side in (self._writes, self._reads) if side is not None)

    async def schema(self) -> Schema:
        return await asyncio.to_thread(look, self._path)

    async def _do(self, make: Callable[[], Operation[T]], *, write: bool) -> T:
        side = self._writes if write or self._reads is None else self._reads
        if side is None:
            raise Unavailable("The store is closed.", retry_after=5.0)
        return await side.worker.submit(make)


class _Side:
    """A connection, and the thread that uses it."""

    def __init__(self, name: str, connection: Connection) -> None:
        self.healthy = True
        self._connection = connection
        self.worker = Worker(name, self._carry_out, self._rest)

    async def close(self) -> None:
        await self.worker.close()
        await asyncio.to_thread(self._connection.close)

    def _carry_out(self, jobs: Jobs) -> None:
        raise NotImplementedError

    def _rest(self) -> bool:
        return True

    def _fail(self, jobs: Jobs, error: apsw.Error) -> None:
        if self.healthy:
            log.error("the store failed: %s: %s", type(error).__name__, error)
        self.healthy = False
        for job in jobs:
            job.fail(Unavailable(_sentence(error), retry_after=5.0))


class _Commits(_Side):
    def __init__(self, connection: Connection) -> None:
        super().__init__("store-writer", connection)

    def _carry_out(self, jobs: Jobs) -> None:
        connection = self._connection
        try:
            connection.run("BEGIN IMMEDIATE")
            for job in jobs:
                self._one(job)
            connection.run("COMMIT")
        except apsw.Error as error:
            self._fail(jobs, error)
            connection.has_written()
        else:  # one that wrote nothing shows nothing
            self.healthy = self.healthy or connection.has_written()
        finally:
            connection.roll_back()

    def _one(self, job: Job[Any]) -> None:
        connection = self._connection
        connection.run("SAVEPOINT one")
        try:
            job.give(connection.drive(job.make()))
        except (AntiphonError, Lost, *_DEFECTS) as error:
            job.fail(error)
            connection.run("ROLLBACK TO one")
        connection.run("RELEASE one")

    def _rest(self) -> bool:
        """Nobody writes: what was deleted should not linger in the log of changes."""
        return self._connection.clear_log()


class _Reads(_Side):
    def __init__(self, connection: Connection) -> None:
        super().__init__("store-reader", connection)

    def _carry_out(self, jobs: Jobs) -> None:
        connection = self._connection
        try:
            connection.run("BEGIN")
            for job in jobs:
                self._one(job)
            connection.run("COMMIT")
        except apsw.Error as error:
            self._fail(jobs, error)
        else:
            self.healthy = True
        finally:
            connection.roll_back()

    def _one(self, job: Job[Any]) -> None:
        try:
            job.give(self._connection.drive(job.make()))
        except AntiphonError as error:
            job.fail(error)


def _sentence(error: apsw.Error) -> str:
    match error:
        case apsw.FullError():
            return "The store's disk is full."
        case apsw.BusyError():
            return "The store is taken by another process."
        case _:
            return "The store cannot be reached."

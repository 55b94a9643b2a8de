"""The store in one file (or in memory): one thread writes, all that waits in one commit, and another one reads.

Each operation of a commit has a savepoint, so that one that is refused leaves the others alone; those that only add
rows need none, as long as the rows are new. If the commit itself fails, all of them have failed. Other processes may
use the same file; who finds it taken waits a few seconds.

    well ── a batch fails ──▶ ill ── a batch gets through, or a trial, once a second ──▶ well
                               └── a second of input and output that fails: both connections are opened anew
"""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeVar

import apsw

from antiphon.errors import AntiphonError, Unavailable
from antiphon.stores.base import Lost, Schema
from antiphon.stores.sql.operation import Operation
from antiphon.stores.sql.responses import Addition, together
from antiphon.stores.sql.store import Clock, SqlStore
from antiphon.stores.sqlite_file import MEMORY, Connection, connect, look, reconnect
from antiphon.stores.writer_thread import Job, Jobs, Worker

T = TypeVar("T")
log = logging.getLogger(__name__)

# An operation's own fault: the others of its commit are none the worse for it.
_DEFECTS = (apsw.ConstraintError, apsw.SQLError, apsw.TooBigError, apsw.MismatchError, apsw.BindingsError)
# What a connection may never get over by itself: the disk was away, and its files are not those that are there now.
_BREAKS = (
    *(apsw.IOError, apsw.CantOpenError, apsw.ReadOnlyError, apsw.ProtocolError),
    *(apsw.ConnectionClosedError, apsw.CursorClosedError),  # it could not be opened when it was closed for that
)
_PATIENCE = 4  # turns of the loop: a commit with many rows takes little longer than one with few
_KIND = attrgetter("make.__class__")  # of a job
AGAIN = 1.0  # seconds between two attempts to open a file anew


class SqliteStore(SqlStore):
    def __init__(self, path: str, ttl: float, clock: Clock = time.time) -> None:
        super().__init__(ttl, clock)
        self.name = "memory" if path == MEMORY else "sqlite"
        self._path = path
        self._writes: _Commits | None = None
        self._reads: _Reads | None = None

    async def open(self) -> None:
        writer, reader = await asyncio.to_thread(connect, self._path)
        self._writes = _Commits(writer, self._reopen)
        self._reads = None if reader is None else _Reads(reader, self._reopen)

    async def close(self) -> None:
        sides = self._sides()
        for side in sides:
            await side.worker.close()
        for side in sides:
            await asyncio.to_thread(side.connection.close)
        self._reads = self._writes = None

    def healthy(self) -> bool:
        return all(side.healthy for side in self._sides())

    async def schema(self) -> Schema:
        return await asyncio.to_thread(look, self._path)

    def _sides(self) -> "list[_Side]":
        return [side for side in (self._reads, self._writes) if side is not None]

    def _reopen(self) -> None:
        """Both, since what they share of the file lives until neither has it open. In the thread of either."""
        reads, writes = self._reads, self._writes
        if reads is None or writes is None:  # memory has nothing that could be opened again
            return
        with reads.lock, writes.lock:
            try:
                for side in (reads, writes):
                    side.connection.close()
                writes.connection, reads.connection = reconnect(self._path)
            except apsw.Error as error:
                log.warning("the store cannot be opened: %s: %s", type(error).__name__, error)
            else:
                log.warning("the store was opened anew")

    def _do(self, make: Callable[[], Operation[T]], *, write: bool) -> Awaitable[T]:
        side = self._writes if write or self._reads is None else self._reads
        if side is None:
            raise Unavailable("The store is closed.", retry_after=5.0)
        return side.worker.submit(make)


class _Side:
    """A connection, and the thread that uses it, which has its lock meanwhile."""

    def __init__(self, name: str, connection: Connection, reopen: Callable[[], None], patience: int = 0) -> None:
        self.healthy = True
        self.connection = connection
        self.lock = threading.Lock()
        self._reopen = reopen
        self._reopen_at: float | None = None  # unless it gets well before
        self.worker = Worker(name, self._carry_out, self._rest, patience)

    def _carry_out(self, jobs: Jobs) -> None:
        self._open_anew()
        with self.lock:
            try:
                telling = self._do(jobs)
            except apsw.Error as error:
                self._fail(jobs, error)
            else:
                if telling:
                    self._recover()
            finally:
                self.connection.roll_back()

    def _do(self, jobs: Jobs) -> bool:
        """No jobs: a trial. Does it tell whether all is well that this got through?"""
        raise NotImplementedError

    def _rest(self) -> bool:
        """Nobody asks for anything. After a failure nobody may be sent here before it is over, so that has to be found
        out without anybody."""
        if not self.healthy:
            self._carry_out([])
        return self.healthy

    def _open_anew(self) -> None:
        """If it is time."""
        if self._reopen_at is not None and time.monotonic() >= self._reopen_at:
            self._reopen_at = time.monotonic() + AGAIN
            self._reopen()

    def _note(self, error: apsw.Error) -> None:
        if self._reopen_at is None and isinstance(error, _BREAKS):
            self._reopen_at = time.monotonic() + AGAIN

    def _fail(self, jobs: Jobs, error: apsw.Error) -> None:
        if self.healthy:
            log.error("the store failed: %s: %s", type(error).__name__, error)
        self.healthy = False
        self._note(error)
        for job in jobs:
            job.fail(Unavailable(_sentence(error), retry_after=5.0))

    def _recover(self) -> None:
        if not self.healthy:
            log.warning("the store is well again")
        self.healthy, self._reopen_at = True, None


class _Commits(_Side):
    def __init__(self, connection: Connection, reopen: Callable[[], None]) -> None:
        super().__init__("store-writer", connection, reopen, _PATIENCE)
        self._clears = True  # the log of changes

    def _do(self, jobs: Jobs) -> bool:
        """Rows that are added, in one go; if one of them is there already, all anew, one job after the other."""
        try:
            return self._commit(jobs, self._add)
        except _DEFECTS:
            self.connection.roll_back()
            return self._commit(jobs, self._each)

    def _commit(self, jobs: Jobs, add: Callable[[Jobs], None]) -> bool:
        """One that writes nothing tells nothing."""
        connection = self.connection
        before = connection.changes()
        connection.run("BEGIN IMMEDIATE")
        for kind, alike in groupby(jobs, _KIND):
            (add if kind is Addition else self._each)([*alike])
        if not jobs:
            connection.touch()
        connection.run("COMMIT")
        return not jobs or connection.changes() != before

    def _add(self, jobs: Jobs) -> None:
        """All of it comes to None."""
        self.connection.drive(together([make for job in jobs if isinstance(make := job.make, Addition)]))

    def _each(self, jobs: Jobs) -> None:
        for job in jobs:
            self._one(job)

    def _one(self, job: Job[Any]) -> None:
        connection = self.connection
        connection.run("SAVEPOINT one")
        try:
            job.give(connection.drive(job.make()))
        except (AntiphonError, Lost, *_DEFECTS) as error:
            job.fail(error)
            connection.run("ROLLBACK TO one")
        connection.run("RELEASE one")

    def _rest(self) -> bool:
        """Nobody writes: what was deleted should not linger in the log of changes."""
        if not super()._rest():
            return False
        self._open_anew()
        with self.lock:
            return self._clear()

    def _clear(self) -> bool:
        try:
            cleared = self.connection.clear_log()
        except apsw.Error as error:
            if self._clears:
                log.error("the log of changes cannot be cleared: %s: %s", type(error).__name__, error)
            self._clears = False
            self._note(error)
            return False
        self._clears, self._reopen_at = True, None
        return cleared


class _Reads(_Side):
    def __init__(self, connection: Connection, reopen: Callable[[], None]) -> None:
        super().__init__("store-reader", connection, reopen)

    def _do(self, jobs: Jobs) -> bool:
        self.connection.run("BEGIN")
        for job in jobs:
            self._one(job)
        if not jobs:
            self.connection.run("SELECT count(*) FROM sqlite_master")
        self.connection.run("COMMIT")
        return True

    def _one(self, job: Job[Any]) -> None:
        try:
            job.give(self.connection.drive(job.make()))
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

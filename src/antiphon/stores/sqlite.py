"""The store in one SQLite file or in memory: one thread writes, with group commit, and another reads.

Each operation of a commit has a savepoint, so a rejected one does not affect the others. Operations that only insert
rows need none, as long as the rows are new. If the commit itself fails, all of its operations fail. Other processes may
use the same file; a locked file is waited for up to a few seconds.

    healthy ── a batch fails ──▶ failed ── a batch or a probe (once a second) succeeds ──▶ healthy
                                   └── I/O errors for a second: both connections are reopened
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
from antiphon.stores.base import OwnershipLost, SchemaStatus
from antiphon.stores.sql.operation import Operation
from antiphon.stores.sql.responses import RowInsert, insert_batch
from antiphon.stores.sql.store import Clock, Store
from antiphon.stores.sql.text_index import FtsIndex
from antiphon.stores.sqlite_connection import CONNECTION_ERRORS, OPERATION_ERRORS, SqliteConnection, describe_error
from antiphon.stores.sqlite_file import MEMORY, connect, read_schema, reconnect
from antiphon.stores.writer_thread import Job, Jobs, StoreThread

T = TypeVar("T")
log = logging.getLogger(__name__)

_BATCH_TURNS = 4  # event loop turns to wait for more jobs: a commit of many rows takes little longer than one of few
_OPERATION_TYPE = attrgetter("make.__class__")  # of a job; RowInsert jobs are batched
REOPEN_SECONDS = 1.0  # seconds between two attempts to reopen a file


class SqliteStore(Store):
    _text_index = FtsIndex()

    def __init__(self, path: str, ttl: float, clock: Clock = time.time) -> None:
        super().__init__(ttl, clock)
        self.name = "memory" if path == MEMORY else "sqlite"
        self._path = path
        self._writer: _WriteSide | None = None
        self._reader: _ReadSide | None = None

    async def open(self) -> None:
        writer, reader = await asyncio.to_thread(connect, self._path)
        self._writer = _WriteSide(writer, self._reopen)
        self._reader = None if reader is None else _ReadSide(reader, self._reopen)

    async def close(self) -> None:
        sides = self._sides()
        for side in sides:
            await side.thread.close()
        for side in sides:
            await asyncio.to_thread(side.connection.close)
        self._reader = self._writer = None

    def is_healthy(self) -> bool:
        return all(side.healthy for side in self._sides())

    async def schema(self) -> SchemaStatus:
        return await asyncio.to_thread(read_schema, self._path)

    def _sides(self) -> "list[_SqliteSide]":
        return [side for side in (self._reader, self._writer) if side is not None]

    def _reopen(self) -> None:
        """Reopen both connections, in the thread of either.

        Both are closed first, because the shared state of a file lives until its last connection is closed.
        """
        reader, writer = self._reader, self._writer
        if reader is None or writer is None:  # an in-memory database cannot be reopened
            return
        with reader.lock, writer.lock:
            try:
                for side in (reader, writer):
                    side.connection.close()
                writer.connection, reader.connection = reconnect(self._path)
            except apsw.Error as error:
                log.warning("the store cannot be opened: %s: %s", type(error).__name__, error)
            else:
                log.warning("the store was reopened")

    def _run(self, make: Callable[[], Operation[T]], *, write: bool) -> Awaitable[T]:
        side = self._writer if write or self._reader is None else self._reader
        if side is None:
            raise Unavailable("The store is closed.", retry_after=5.0)
        return side.thread.submit(make)


class _SqliteSide:
    """A connection and the thread that uses it, which holds the lock meanwhile."""

    def __init__(
        self, name: str, connection: SqliteConnection, reopen: Callable[[], None], batch_turns: int = 0
    ) -> None:
        self.healthy = True
        self.connection = connection
        self.lock = threading.Lock()
        self._reopen = reopen
        self._reopen_at: float | None = None  # monotonic time, unless it recovers before
        self.thread = StoreThread(name, self._run_jobs, self._on_idle, batch_turns)

    def _run_jobs(self, jobs: Jobs) -> None:
        self._reopen_if_due()
        with self.lock:
            try:
                conclusive = self._process(jobs)
            except apsw.Error as error:
                self._fail(jobs, error)
            else:
                if conclusive:
                    if not self.healthy:
                        log.warning("the store has recovered")
                    self.healthy, self._reopen_at = True, None
            finally:
                self.connection.roll_back()

    def _process(self, jobs: Jobs) -> bool:
        """Run the jobs; without jobs, probe the database. Returns whether success proves that it is healthy."""
        raise NotImplementedError

    def _on_idle(self) -> bool:
        """Runs when idle. After a failure the balancer avoids this store, so probe it here to notice recovery."""
        if not self.healthy:
            self._run_jobs([])
        return self.healthy

    def _reopen_if_due(self) -> None:
        if self._reopen_at is not None and time.monotonic() >= self._reopen_at:
            self._reopen_at = time.monotonic() + REOPEN_SECONDS
            self._reopen()

    def _schedule_reopen(self, error: apsw.Error) -> None:
        if self._reopen_at is None and isinstance(error, CONNECTION_ERRORS):
            self._reopen_at = time.monotonic() + REOPEN_SECONDS

    def _fail(self, jobs: Jobs, error: apsw.Error) -> None:
        if self.healthy:
            log.error("the store failed: %s: %s", type(error).__name__, error)
        self.healthy = False
        self._schedule_reopen(error)
        for job in jobs:
            job.fail(Unavailable(describe_error(error), retry_after=5.0))


class _WriteSide(_SqliteSide):
    """The writing side: all waiting jobs in one commit."""

    def __init__(self, connection: SqliteConnection, reopen: Callable[[], None]) -> None:
        super().__init__("store-writer", connection, reopen, _BATCH_TURNS)
        self._can_truncate = True  # whether the last attempt to truncate the write-ahead log succeeded

    def _process(self, jobs: Jobs) -> bool:
        """Insert new rows together; if one of them already exists, roll back and run the jobs one by one."""
        try:
            return self._commit(jobs, self._insert_rows)
        except OPERATION_ERRORS:
            self.connection.roll_back()
            return self._commit(jobs, self._run_each)

    def _commit(self, jobs: Jobs, add: Callable[[Jobs], None]) -> bool:
        """Run the jobs in one transaction. Returns whether anything was written: an empty commit proves nothing."""
        connection = self.connection
        before = connection.total_changes()
        connection.run("BEGIN IMMEDIATE")
        for kind, group in groupby(jobs, _OPERATION_TYPE):
            (add if kind is RowInsert else self._run_each)([*group])
        if not jobs:
            connection.write_page()
        connection.run("COMMIT")
        return not jobs or connection.total_changes() != before

    def _insert_rows(self, jobs: Jobs) -> None:
        """Insert the rows of all jobs; the result of each is None."""
        self.connection.drive(insert_batch([make for job in jobs if isinstance(make := job.make, RowInsert)]))

    def _run_each(self, jobs: Jobs) -> None:
        for job in jobs:
            self._run_one(job)

    def _run_one(self, job: Job[Any]) -> None:
        connection = self.connection
        connection.run("SAVEPOINT one")
        try:
            job.succeed(connection.drive(job.make()))
        except (AntiphonError, OwnershipLost, *OPERATION_ERRORS) as error:
            job.fail(error)
            connection.run("ROLLBACK TO one")
        connection.run("RELEASE one")

    def _on_idle(self) -> bool:
        """Truncate the write-ahead log when idle, so that deleted data does not remain in it."""
        if not super()._on_idle():
            return False
        self._reopen_if_due()
        with self.lock:
            return self._truncate_log()

    def _truncate_log(self) -> bool:
        try:
            truncated = self.connection.truncate_log()
        except apsw.Error as error:
            if self._can_truncate:
                log.error("the write-ahead log cannot be truncated: %s: %s", type(error).__name__, error)
            self._can_truncate = False
            self._schedule_reopen(error)
            return False
        self._can_truncate, self._reopen_at = True, None
        return truncated


class _ReadSide(_SqliteSide):
    """The reading side: all waiting jobs in one read transaction."""

    def __init__(self, connection: SqliteConnection, reopen: Callable[[], None]) -> None:
        super().__init__("store-reader", connection, reopen)

    def _process(self, jobs: Jobs) -> bool:
        self.connection.run("BEGIN")
        for job in jobs:
            self._run_one(job)
        if not jobs:
            self.connection.run("SELECT count(*) FROM sqlite_master")
        self.connection.run("COMMIT")
        return True

    def _run_one(self, job: Job[Any]) -> None:
        try:
            job.succeed(self.connection.drive(job.make()))
        except AntiphonError as error:
            job.fail(error)

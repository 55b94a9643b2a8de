"""A thread that runs jobs in order, all waiting ones together, and reports to the event loop once per batch.

    submit ──▶ gathered ──▶ handed over ──▶ run ──▶ resolved (on the loop)
                                └──▶ withdrawn, if the thread does not reach it in time

Jobs submitted within one turn of the loop are gathered, so the thread is woken once for all of them. After a batch of
several jobs, the next ones may also wait a few turns for more, while the loop is busy and only for a short time.

An unexpected exception ends the thread: its jobs fail with Internal, and a new thread takes over the remaining jobs.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from msgspec import Struct

from antiphon.errors import Internal, Unavailable
from antiphon.stores.sql.operation import Operation

T = TypeVar("T")
DEADLINE = 10.0
IDLE = 1.0
_MAX_BATCH = 256  # jobs per batch
_FULL_BATCH = 16  # jobs that are handed over without waiting for more
MAX_GATHER_SECONDS = 0.005  # longest time to wait for more jobs
CHECK_SECONDS = 1.0


class Job(Struct, Generic[T], eq=False):
    """One operation to run. Only the thread sets the outcome until the job is resolved; the default is None."""

    make: Callable[[], Operation[T]]
    future: asyncio.Future[T]
    submitted_tick: int
    withdrawn: bool = False
    value: T | None = None
    error: Exception | None = None

    def succeed(self, value: T) -> None:
        self.value, self.error = value, None

    def fail(self, error: Exception) -> None:
        self.error = error

    def resolve(self) -> None:
        """Pass the outcome to the future, unless its caller is gone."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.value)  # type: ignore[arg-type]  # None only where T allows it


Jobs = Sequence[Job[Any]]


class StoreThread:
    """Runs jobs of one connection in a thread of its own."""

    def __init__(
        self, name: str, run_jobs: Callable[[Jobs], None], idle: Callable[[], bool] | None = None, batch_turns: int = 0
    ) -> None:
        """`idle` is called after a second without jobs following some work, and again later if it returns False.

        `batch_turns`: loop turns that jobs wait for others, if the previous batch had several jobs.
        """
        self._name = name
        self._run_jobs = run_jobs
        self._idle = idle
        self._batch_turns = batch_turns
        self._turns_left = 0  # turns still to wait
        self._gather_until = 0.0  # loop time at which waiting ends
        self._queue: SimpleQueue[list[Job[Any]] | None] = SimpleQueue()
        self._gathered: list[Job[Any]] = []
        self._waiting: deque[Job[Any]] = deque()
        self._loop = asyncio.get_running_loop()
        self._closing = False
        self._ended = asyncio.Event()
        self._ticks = 0
        self._check_timer = self._loop.call_later(CHECK_SECONDS, self._check_deadlines)
        self._start()

    def submit(self, make: Callable[[], Operation[T]]) -> asyncio.Future[T]:
        if self._closing:
            raise Unavailable("The store is closed.", retry_after=5.0)
        job = Job(make, self._loop.create_future(), self._ticks)
        self._waiting.append(job)
        if not self._gathered:
            self._gather_until = self._loop.time() + MAX_GATHER_SECONDS
            self._loop.call_soon(self._gather)
        self._gathered.append(job)
        return job.future

    async def close(self) -> None:
        """Stop after all submitted jobs have run."""
        self._closing = True
        self._check_timer.cancel()
        self._hand_over()
        self._queue.put(None)
        await self._ended.wait()
        self._thread.join()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def _check_deadlines(self) -> None:
        """Fail jobs that exceed the deadline, for example because the disk of the thread hangs.

        Their outcome is then unknown, as with a server that does not answer. Ticks are counted instead of time, because
        this process may have been suspended.
        """
        self._ticks += 1
        oldest_tick = self._ticks - DEADLINE / CHECK_SECONDS
        for job in self._waiting:
            if job.submitted_tick > oldest_tick:
                break
            job.withdrawn = True
            if not job.future.done():
                job.future.set_exception(Unavailable("The store does not answer.", retry_after=5.0))
        self._check_timer = self._loop.call_later(CHECK_SECONDS, self._check_deadlines)

    def _gather(self) -> None:
        """Called at the end of a loop turn. If the loop has nothing else to do, further turns take no time."""
        if self._turns_left and len(self._gathered) < _FULL_BATCH and self._loop.time() < self._gather_until:
            self._turns_left -= 1
            self._loop.call_soon(self._gather)
        else:
            self._hand_over()

    def _hand_over(self) -> None:
        if self._gathered:
            self._turns_left = self._batch_turns if len(self._gathered) > 1 else 0
            self._queue.put(self._gathered)
            self._gathered = []

    def _resolve_all(self, jobs: Jobs) -> None:
        for job in jobs:
            self._waiting.popleft()
            job.resolve()

    def _fail_all(self, jobs: Jobs) -> None:
        """Fail all jobs of the batch, also those that finished: whether they were committed is unknown."""
        for job in jobs:
            job.fail(Internal("The store failed."))
        self._resolve_all(jobs)

    # ---- in the thread

    def _run(self) -> None:
        callback: Callable[[], None] = self._start  # restart after an unexpected exception
        try:
            self._process_batches()
            callback = self._ended.set
        finally:
            self._loop.call_soon_threadsafe(callback)

    def _process_batches(self) -> None:
        polls = False
        while (jobs := self._take_batch(polls)) is not None:
            if jobs:
                self._run_batch(jobs)
            polls = self._idle is not None and (bool(jobs) or not self._idle())
            del jobs  # releases their data, which may be large; the next jobs may come much later

    def _run_batch(self, jobs: list[Job[Any]]) -> None:
        callback = self._fail_all  # after an unexpected exception
        try:
            self._run_jobs([job for job in jobs if not job.withdrawn])
            callback = self._resolve_all
        finally:
            self._loop.call_soon_threadsafe(callback, jobs)

    def _take_batch(self, polls: bool) -> list[Job[Any]] | None:
        """Return all waiting jobs; an empty list after an idle period, None at the end."""
        try:
            first = self._queue.get(timeout=IDLE if polls else None)
        except Empty:
            return []
        if first is None:
            return None
        jobs = first
        while len(jobs) < _MAX_BATCH and self._queue.qsize():
            more = self._queue.get()
            if more is None:
                self._queue.put(None)
                break
            jobs += more
        return jobs

"""A thread that carries out jobs in the order they came, all that wait together, and tells the event loop once.

    submit ──▶ gathered ──▶ handed over ──▶ carried out ──▶ settled (on the loop)
                                └──▶ withdrawn, when the thread does not get to it in time

What one turn of the loop brings is gathered: the thread is woken once for all of it. Where jobs come in company, a
worker may have the patience to wait for the next ones too, while the loop is busy and not for long.

A defect ends the thread, as it should: its jobs end with Internal, and those behind them have a new thread.
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
_MOST = 256  # at a time
_ENOUGH = 16  # to be handed over without waiting for more
LONGEST = 0.005  # seconds that more are waited for
GLANCE = 1.0


class Job(Struct, Generic[T], eq=False):
    """Carried out without being given a value or an error, it has come to None. Until it is settled, what it comes to
    is for the thread alone to say."""

    make: Callable[[], Operation[T]]
    future: asyncio.Future[T]
    begun: int
    withdrawn: bool = False
    value: T | None = None
    error: Exception | None = None

    def give(self, value: T) -> None:
        self.value, self.error = value, None

    def fail(self, error: Exception) -> None:
        self.error = error

    def tell(self) -> None:
        """Whoever awaits it, if there still is somebody."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.value)  # type: ignore[arg-type]  # None only where that is what it comes to


Jobs = Sequence[Job[Any]]


class Worker:
    def __init__(
        self, name: str, carry_out: Callable[[Jobs], None], idle: Callable[[], bool] | None = None, patience: int = 0
    ) -> None:
        """`idle` is called when there has been nothing to do for a second after some work; False: again later.

        `patience`: turns of the loop that jobs wait for others, if those before them had company.
        """
        self._name = name
        self._carry_out = carry_out
        self._idle = idle
        self._patience = patience
        self._turns = 0  # that are still waited for
        self._late = 0.0  # and not after this
        self._queue: SimpleQueue[list[Job[Any]] | None] = SimpleQueue()
        self._gathered: list[Job[Any]] = []
        self._waiting: deque[Job[Any]] = deque()
        self._loop = asyncio.get_running_loop()
        self._closing = False
        self._ended = asyncio.Event()
        self._glances = 0
        self._glance = self._loop.call_later(GLANCE, self._look)
        self._start()

    def submit(self, make: Callable[[], Operation[T]]) -> asyncio.Future[T]:
        if self._closing:
            raise Unavailable("The store is closed.", retry_after=5.0)
        job = Job(make, self._loop.create_future(), self._glances)
        self._waiting.append(job)
        if not self._gathered:
            self._late = self._loop.time() + LONGEST
            self._loop.call_soon(self._gather)
        self._gathered.append(job)
        return job.future

    async def close(self) -> None:
        """When everything that was submitted has been carried out."""
        self._closing = True
        self._glance.cancel()
        self._hand_over()
        self._queue.put(None)
        await self._ended.wait()
        self._thread.join()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        """Is the thread stuck, say in a disk that does not answer? Then nobody waits for it longer than the deadline.

        Whether what it was about will yet be done is not known then, as it is with a server that does not answer.
        Glances are counted, and not time, in which this process may have been halted as a whole.
        """
        self._glances += 1
        late = self._glances - DEADLINE / GLANCE
        for job in self._waiting:
            if job.begun > late:
                break
            job.withdrawn = True
            if not job.future.done():
                job.future.set_exception(Unavailable("The store does not answer.", retry_after=5.0))
        self._glance = self._loop.call_later(GLANCE, self._look)

    def _gather(self) -> None:
        """A turn of the loop is over; if it has nothing else to do, the turns that follow take no time."""
        if self._turns and len(self._gathered) < _ENOUGH and self._loop.time() < self._late:
            self._turns -= 1
            self._loop.call_soon(self._gather)
        else:
            self._hand_over()

    def _hand_over(self) -> None:
        if self._gathered:
            self._turns = self._patience if len(self._gathered) > 1 else 0
            self._queue.put(self._gathered)
            self._gathered = []

    def _settle(self, jobs: Jobs) -> None:
        for job in jobs:
            self._waiting.popleft()
            job.tell()

    def _give_up(self, jobs: Jobs) -> None:
        """Also what came to its end before the defect: whether it stays is not known."""
        for job in jobs:
            job.fail(Internal("The store failed."))
        self._settle(jobs)

    # ---- in the thread

    def _work(self) -> None:
        following: Callable[[], None] = self._start  # unless it comes to its end
        try:
            self._go_on()
            following = self._ended.set
        finally:
            self._loop.call_soon_threadsafe(following)

    def _go_on(self) -> None:
        restless = False
        while (jobs := self._take(restless)) is not None:
            if jobs:
                self._do(jobs)
            restless = self._idle is not None and (bool(jobs) or not self._idle())
            del jobs  # what they wrote may be large, and the next ones may come in an hour

    def _do(self, jobs: list[Job[Any]]) -> None:
        following = self._give_up  # unless they are carried out
        try:
            self._carry_out([job for job in jobs if not job.withdrawn])
            following = self._settle
        finally:
            self._loop.call_soon_threadsafe(following, jobs)

    def _take(self, restless: bool) -> list[Job[Any]] | None:
        """All that waits; none: it is quiet. None: the end."""
        try:
            first = self._queue.get(timeout=IDLE if restless else None)
        except Empty:
            return []
        if first is None:
            return None
        jobs = first
        while len(jobs) < _MOST and self._queue.qsize():
            more = self._queue.get()
            if more is None:
                self._queue.put(None)
                break
            jobs += more
        return jobs

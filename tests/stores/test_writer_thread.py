"""The thread of a store: order, batches, deadlines and unexpected exceptions."""

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from antiphon.errors import Internal, Unavailable
from antiphon.stores import writer_thread
from antiphon.stores.sql.operation import Operation
from antiphon.stores.writer_thread import Job, Jobs, StoreThread

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def run_thread(
    run_jobs: Callable[[Jobs], None], idle: Callable[[], bool] | None = None, batch_turns: int = 0
) -> AsyncIterator[StoreThread]:
    thread = StoreThread("test", run_jobs, idle, batch_turns)
    try:
        yield thread
    finally:
        async with asyncio.timeout(60):
            await thread.close()


def make_operation(value: int) -> Callable[[], Operation[int]]:
    def operation() -> Operation[int]:
        yield from ()
        return value

    return operation


def run_each(jobs: Jobs) -> None:
    for job in jobs:
        try:
            next(job.make())
        except StopIteration as stop:
            job.succeed(stop.value)


async def test_jobs_run_in_order_and_waiting_jobs_run_together() -> None:
    sizes: list[int] = []
    free = threading.Event()

    def run_jobs(jobs: Jobs) -> None:
        sizes.append(len(jobs))
        free.wait(60)
        run_each(jobs)

    async with run_thread(run_jobs) as thread, asyncio.timeout(60):
        futures = [thread.submit(make_operation(value)) for value in range(100)]
        free.set()
        assert await asyncio.gather(*futures) == list(range(100))
    assert sum(sizes) == 100
    assert len(sizes) <= 3


async def test_a_waiting_thread_holds_no_references_to_finished_jobs() -> None:
    """A job may be large, and the next one may come much later."""
    gone = threading.Event()
    async with run_thread(run_each) as thread, asyncio.timeout(60):
        make = make_operation(1)
        weakref.finalize(make, gone.set)
        future = thread.submit(make)
        del make
        assert await future == 1
        assert await asyncio.to_thread(gone.wait, 60)


async def test_jobs_of_a_hanging_thread_fail_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_thread, "CHECK_SECONDS", 0.01)
    sizes: list[int] = []
    free = threading.Event()

    def run_jobs(jobs: Jobs) -> None:
        sizes.append(len(jobs))
        free.wait(60)
        run_each(jobs)

    async with run_thread(run_jobs) as thread, asyncio.timeout(60):
        first = thread.submit(make_operation(1))
        while not sizes:  # noqa: ASYNC110  # the thread changes the condition
            await asyncio.sleep(0)
        with monkeypatch.context() as patch:
            patch.setattr(writer_thread, "DEADLINE", 0.05)
            second = thread.submit(make_operation(2))
            for future in (first, second):
                with pytest.raises(Unavailable):
                    await future
        free.set()
        assert await thread.submit(make_operation(3)) == 3
    assert sum(sizes) == 2, "a job that failed before it was started is not run"


async def test_an_outcome_after_the_deadline_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread may be anywhere between the first statement and the commit when the deadline passes."""
    monkeypatch.setattr(writer_thread, "CHECK_SECONDS", 0.01)
    monkeypatch.setattr(writer_thread, "DEADLINE", 0.05)
    free, resolve = threading.Event(), Job.resolve

    def succeed_late(job: Job[int]) -> None:
        """Set the outcome just before the job is resolved."""
        job.succeed(1)
        resolve(job)

    def run_jobs(jobs: Jobs) -> None:
        free.wait(60)

    async with run_thread(run_jobs) as thread, asyncio.timeout(60):
        monkeypatch.setattr(Job, "resolve", succeed_late)
        with pytest.raises(Unavailable):
            await thread.submit(make_operation(1))
        free.set()


async def test_an_unexpected_exception_fails_only_the_jobs_of_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    reported = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda args: reported.set())

    def run_jobs(jobs: Jobs) -> None:
        run_each(jobs)
        if any(job.value == 13 for job in jobs):
            raise ZeroDivisionError

    async with run_thread(run_jobs) as thread, asyncio.timeout(60):
        assert await thread.submit(make_operation(1)) == 1
        outcomes = await asyncio.gather(
            thread.submit(make_operation(12)), thread.submit(make_operation(13)), return_exceptions=True
        )
        assert [type(each) for each in outcomes] == [Internal, Internal], "also a job that had finished"
        assert await thread.submit(make_operation(2)) == 2
    assert await asyncio.to_thread(reported.wait, 60), "the exception reaches threading.excepthook"


async def test_a_closed_thread_accepts_no_jobs() -> None:
    async with run_thread(run_each) as thread:
        closing = asyncio.ensure_future(thread.close())
        await asyncio.sleep(0)
        with pytest.raises(Unavailable):
            thread.submit(make_operation(1))
        await closing


async def test_the_event_loop_runs_while_a_thread_closes() -> None:
    free, was_freed = threading.Event(), []

    def run_when_free(jobs: Jobs) -> None:
        was_freed.append(free.wait(5))
        run_each(jobs)

    async with run_thread(run_when_free) as thread:
        last = thread.submit(make_operation(1))
        closing = asyncio.ensure_future(thread.close())
        await asyncio.sleep(0)
        free.set()
        await closing
    assert (await last, was_freed) == (1, [True])


async def test_jobs_after_a_batch_of_several_wait_for_those_of_the_next_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_thread, "MAX_GATHER_SECONDS", 60.0)
    sizes: list[int] = []

    def run_jobs(jobs: Jobs) -> None:
        sizes.append(len(jobs))
        run_each(jobs)

    async def later(turns: int) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        return await thread.submit(make_operation(turns))

    async with run_thread(run_jobs, batch_turns=4) as thread, asyncio.timeout(60):
        await asyncio.gather(thread.submit(make_operation(1)), thread.submit(make_operation(2)))
        assert await asyncio.gather(*map(later, range(4))) == [0, 1, 2, 3]
    assert sizes == [2, 4]


async def test_a_single_job_does_not_wait_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_thread, "MAX_GATHER_SECONDS", 60.0)
    async with run_thread(run_each, batch_turns=10**9) as thread, asyncio.timeout(60):
        assert [await thread.submit(make_operation(value)) for value in range(3)] == [0, 1, 2]


@pytest.mark.parametrize(("longest", "jobs"), [(0.01, 1), (60.0, 16)])
async def test_jobs_are_not_gathered_beyond_the_time_limit_or_a_full_batch(
    monkeypatch: pytest.MonkeyPatch, longest: float, jobs: int
) -> None:
    monkeypatch.setattr(writer_thread, "MAX_GATHER_SECONDS", longest)
    async with run_thread(run_each, batch_turns=10**9) as thread, asyncio.timeout(60):
        for count in (2, jobs):
            assert len(await asyncio.gather(*(thread.submit(make_operation(value)) for value in range(count)))) == count


async def test_a_closing_thread_does_not_wait_for_more_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_thread, "MAX_GATHER_SECONDS", 60.0)
    async with run_thread(run_each, batch_turns=10**9) as thread:
        await asyncio.gather(thread.submit(make_operation(1)), thread.submit(make_operation(2)))
        last = thread.submit(make_operation(3))
    assert await last == 3


async def test_an_idle_thread_runs_its_idle_function_until_it_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_thread, "IDLE", 0.01)
    done = threading.Event()
    attempts: list[int] = []

    def idle() -> bool:
        attempts.append(1)
        if len(attempts) == 3:
            done.set()
        return len(attempts) == 3

    async with run_thread(run_each, idle) as thread:
        assert await thread.submit(make_operation(1)) == 1
        assert await asyncio.to_thread(done.wait, 60)
    assert len(attempts) == 3, "it runs until it succeeds and not again without new jobs"


async def test_jobs_of_one_loop_turn_run_together() -> None:
    sizes: list[int] = []

    def run_jobs(jobs: Jobs) -> None:
        sizes.append(len(jobs))
        run_each(jobs)

    async def one(value: int) -> int:
        return await thread.submit(make_operation(value))

    async with run_thread(run_jobs) as thread, asyncio.timeout(60):
        assert await asyncio.gather(*map(one, range(20))) == [*range(20)]
    assert sizes == [20]

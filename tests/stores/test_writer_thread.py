"""The thread behind a store: order, company, and what happens when it hangs or breaks."""

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from antiphon.errors import Internal, Unavailable
from antiphon.stores import writer_thread
from antiphon.stores.sql.operation import Operation
from antiphon.stores.writer_thread import Job, Jobs, Worker

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def working(
    carry_out: Callable[[Jobs], None], idle: Callable[[], bool] | None = None, patience: int = 0
) -> AsyncIterator[Worker]:
    made = Worker("test", carry_out, idle, patience)
    try:
        yield made
    finally:
        async with asyncio.timeout(60):
            await made.close()


def number(value: int) -> Callable[[], Operation[int]]:
    def operation() -> Operation[int]:
        yield from ()
        return value

    return operation


def answer(jobs: Jobs) -> None:
    for job in jobs:
        try:
            next(job.make())
        except StopIteration as stop:
            job.give(stop.value)


async def test_jobs_are_carried_out_in_order_and_those_that_wait_together() -> None:
    sizes: list[int] = []
    free = threading.Event()

    def carry_out(jobs: Jobs) -> None:
        sizes.append(len(jobs))
        free.wait(60)
        answer(jobs)

    async with working(carry_out) as made, asyncio.timeout(60):
        futures = [made.submit(number(value)) for value in range(100)]
        free.set()
        assert await asyncio.gather(*futures) == list(range(100))
    assert sum(sizes) == 100
    assert len(sizes) <= 3


async def test_a_thread_that_waits_keeps_nothing_of_what_it_did() -> None:
    """It may be large, and the next job may come in an hour."""
    gone = threading.Event()
    async with working(answer) as made, asyncio.timeout(60):
        make = number(1)
        weakref.finalize(make, gone.set)
        asked = made.submit(make)
        del make
        assert await asked == 1
        assert await asyncio.to_thread(gone.wait, 60)


async def test_nobody_waits_for_a_thread_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_thread, "GLANCE", 0.01)
    carried: list[int] = []
    free = threading.Event()

    def carry_out(jobs: Jobs) -> None:
        carried.append(len(jobs))
        free.wait(60)
        answer(jobs)

    async with working(carry_out) as made, asyncio.timeout(60):
        first = made.submit(number(1))
        while not carried:  # noqa: ASYNC110  # the thread says so
            await asyncio.sleep(0)
        with monkeypatch.context() as hasty:
            hasty.setattr(writer_thread, "DEADLINE", 0.05)
            second = made.submit(number(2))
            for future in (first, second):
                with pytest.raises(Unavailable):
                    await future
        free.set()
        assert await made.submit(number(3)) == 3
    assert sum(carried) == 2, "what was given up before it was begun is not done"


async def test_what_a_thread_says_too_late_is_not_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be anywhere between its first word and the commit when it is given up."""
    monkeypatch.setattr(writer_thread, "GLANCE", 0.01)
    monkeypatch.setattr(writer_thread, "DEADLINE", 0.05)
    free, tell = threading.Event(), Job.tell

    def told_late(job: Job[int]) -> None:
        """As if the thread had its turn just before."""
        job.give(1)
        tell(job)

    def carry_out(jobs: Jobs) -> None:
        free.wait(60)

    async with working(carry_out) as made, asyncio.timeout(60):
        monkeypatch.setattr(Job, "tell", told_late)
        with pytest.raises(Unavailable):
            await made.submit(number(1))
        free.set()


async def test_a_defect_ends_the_jobs_it_was_among_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    told = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda args: told.set())

    def carry_out(jobs: Jobs) -> None:
        answer(jobs)
        if any(job.value == 13 for job in jobs):
            raise ZeroDivisionError

    async with working(carry_out) as made, asyncio.timeout(60):
        assert await made.submit(number(1)) == 1
        outcomes = await asyncio.gather(made.submit(number(12)), made.submit(number(13)), return_exceptions=True)
        assert [type(each) for each in outcomes] == [Internal, Internal], "also what may have been done before"
        assert await made.submit(number(2)) == 2
    assert await asyncio.to_thread(told.wait, 60), "and is seen by whoever watches threads"


async def test_a_closed_worker_takes_nothing_any_more() -> None:
    async with working(answer) as made:
        closing = asyncio.ensure_future(made.close())
        await asyncio.sleep(0)
        with pytest.raises(Unavailable):
            made.submit(number(1))
        await closing


async def test_jobs_in_company_wait_for_those_of_the_next_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_thread, "LONGEST", 60.0)
    sizes: list[int] = []

    def carry_out(jobs: Jobs) -> None:
        sizes.append(len(jobs))
        answer(jobs)

    async def later(turns: int) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        return await made.submit(number(turns))

    async with working(carry_out, patience=4) as made, asyncio.timeout(60):
        await asyncio.gather(made.submit(number(1)), made.submit(number(2)))
        assert await asyncio.gather(*map(later, range(4))) == [0, 1, 2, 3]
    assert sizes == [2, 4]


async def test_who_is_alone_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_thread, "LONGEST", 60.0)
    async with working(answer, patience=10**9) as made, asyncio.timeout(60):
        assert [await made.submit(number(value)) for value in range(3)] == [0, 1, 2]


@pytest.mark.parametrize(("longest", "jobs"), [(0.01, 1), (60.0, 16)])
async def test_jobs_wait_neither_long_nor_when_there_are_enough(
    monkeypatch: pytest.MonkeyPatch, longest: float, jobs: int
) -> None:
    monkeypatch.setattr(writer_thread, "LONGEST", longest)
    async with working(answer, patience=10**9) as made, asyncio.timeout(60):
        for count in (2, jobs):
            assert len(await asyncio.gather(*(made.submit(number(value)) for value in range(count)))) == count


async def test_a_worker_that_closes_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_thread, "LONGEST", 60.0)
    async with working(answer, patience=10**9) as made:
        await asyncio.gather(made.submit(number(1)), made.submit(number(2)))
        last = made.submit(number(3))
    assert await last == 3


async def test_a_quiet_thread_puts_its_things_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_thread, "IDLE", 0.01)
    done = threading.Event()
    attempts: list[int] = []

    def idle() -> bool:
        attempts.append(1)
        if len(attempts) == 3:
            done.set()
        return len(attempts) == 3

    async with working(answer, idle) as made:
        assert await made.submit(number(1)) == 1
        assert await asyncio.to_thread(done.wait, 60)
    assert len(attempts) == 3, "until it succeeded, and not again without new work"


async def test_what_a_turn_of_the_loop_brings_is_carried_out_together() -> None:
    sizes: list[int] = []

    def carry_out(jobs: Jobs) -> None:
        sizes.append(len(jobs))
        answer(jobs)

    async def one(value: int) -> int:
        return await made.submit(number(value))

    async with working(carry_out) as made, asyncio.timeout(60):
        assert await asyncio.gather(*map(one, range(20))) == [*range(20)]
    assert sizes == [20]

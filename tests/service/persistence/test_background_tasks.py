import asyncio

import pytest

from antiphon.errors import Unavailable
from antiphon.service.persistence.background_tasks import Tasks
from antiphon.service.persistence.live_writer import insist
from antiphon.service.persistence.notifications import Words

pytestmark = pytest.mark.anyio


async def test_a_defect_in_a_task_is_logged_and_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    tasks, go_on, done = Tasks(), asyncio.Event(), asyncio.Event()

    async def broken() -> None:
        raise ZeroDivisionError("secret")

    async def sound() -> None:
        await go_on.wait()
        done.set()

    tasks.start(broken())
    tasks.start(sound())
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(tasks) == 1
    assert "secret" in caplog.text
    go_on.set()
    await tasks.settled()
    assert done.is_set()


async def test_closing_gives_tasks_their_time_and_then_cancels_them() -> None:
    tasks, ended = Tasks(), []

    async def work(name: str, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
            ended.append(name)
        except asyncio.CancelledError:
            ended.append(f"{name} cancelled")
            raise

    tasks.start(work("short", 0.0))
    tasks.start(work("long", 60.0))
    async with asyncio.timeout(30):
        await tasks.close(grace=0.05)
    assert ended == ["short", "long cancelled"]
    assert len(tasks) == 0


async def test_who_insists_is_answered_as_soon_as_there_is_an_answer() -> None:
    asked = 0

    async def ask() -> str:
        nonlocal asked
        asked += 1
        if asked < 3:
            raise Unavailable("Not yet.")
        return "yes"

    async with asyncio.timeout(30):
        assert await insist(ask, 5.0) == "yes"
    assert asked == 3


async def test_who_insists_gives_up_in_time_and_who_has_none_asks_once() -> None:
    asked = 0

    async def ask() -> None:
        nonlocal asked
        asked += 1
        raise Unavailable("No.")

    with pytest.raises(Unavailable):
        await insist(ask, 0.0)
    assert asked == 1
    for seconds in (0.05, 1.0, 5.0):  # a busy machine may be too late for a second time in the first of them
        before = asked
        async with asyncio.timeout(30):
            with pytest.raises(Unavailable):
                await insist(ask, seconds)
        if asked > before + 1:
            return
    raise AssertionError("It was asked once each time.")


async def test_a_word_reaches_those_who_listen_and_nobody_listens_for_ever() -> None:
    words = Words()
    with words.of("a") as ear, words.of("b") as other, words.of("a") as third:
        words.hear("a")
        async with asyncio.timeout(30):
            await ear.listen(60.0)
            await third.listen(60.0)
            await other.listen(0.01)  # it heard nothing, and is back all the same
        ear.forget()
        words.close()
        async with asyncio.timeout(30):
            await ear.listen(60.0)
    assert not words._ears

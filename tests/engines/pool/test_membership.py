"""Engines join and leave a pool that works: nothing that runs is cut off."""

import asyncio

import pytest

from antiphon.errors import StartupError, Unavailable
from tests.engines.pool.members import Part, ask, pooled, seat, seats, until, work

pytestmark = pytest.mark.anyio


async def test_a_new_one_is_opened_and_gets_work() -> None:
    old, new = Part("a"), Part("b")
    async with pooled(old) as pool:
        change = await pool.renew(seats(old, new))
        assert (change.joined, change.left) == (["b"], [])
        assert (old.opened, new.opened, old.closed) == (1, 1, 0), "who stays is not opened again"
        for number in range(20):
            await ask(pool, work(f"{number}"))
        assert new.requests
    assert (old.closed, new.closed) == (1, 1)


async def test_one_that_leaves_ends_what_it_does_gets_nothing_new_and_is_closed() -> None:
    old, new = Part("a"), Part("b")
    async with pooled(old) as pool:
        (gate,) = old.held()
        running = asyncio.ensure_future(ask(pool))
        await until(lambda: old.running == 1)
        change = await pool.renew(seats(new))
        assert (change.joined, change.left) == (["b"], ["a"])
        assert [(state.name, state.draining) for state in pool.states()] == [("b", False), ("a", True)]
        assert (await ask(pool)).error is None
        assert (old.requests, new.requests, old.closed) == (1, 1, 0)
        gate.open()
        assert (await running).error is None
        await until(lambda: [state.name for state in pool.states()] == ["b"])
        assert old.closed == 1


async def test_one_that_leaves_has_only_so_much_time_left() -> None:
    old = Part("a")
    async with pooled(old, grace=0.05) as pool:
        old.held()
        running = asyncio.ensure_future(ask(pool))
        await until(lambda: old.running == 1)
        await pool.renew(seats(Part("b")))
        async with asyncio.timeout(30):
            while not old.closed:  # noqa: ASYNC110 - the test's own engine says nothing when it is closed
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait([running])


async def test_other_settings_make_another_engine_and_the_same_ones_the_same() -> None:
    old, new = Part("a"), Part("a2")
    given = seat(old, "a", settings={"idle": 1})
    async with pooled(old, settings={"idle": 1}) as pool:
        await pool.renew([given])
        assert (old.opened, old.closed) == (1, 0)
        change = await pool.renew([seat(new, "a", settings={"idle": 2})])
        assert (change.joined, change.left) == (["a"], ["a"])
        await until(lambda: old.closed == 1)
        assert (await ask(pool)).error is None
        assert new.requests == 1


async def test_one_can_be_drained_and_taken_back() -> None:
    one, two = Part("a"), Part("b")
    async with pooled(one, two) as pool:
        await pool.renew([seat(one, "a", drain=True), seat(two, "b")])
        for number in range(10):
            assert (await ask(pool, work(f"{number}"))).error is None
        assert (one.requests, two.requests, one.closed) == (0, 10, 0)
        await pool.renew([seat(one, "a", drain=True), seat(two, "b", drain=True)])
        assert isinstance((await ask(pool)).error, Unavailable)
        await pool.renew(seats(one, two))
        assert (await ask(pool)).error is None


async def test_if_one_of_the_new_ones_cannot_be_opened_nothing_changes() -> None:
    class Broken(Part):
        async def open(self) -> None:
            raise StartupError("It does not accept the key.")

    old, well, broken = Part("a"), Part("b"), Broken("c")
    async with pooled(old) as pool:
        with pytest.raises(StartupError, match="key"):
            await pool.renew(seats(well, broken))
        assert [member.name for member in pool.members()] == ["a"]
        assert (well.closed, broken.closed, old.closed) == (1, 1, 0)
        assert (await ask(pool)).error is None


async def test_a_work_that_waits_for_a_member_that_leaves_moves_on_if_it_fails() -> None:
    old, new = Part("a"), Part("b")
    async with pooled(old) as pool:
        old.answers()
        gate = old.holds()
        old.fails(Unavailable("It is gone.", retry_after=1.0))
        running = asyncio.ensure_future(ask(pool))
        await until(lambda: old.running == 1)
        await pool.renew(seats(old, new))
        gate.open()
        assert (await running).error is None
        assert new.requests == 1


async def test_closing_the_pool_closes_also_those_that_are_leaving() -> None:
    old, new = Part("a"), Part("b")
    async with pooled(old) as pool:
        old.held()
        running = asyncio.ensure_future(ask(pool))
        await until(lambda: old.running == 1)
        await pool.renew(seats(new))
        running.cancel()
        await asyncio.wait([running])
    assert (old.closed, new.closed) == (1, 1)

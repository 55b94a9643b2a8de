"""Engines join and leave a running pool without interrupting running requests."""

import asyncio

import pytest

from antiphon.errors import StartupError, Unavailable
from tests.engines.pool.members import (
    FakeMember,
    make_request,
    make_spec,
    make_specs,
    open_pool,
    run_generation,
    wait_until,
)

pytestmark = pytest.mark.anyio


async def test_a_new_member_is_opened_and_receives_requests() -> None:
    old, new = FakeMember("a"), FakeMember("b")
    async with open_pool(old) as pool:
        change = await pool.update_members(make_specs(old, new))
        assert change == (["b"], [])
        assert (old.opened, new.opened, old.closed) == (1, 1, 0), "a member that stays is not opened again"
        for number in range(20):
            await run_generation(pool, make_request(f"{number}"))
        assert new.requests
    assert (old.closed, new.closed) == (1, 1)


async def test_a_removed_member_finishes_its_requests_gets_no_new_ones_and_is_closed() -> None:
    old, new = FakeMember("a"), FakeMember("b")
    async with open_pool(old) as pool:
        (gate,) = old.hold_answers()
        running = asyncio.ensure_future(run_generation(pool))
        await wait_until(lambda: old.running == 1)
        change = await pool.update_members(make_specs(new))
        assert change == (["b"], ["a"])
        assert [(state.name, state.draining) for state in pool.statuses()] == [("b", False), ("a", True)]
        assert (await run_generation(pool)).error is None
        assert (old.requests, new.requests, old.closed) == (1, 1, 0)
        gate.open()
        assert (await running).error is None
        await wait_until(lambda: [state.name for state in pool.statuses()] == ["b"])
        assert old.closed == 1


async def test_a_removed_member_is_closed_after_the_grace_period() -> None:
    old = FakeMember("a")
    async with open_pool(old, grace=0.05) as pool:
        old.hold_answers()
        running = asyncio.ensure_future(run_generation(pool))
        await wait_until(lambda: old.running == 1)
        await pool.update_members(make_specs(FakeMember("b")))
        async with asyncio.timeout(30):
            while not old.closed:  # noqa: ASYNC110 - the fake engine signals no event when it is closed
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait([running])


async def test_changed_settings_replace_a_member_and_equal_settings_keep_it() -> None:
    old, new = FakeMember("a"), FakeMember("a2")
    spec = make_spec(old, "a", settings={"idle": 1})
    async with open_pool(old, settings={"idle": 1}) as pool:
        await pool.update_members([spec])
        assert (old.opened, old.closed) == (1, 0)
        change = await pool.update_members([make_spec(new, "a", settings={"idle": 2})])
        assert change == (["a"], ["a"])
        await wait_until(lambda: old.closed == 1)
        assert (await run_generation(pool)).error is None
        assert new.requests == 1


async def test_a_member_can_be_drained_and_restored() -> None:
    one, two = FakeMember("a"), FakeMember("b")
    async with open_pool(one, two) as pool:
        await pool.update_members([make_spec(one, "a", drain=True), make_spec(two, "b")])
        for number in range(10):
            assert (await run_generation(pool, make_request(f"{number}"))).error is None
        assert (one.requests, two.requests, one.closed) == (0, 10, 0)
        await pool.update_members([make_spec(one, "a", drain=True), make_spec(two, "b", drain=True)])
        assert isinstance((await run_generation(pool)).error, Unavailable)
        await pool.update_members(make_specs(one, two))
        assert (await run_generation(pool)).error is None


async def test_a_new_member_that_cannot_be_opened_leaves_the_pool_unchanged() -> None:
    class Broken(FakeMember):
        async def open(self) -> None:
            raise StartupError("It rejected the key.")

    old, well, broken = FakeMember("a"), FakeMember("b"), Broken("c")
    async with open_pool(old) as pool:
        with pytest.raises(StartupError, match="key"):
            await pool.update_members(make_specs(well, broken))
        assert [member.name for member in pool.members()] == ["a"]
        assert (well.closed, broken.closed, old.closed) == (1, 1, 0)
        assert (await run_generation(pool)).error is None


async def test_a_failing_request_moves_to_a_member_that_joined_after_its_start() -> None:
    old, new = FakeMember("a"), FakeMember("b")
    async with open_pool(old) as pool:
        old.answers()
        gate = old.holds()
        old.fails(Unavailable("It is gone.", retry_after=1.0))
        running = asyncio.ensure_future(run_generation(pool))
        await wait_until(lambda: old.running == 1)
        await pool.update_members(make_specs(old, new))
        gate.open()
        assert (await running).error is None
        assert new.requests == 1


async def test_closing_the_pool_also_closes_members_that_are_leaving() -> None:
    old, new = FakeMember("a"), FakeMember("b")
    async with open_pool(old) as pool:
        old.hold_answers()
        running = asyncio.ensure_future(run_generation(pool))
        await wait_until(lambda: old.running == 1)
        await pool.update_members(make_specs(new))
        running.cancel()
        await asyncio.wait([running])
    assert (old.closed, new.closed) == (1, 1)

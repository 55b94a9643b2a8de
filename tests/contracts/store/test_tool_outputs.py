"""What every store keeps of tool outputs: each call is answered once, while its response runs, and nothing is left."""

import asyncio

import pytest

from antiphon.stores.base import Bounds, Lost, Store
from tests.stores.rows import TENANT, Clock, end, kept, owner, response, running

pytestmark = pytest.mark.anyio

CALLS = ["call_a", "call_b"]


async def waiting(store: Store, clock: Clock) -> str:
    """The id of a response that waits for both calls."""
    new = await running(store, clock, background=True)
    await store.start(TENANT, new.id, 1)
    await store.expect_outputs(TENANT, new.id, 1, CALLS)
    return new.id


@pytest.mark.shows("A2.3")
async def test_outputs_are_taken_one_by_one(store: Store, another: Store, clock: Clock) -> None:
    name = await waiting(store, clock)
    assert await another.outputs(TENANT, name) == {"call_a": None, "call_b": None}
    assert await another.submit_output(TENANT, name, "call_b", b'"\0sunny"') == "taken"
    assert await store.outputs(TENANT, name) == {"call_a": None, "call_b": b'"\0sunny"'}
    assert await store.submit_output(TENANT, name, "call_a", b"") == "taken"
    assert await another.outputs(TENANT, name) == {"call_a": b"", "call_b": b'"\0sunny"'}


@pytest.mark.shows("A2.4")
async def test_the_first_output_of_a_call_counts(store: Store, another: Store, clock: Clock) -> None:
    name = await waiting(store, clock)
    async with asyncio.timeout(60):
        said = await asyncio.gather(
            *(
                (store if number % 2 else another).submit_output(TENANT, name, "call_a", b"%d" % number)
                for number in range(20)
            )
        )
    assert sorted(said) == [*["answered"] * 19, "taken"]
    assert (await store.outputs(TENANT, name))["call_a"] == b"%d" % said.index("taken")


@pytest.mark.shows("A2.4")
@pytest.mark.parametrize("call", ["call_c", "", "call_\0", "call_ü", "x" * 5000])
async def test_a_call_that_nobody_waits_for_is_not_pending(store: Store, clock: Clock, call: str) -> None:
    name = await waiting(store, clock)
    assert await store.submit_output(TENANT, name, call, b"1") == "not pending"
    assert await store.outputs(TENANT, name) == {"call_a": None, "call_b": None}


@pytest.mark.shows("A2.4")
async def test_a_response_waits_neither_before_it_says_so_nor_when_all_is_there(store: Store, clock: Clock) -> None:
    new = await running(store, clock)
    assert await store.submit_output(TENANT, new.id, "call_a", b"1") == "not waiting"
    await store.expect_outputs(TENANT, new.id, 1, ["call_a"])
    assert await store.submit_output(TENANT, new.id, "call_a", b"1") == "taken"
    assert await store.submit_output(TENANT, new.id, "call_b", b"1") == "not waiting"
    await store.expect_outputs(TENANT, new.id, 1, ["call_b"])
    assert await store.submit_output(TENANT, new.id, "call_a", b"2") == "answered"
    assert await store.outputs(TENANT, new.id) == {"call_a": b"1", "call_b": None}


@pytest.mark.shows("A2.5")
async def test_what_is_not_there_is_unknown(store: Store, clock: Clock) -> None:
    name = await waiting(store, clock)
    for tenant, response_id in (("another", name), (TENANT, "resp_never"), (TENANT, "\0"), (TENANT, "")):
        assert await store.submit_output(tenant, response_id, "call_a", b"1") == "unknown"
        assert await store.outputs(tenant, response_id) == {}
    assert await store.outputs(TENANT, name) == {"call_a": None, "call_b": None}


async def test_what_came_before_a_change_of_owners_is_there(store: Store, another: Store, clock: Clock) -> None:
    name = await waiting(store, clock)
    await store.submit_output(TENANT, name, "call_a", b"early")
    assert await another.take(TENANT, name, owner(clock, "another"))
    assert await store.submit_output(TENANT, name, "call_b", b"between") == "taken"
    await another.expect_outputs(TENANT, name, 2, CALLS)
    assert await another.outputs(TENANT, name) == {"call_a": b"early", "call_b": b"between"}


async def test_a_former_owner_expects_nothing_any_more(store: Store, clock: Clock) -> None:
    new = await running(store, clock)
    await store.take(TENANT, new.id, owner(clock, "another"))
    for tenant, response_id, fence in ((TENANT, new.id, 1), ("another", new.id, 2), (TENANT, "resp_never", 1)):
        with pytest.raises(Lost):
            await store.expect_outputs(tenant, response_id, fence, CALLS)
    assert await store.outputs(TENANT, new.id) == {}


async def test_a_response_that_has_ended_waits_for_nothing_and_keeps_nothing(store: Store, clock: Clock) -> None:
    new = await running(store, clock)
    await store.expect_outputs(TENANT, new.id, 1, CALLS)
    await store.submit_output(TENANT, new.id, "call_a", b"secret")
    await store.finish(TENANT, end(clock, new))
    assert await store.outputs(TENANT, new.id) == {}
    assert await store.submit_output(TENANT, new.id, "call_b", b"late") == "ended"
    with pytest.raises(Lost):
        await store.expect_outputs(TENANT, new.id, 1, CALLS)
    assert await store.outputs(TENANT, new.id) == {}


@pytest.mark.parametrize("continued", [False, True])
async def test_a_response_that_is_deleted_keeps_nothing(store: Store, clock: Clock, continued: bool) -> None:
    new = await running(store, clock)
    await store.expect_outputs(TENANT, new.id, 1, CALLS)
    await store.submit_output(TENANT, new.id, "call_a", b"secret")
    if continued:
        await store.begin(TENANT, response(clock, previous=new.id), owner(clock))
    assert await store.delete(TENANT, new.id)
    assert await store.outputs(TENANT, new.id) == {}
    assert await store.submit_output(TENANT, new.id, "call_b", b"late") == "unknown"
    with pytest.raises(Lost):
        await store.expect_outputs(TENANT, new.id, 1, CALLS)


async def test_a_released_response_still_waits(store: Store, clock: Clock) -> None:
    name = await waiting(store, clock)
    await store.release(TENANT, name, 1)
    assert await store.submit_output(TENANT, name, "call_a", b"1") == "taken"
    [claimed] = await store.claim(owner(clock, "another"), 10)
    await store.expect_outputs(TENANT, name, claimed.row.fence, CALLS)
    assert await store.outputs(TENANT, name) == {"call_a": b"1", "call_b": None}


async def test_a_sweep_leaves_what_waits_alone(store: Store, clock: Clock) -> None:
    name = await waiting(store, clock)
    await kept(store, clock)
    clock.now += 10_000_000
    await store.sweep(Bounds(entries=0, bytes=0, conversations=0))
    assert await store.submit_output(TENANT, name, "call_a", b"1") == "taken"

"""Contract suite of stores: tool outputs. Each call is answered once, while its response runs, and no output outlives
the response.

Covers `stores/sql/running_responses.py`.
"""

import asyncio

import pytest

from antiphon.errors import InvalidValue
from antiphon.stores.base import OwnershipLost, Page, RetentionBounds
from antiphon.stores.sql.store import Store
from antiphon.testing.rows.response_rows import (
    TENANT,
    Clock,
    begin_response,
    make_claim,
    make_end,
    make_response,
    store_response,
)
from antiphon.testing.suite import shows

CALLS = ["call_a", "call_b"]


async def make_waiting_response(store: Store, clock: Clock) -> str:
    """Return the id of a response that waits for the outputs of `CALLS`."""
    new = await begin_response(store, clock, background=True)
    await store.start(TENANT, new.id, 1)
    await store.expect_outputs(TENANT, new.id, 1, CALLS)
    return new.id


@shows("A2.3")
async def test_outputs_are_accepted_one_by_one(store: Store, other_store: Store, clock: Clock) -> None:
    name = await make_waiting_response(store, clock)
    assert await other_store.outputs(TENANT, name) == {"call_a": None, "call_b": None}
    assert await other_store.submit_output(TENANT, name, "call_b", b'"\0sunny"') == "taken"
    assert await store.outputs(TENANT, name) == {"call_a": None, "call_b": b'"\0sunny"'}
    assert await store.submit_output(TENANT, name, "call_a", b"") == "taken"
    assert await other_store.outputs(TENANT, name) == {"call_a": b"", "call_b": b'"\0sunny"'}


@shows("A2.4")
async def test_only_the_first_output_of_a_call_is_accepted(store: Store, other_store: Store, clock: Clock) -> None:
    name = await make_waiting_response(store, clock)
    async with asyncio.timeout(60):
        results = await asyncio.gather(
            *(
                (store if number % 2 else other_store).submit_output(TENANT, name, "call_a", b"%d" % number)
                for number in range(20)
            )
        )
    assert sorted(results) == [*["answered"] * 19, "taken"]
    assert (await store.outputs(TENANT, name))["call_a"] == b"%d" % results.index("taken")


@shows("A2.4")
@pytest.mark.parametrize("call", ["call_c", "", "call_\0", "call_ü", "x" * 5000])
async def test_an_output_of_an_unexpected_call_is_not_pending(store: Store, clock: Clock, call: str) -> None:
    name = await make_waiting_response(store, clock)
    assert await store.submit_output(TENANT, name, call, b"1") == "not pending"
    assert await store.outputs(TENANT, name) == {"call_a": None, "call_b": None}


@shows("A2.4")
async def test_a_response_waits_only_while_expected_outputs_are_missing(store: Store, clock: Clock) -> None:
    new = await begin_response(store, clock)
    assert await store.submit_output(TENANT, new.id, "call_a", b"1") == "not waiting"
    await store.expect_outputs(TENANT, new.id, 1, ["call_a"])
    assert await store.submit_output(TENANT, new.id, "call_a", b"1") == "taken"
    assert await store.submit_output(TENANT, new.id, "call_b", b"1") == "not waiting"
    await store.expect_outputs(TENANT, new.id, 1, ["call_b"])
    assert await store.submit_output(TENANT, new.id, "call_a", b"2") == "answered"
    assert await store.outputs(TENANT, new.id) == {"call_a": b"1", "call_b": None}


@shows("A2.5")
async def test_an_output_for_a_missing_response_is_unknown(store: Store, clock: Clock) -> None:
    name = await make_waiting_response(store, clock)
    for tenant, response_id in (("another", name), (TENANT, "resp_never"), (TENANT, "\0"), (TENANT, "")):
        assert await store.submit_output(tenant, response_id, "call_a", b"1") == "unknown"
        assert await store.outputs(tenant, response_id) == {}
    assert await store.outputs(TENANT, name) == {"call_a": None, "call_b": None}


async def test_outputs_survive_a_change_of_owner(store: Store, other_store: Store, clock: Clock) -> None:
    name = await make_waiting_response(store, clock)
    await store.submit_output(TENANT, name, "call_a", b"early")
    assert await other_store.take(TENANT, name, make_claim(clock, "another"))
    assert await store.submit_output(TENANT, name, "call_b", b"between") == "taken"
    await other_store.expect_outputs(TENANT, name, 2, CALLS)
    assert await other_store.outputs(TENANT, name) == {"call_a": b"early", "call_b": b"between"}


async def test_a_former_owner_cannot_expect_outputs(store: Store, clock: Clock) -> None:
    new = await begin_response(store, clock)
    await store.take(TENANT, new.id, make_claim(clock, "another"))
    for tenant, response_id, fence in ((TENANT, new.id, 1), ("another", new.id, 2), (TENANT, "resp_never", 1)):
        with pytest.raises(OwnershipLost):
            await store.expect_outputs(tenant, response_id, fence, CALLS)
    assert await store.outputs(TENANT, new.id) == {}


async def test_an_ended_response_accepts_and_retains_no_outputs(store: Store, clock: Clock) -> None:
    new = await begin_response(store, clock)
    await store.expect_outputs(TENANT, new.id, 1, CALLS)
    await store.submit_output(TENANT, new.id, "call_a", b"secret")
    await store.finish(TENANT, make_end(clock, new))
    assert await store.outputs(TENANT, new.id) == {}
    assert await store.submit_output(TENANT, new.id, "call_b", b"late") == "ended"
    with pytest.raises(OwnershipLost):
        await store.expect_outputs(TENANT, new.id, 1, CALLS)
    assert await store.outputs(TENANT, new.id) == {}


@pytest.mark.parametrize("continued", [False, True])
async def test_a_deleted_response_retains_no_outputs(store: Store, clock: Clock, continued: bool) -> None:
    new = await begin_response(store, clock)
    await store.expect_outputs(TENANT, new.id, 1, CALLS)
    await store.submit_output(TENANT, new.id, "call_a", b"secret")
    if continued:
        await store.begin(TENANT, make_response(clock, previous=new.id), make_claim(clock))
    assert await store.delete(TENANT, new.id)
    assert await store.outputs(TENANT, new.id) == {}
    assert await store.submit_output(TENANT, new.id, "call_b", b"late") == "unknown"
    with pytest.raises(OwnershipLost):
        await store.expect_outputs(TENANT, new.id, 1, CALLS)


async def test_a_released_response_still_waits(store: Store, clock: Clock) -> None:
    name = await make_waiting_response(store, clock)
    await store.release(TENANT, name, 1)
    assert await store.submit_output(TENANT, name, "call_a", b"1") == "taken"
    [claimed] = await store.claim(make_claim(clock, "another"), 10)
    await store.expect_outputs(TENANT, name, claimed.row.fence, CALLS)
    assert await store.outputs(TENANT, name) == {"call_a": b"1", "call_b": None}


async def test_a_sweep_does_not_remove_a_waiting_response(store: Store, clock: Clock) -> None:
    name = await make_waiting_response(store, clock)
    await store_response(store, clock)
    clock.now += 10_000_000
    await store.sweep(RetentionBounds(entries=0, bytes=0, conversations=0))
    assert await store.submit_output(TENANT, name, "call_a", b"1") == "taken"


async def test_waiting_responses_are_listed_while_a_call_is_pending(store: Store, clock: Clock) -> None:
    names = sorted([await make_waiting_response(store, clock) for _ in range(3)], reverse=True)
    assert await store.page_waiting(TENANT, None, 10, True) == Page(names, False)
    assert await store.page_waiting(TENANT, None, 2, True) == Page(names[:2], True)
    assert await store.page_waiting(TENANT, names[1], 2, True) == Page(names[2:], False)
    assert await store.page_waiting(TENANT, None, 2, False) == Page([names[2], names[1]], True)
    assert await store.page_waiting("another", None, 2, False) == Page([], False)
    await store.submit_output(TENANT, names[0], CALLS[0], b"{}")
    assert (await store.page_waiting(TENANT, None, 10, True)).rows == names
    await store.submit_output(TENANT, names[0], CALLS[1], b"{}")
    assert (await store.page_waiting(TENANT, None, 10, True)).rows == names[1:]
    with pytest.raises(InvalidValue) as refused:
        await store.page_waiting("another", names[0], 10, True)
    assert refused.value.param == "after"

"""Contract suite of stores: responses from their beginning to their end.

Covers `stores/base.py`, `stores/sql/deletion.py`, `stores/sql/keys.py`, `stores/sql/operation.py`,
`stores/sql/responses.py` and `stores/sql/store.py`.
"""

import asyncio

import pytest
from msgspec.structs import replace

from antiphon.errors import Busy, KeyReused, UnknownConversation, UnknownPrevious
from antiphon.ids import new_id
from antiphon.stores.base import NewResponse, OwnershipLost, StoredResponse
from antiphon.stores.sql.store import Store
from antiphon.testing.rows.response_rows import (
    PACKED_LOG,
    TENANT,
    TTL,
    Clock,
    begin_response,
    make_claim,
    make_end,
    make_inserting_end,
    make_key,
    make_response,
    store_conversation,
    store_response,
)
from antiphon.testing.suite import shows

MALFORMED_IDS = ["", "resp_1", "resp_\0", "resp_\ud800", "respé", "resp_' OR 1=1 --", "r" * 10_000]


def make_expected_row(new: NewResponse, **changes: object) -> StoredResponse:
    """Return the row as it is read right after `begin`, with changes."""
    begun = StoredResponse(
        id=new.id,
        status=new.status,
        background=new.background,
        created=new.created,
        deadline=new.deadline,
        previous=new.previous,
        conversation=new.conversation,
        request=new.request,
        response=new.response,
        packed_log=None,
        fence=1,
        attempts=1,
    )
    return replace(begun, **changes)


async def test_a_begun_response_is_read_as_written(store: Store, clock: Clock) -> None:
    first = await store_response(store, clock)
    new = make_response(clock, background=True, previous=first)
    assert await store.begin(TENANT, new, make_claim(clock)) is None
    assert await store.get(TENANT, new.id) == make_expected_row(new)


async def test_an_ended_response_is_read_as_written(store: Store, clock: Clock) -> None:
    new = await begin_response(store, clock)
    ended = make_end(clock, new)
    await store.finish(TENANT, ended)
    assert await store.get(TENANT, new.id) == make_expected_row(
        new, status="completed", response=ended.response, packed_log=PACKED_LOG
    )


async def test_a_response_that_was_never_begun_is_written_at_its_end(store: Store, clock: Clock) -> None:
    new = make_response(clock)
    ended = make_inserting_end(clock, new)
    await store.finish(TENANT, ended)
    expected = make_expected_row(new, status="completed", response=ended.response, packed_log=PACKED_LOG, fence=0)
    assert await store.get(TENANT, new.id) == expected
    await store.finish(TENANT, ended)
    assert await store.get(TENANT, new.id) == expected
    assert await store.tenants() == {TENANT: (1, len(new.request) + len(ended.response) + len(PACKED_LOG))}


async def test_a_queued_response_starts(store: Store, clock: Clock) -> None:
    new = await begin_response(store, clock, background=True)
    await store.start(TENANT, new.id, 1)
    assert await store.get(TENANT, new.id) == make_expected_row(new, status="in_progress")


async def test_a_second_end_changes_nothing(store: Store, clock: Clock) -> None:
    new = await begin_response(store, clock)
    await store.finish(TENANT, make_end(clock, new, text="one"))
    first, totals = await store.get(TENANT, new.id), await store.tenants()
    await store.finish(TENANT, replace(make_end(clock, new, text="another"), status="failed"))
    assert await store.get(TENANT, new.id) == first
    assert await store.tenants() == totals


@pytest.mark.parametrize("begun", [True, False])
async def test_a_replacing_end_overwrites_an_unconfirmed_end(store: Store, clock: Clock, begun: bool) -> None:
    new = await begin_response(store, clock) if begun else make_response(clock)
    first = make_end(clock, new, text="one") if begun else make_inserting_end(clock, new)
    await store.finish(TENANT, first)
    before = await store.tenants()
    replacement = replace(first, status="failed", response=b"another, and longer", replaces_unconfirmed=True)
    for _ in range(2):
        await store.finish(TENANT, replacement)
    found = await store.get(TENANT, new.id)
    assert found is not None
    assert (found.status, found.response) == ("failed", replacement.response)
    await store.finish(TENANT, first)  # delivered late
    assert await store.get(TENANT, new.id) == found
    grown = len(replacement.response) - len(first.response)
    assert await store.tenants() == {name: (rows, size + grown) for name, (rows, size) in before.items()}


@pytest.mark.parametrize("operation", ["start", "finish", "append", "release"])
async def test_operations_of_a_replaced_owner_raise_ownership_lost(store: Store, clock: Clock, operation: str) -> None:
    new = await begin_response(store, clock, background=True)
    taken = await store.take(TENANT, new.id, make_claim(clock, "another"))
    assert taken == make_expected_row(new, fence=2, attempts=2)
    with pytest.raises(OwnershipLost):
        await call_operation(store, clock, operation, new, 1)
    assert await store.get(TENANT, new.id) == taken
    assert await store.read(TENANT, new.id, -1) == []
    await call_operation(store, clock, operation, new, 2)


@pytest.mark.parametrize("operation", ["start", "append", "release"])
async def test_operations_after_the_end_raise_ownership_lost(store: Store, clock: Clock, operation: str) -> None:
    new = await begin_response(store, clock, background=True)
    await store.finish(TENANT, make_end(clock, new))
    with pytest.raises(OwnershipLost):
        await call_operation(store, clock, operation, new, 1)


@pytest.mark.parametrize("operation", ["start", "finish", "append", "release"])
async def test_operations_on_a_deleted_response_raise_ownership_lost(
    store: Store, clock: Clock, operation: str
) -> None:
    new = await begin_response(store, clock, background=True)
    assert await store.delete(TENANT, new.id)
    with pytest.raises(OwnershipLost):
        await call_operation(store, clock, operation, new, 1)
    assert await store.get(TENANT, new.id) is None
    assert await store.tenants() == {}


async def call_operation(store: Store, clock: Clock, operation: str, new: NewResponse, fence: int) -> None:
    match operation:
        case "start":
            await store.start(TENANT, new.id, fence)
        case "finish":
            await store.finish(TENANT, make_end(clock, new, fence))
        case "append":
            await store.append(TENANT, new.id, fence, 0, b"batch")
        case "release":
            await store.release(TENANT, new.id, fence)


async def test_the_end_drops_the_live_log(store: Store, clock: Clock) -> None:
    new = await begin_response(store, clock)
    await store.append(TENANT, new.id, 1, 0, b"batch")
    await store.finish(TENANT, make_end(clock, new))
    assert await store.read(TENANT, new.id, -1) == []


async def test_the_live_log_is_read_from_any_batch(store: Store, clock: Clock) -> None:
    new = await begin_response(store, clock)
    for number in range(12):
        await store.append(TENANT, new.id, 1, number, b"%d" % number)
        await store.append(TENANT, new.id, 1, number, b"again")
    for after in range(-1, 13):
        assert await store.read(TENANT, new.id, after) == [b"%d" % number for number in range(after + 1, 12)]


@shows("B.10")
async def test_an_invisible_response_cannot_be_continued(store: Store, clock: Clock) -> None:
    deleted, foreign, expired = (
        await store_response(store, clock),
        await store_response(store, clock, tenant="other"),
        make_response(clock),
    )
    await store.delete(TENANT, deleted)
    await store.finish(TENANT, make_inserting_end(clock, expired, clock() + 1))
    clock.now += 1
    totals = await store.tenants()
    for previous in (deleted, foreign, expired.id, new_id("resp"), *MALFORMED_IDS):
        new = make_response(clock, previous=previous)
        with pytest.raises(UnknownPrevious) as one:
            await store.begin(TENANT, new, make_claim(clock), make_key(clock))
        with pytest.raises(UnknownPrevious) as other:
            await store.finish(TENANT, make_inserting_end(clock, new))
        assert one.value.param == other.value.param == "previous_response_id"
        assert await store.get(TENANT, new.id) is None
    assert await store.tenants() == totals
    assert await store.begin(TENANT, make_response(clock), make_claim(clock), make_key(clock)) is None, (
        "the rejected responses did not take the key"
    )


async def test_a_missing_conversation_is_rejected(store: Store, clock: Clock) -> None:
    deleted, foreign = await store_conversation(store, clock), await store_conversation(store, clock, tenant="other")
    await store.delete_conversation(TENANT, deleted)
    for conversation in (deleted, foreign, new_id("conv"), *MALFORMED_IDS):
        with pytest.raises(UnknownConversation):
            await store.begin(TENANT, make_response(clock, conversation=conversation), make_claim(clock))


async def test_malformed_ids_find_nothing(store: Store, clock: Clock) -> None:
    await begin_response(store, clock)
    for name in MALFORMED_IDS:
        assert await store.get(TENANT, name) is None
        assert await store.chain(TENANT, name) == []
        assert await store.read(TENANT, name, -1) == []
        assert await store.take(TENANT, name, make_claim(clock)) is None
        assert not await store.delete(TENANT, name)


async def test_a_tenant_sees_nothing_of_another(store: Store, clock: Clock) -> None:
    new = await begin_response(store, clock, background=True)
    await store.append(TENANT, new.id, 1, 0, b"batch")
    before = await store.get(TENANT, new.id)
    assert await store.get("other", new.id) is None
    assert await store.chain("other", new.id) == []
    assert await store.read("other", new.id, -1) == []
    assert await store.take("other", new.id, make_claim(clock, "thief")) is None
    assert not await store.delete("other", new.id)
    for operation in (
        store.start("other", new.id, 1),
        store.release("other", new.id, 1),
        store.append("other", new.id, 1, 1, b"batch"),
        store.finish("other", make_end(clock, new)),
    ):
        with pytest.raises(OwnershipLost):
            await operation
    assert await store.get(TENANT, new.id) == before
    assert await store.read(TENANT, new.id, -1) == [b"batch"]


@shows("B.12", "B.13")
async def test_an_idempotency_key_belongs_to_the_first_response(store: Store, clock: Clock) -> None:
    first = make_response(clock)
    assert await store.keyed(TENANT, make_key(clock)) is None
    assert await store.begin(TENANT, first, make_claim(clock), make_key(clock)) is None
    totals = await store.tenants()
    second = make_response(clock)
    assert await store.begin(TENANT, second, make_claim(clock), make_key(clock)) == first.id
    assert await store.keyed(TENANT, make_key(clock)) == first.id
    assert await store.get(TENANT, second.id) is None
    for attempt in (
        store.begin(TENANT, second, make_claim(clock), make_key(clock, digest=b"another")),
        store.keyed(TENANT, make_key(clock, digest=b"another")),
    ):
        with pytest.raises(KeyReused):
            await attempt
    assert await store.tenants() == totals
    assert await store.begin("other", make_response(clock), make_claim(clock), make_key(clock)) is None
    await store.finish(TENANT, make_end(clock, first))
    assert await store.begin(TENANT, second, make_claim(clock), make_key(clock)) == first.id


async def test_an_idempotency_key_is_free_once_it_expires_or_its_response_is_deleted(
    store: Store, clock: Clock
) -> None:
    first, second, third = make_response(clock), make_response(clock), make_response(clock)
    await store.begin(TENANT, first, make_claim(clock), make_key(clock))
    clock.now += 100
    assert await store.begin(TENANT, second, make_claim(clock), make_key(clock, digest=b"another")) is None
    await store.delete(TENANT, second.id)
    assert await store.keyed(TENANT, make_key(clock)) is None
    assert await store.begin(TENANT, third, make_claim(clock), make_key(clock)) is None
    assert await store.get(TENANT, first.id) is not None


@pytest.mark.parametrize("background", [False, True])
async def test_a_cancelled_foreground_response_frees_its_idempotency_key(
    store: Store, clock: Clock, background: bool
) -> None:
    first, second = make_response(clock, background=background), make_response(clock, background=background)
    await store.begin(TENANT, first, make_claim(clock), make_key(clock))
    await store.finish(TENANT, replace(make_end(clock, first), status="cancelled"))
    held = first.id if background else None  # a background response is cancelled only on request
    assert await store.keyed(TENANT, make_key(clock)) == held
    assert await store.begin(TENANT, second, make_claim(clock), make_key(clock)) == held


async def test_one_of_many_concurrent_responses_gets_the_idempotency_key(
    store: Store, other_store: Store, clock: Clock
) -> None:
    news = [make_response(clock) for _ in range(20)]
    begins = [
        (store, other_store)[n % 2].begin(TENANT, new, make_claim(clock), make_key(clock)) for n, new in enumerate(news)
    ]
    results = await asyncio.gather(*begins)
    winner = news[results.index(None)].id
    assert sorted(map(str, results)) == sorted(["None", *[winner] * 19])
    assert [new.id for new in news if await store.get(TENANT, new.id)] == [winner]


@shows("B.6")
async def test_the_number_of_background_responses_is_limited(store: Store, other_store: Store, clock: Clock) -> None:
    news = [make_response(clock, background=True) for _ in range(12)]
    await begin_response(store, clock)  # foreground responses do not count
    begins = [
        (store, other_store)[n % 2].begin(TENANT, new, make_claim(clock), max_background=4)
        for n, new in enumerate(news)
    ]
    outcomes = await asyncio.gather(*begins, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes if outcome is not None] == [Busy] * 8
    assert all(outcome.retry_after for outcome in outcomes if isinstance(outcome, Busy))
    begun = news[outcomes.index(None)]
    await store.finish(TENANT, make_end(clock, begun))
    assert (
        await store.begin("other", make_response(clock, background=True), make_claim(clock), max_background=1) is None
    )
    assert await store.begin(TENANT, make_response(clock, background=True), make_claim(clock), max_background=4) is None


@shows("B1.3")
async def test_an_expired_response_is_invisible(store: Store, clock: Clock) -> None:
    new = await begin_response(store, clock)
    clock.now += TTL
    assert await store.get(TENANT, new.id), "a running response does not expire"
    await store.finish(TENANT, make_end(clock, new))
    clock.now += TTL - 1
    assert await store.get(TENANT, new.id)
    clock.now += 1
    assert await store.get(TENANT, new.id) is None
    assert await store.chain(TENANT, new.id) == []
    assert not await store.delete(TENANT, new.id)


async def test_a_response_without_expiry_is_never_removed(store: Store, clock: Clock) -> None:
    new = make_response(clock)
    await store.finish(TENANT, make_inserting_end(clock, new, None))
    clock.now = 1e12
    assert await store.get(TENANT, new.id)


async def test_a_cancelled_operation_is_still_executed(store: Store, clock: Clock) -> None:
    new = make_response(clock)
    task = asyncio.ensure_future(store.finish(TENANT, make_inserting_end(clock, new)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for _ in range(1000):
        if await store.get(TENANT, new.id):
            return
    pytest.fail("the cancelled operation was not executed")


async def test_a_rejected_operation_does_not_affect_concurrent_ones(store: Store, clock: Clock) -> None:
    good = [make_response(clock) for _ in range(20)]
    bad = [make_response(clock, previous=new_id("resp")) for _ in range(20)]
    mixed = [new for pair in zip(good, bad, strict=True) for new in pair]
    outcomes = await asyncio.gather(
        *(store.finish(TENANT, make_inserting_end(clock, new)) for new in mixed), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [type(None), UnknownPrevious] * 20
    assert all([await store.get(TENANT, new.id) for new in good])
    assert (await store.tenants())[TENANT][0] == 20


@pytest.mark.parametrize(("count", "length"), [(1, 50), (2, 50), (37, 50), (5, 100_000)])
async def test_concurrent_responses_are_stored_separately(store: Store, clock: Clock, count: int, length: int) -> None:
    tenants = [f"tenant{number % 2}" for number in range(count)]
    ends = [make_inserting_end(clock, make_response(clock, text=str(number) * length)) for number in range(count)]
    begun = make_response(clock)
    await asyncio.gather(
        *(store.finish(tenant, ended) for tenant, ended in zip(tenants, ends, strict=True)),
        store.begin(TENANT, begun, make_claim(clock)),
    )
    sizes: dict[str, tuple[int, int]] = {TENANT: (1, len(begun.request) + len(begun.response))}
    for tenant, ended in zip(tenants, ends, strict=True):
        assert ended.new is not None
        expected = make_expected_row(
            ended.new, status="completed", response=ended.response, packed_log=PACKED_LOG, fence=0
        )
        assert await store.get(tenant, ended.id) == expected
        entries, size = sizes.get(tenant, (0, 0))
        sizes[tenant] = entries + 1, size + len(ended.new.request) + len(ended.response) + len(PACKED_LOG)
    assert await store.get(TENANT, begun.id) == make_expected_row(begun)
    assert await store.tenants() == sizes


async def test_a_stored_response_in_a_batch_is_written_once_and_fails_no_other(store: Store, clock: Clock) -> None:
    ends = [make_inserting_end(clock, make_response(clock)) for _ in range(8)]
    await store.finish(TENANT, ends[3])
    taken = await begin_response(store, clock)
    lost = make_inserting_end(clock, taken)
    outcomes = await asyncio.gather(
        *(store.finish(TENANT, ended) for ended in (*ends, ends[5], lost)), return_exceptions=True
    )
    assert outcomes[:-1] == [None] * 9
    assert isinstance(outcomes[-1], OwnershipLost), "the response was begun and has not ended"
    assert [await store.get(TENANT, ended.id) is not None for ended in ends] == [True] * 8
    size = sum(
        len(ended.new.request) + len(ended.response) + len(PACKED_LOG) for ended in ends if ended.new is not None
    )
    assert await store.tenants() == {TENANT: (9, size + len(taken.request) + len(taken.response))}

"""Runs each scenario with the n-th store operation failing, for every n.

The client gets a typed error or the result that is stored, and no slot, row or lease is leaked.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import time

import pytest

from antiphon.config.areas import StorageSettings
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import Unavailable
from antiphon.ids import new_id
from antiphon.protocol.types.events import Completed, Event, Failed, Incomplete
from antiphon.protocol.types.response import Response
from antiphon.service.runs.follow import replay
from antiphon.stores.base import RUNNING_STATUSES, Claim, ConversationRow, IdempotencyKey
from tests.service.instrumented_store import InstrumentedStore
from tests.service.requests import (
    TENANT,
    ServiceStack,
    accept_request,
    close_source,
    create_response,
    decode_request,
    read_events,
    start_service,
    wait_for_response,
)

pytestmark = pytest.mark.anyio
KEY = IdempotencyKey("mine", b"digest", time() + 3600.0)
FinalResponse = Response | None  # last response that the client received; None if it received an error, or nothing


def get_final_response(events: list[Event]) -> Response:
    """Return the response of the only terminal event, which must be the last event."""
    terminal = [event for event in events if isinstance(event, Completed | Failed | Incomplete)]
    assert terminal == events[-1:]
    return terminal[0].response


async def run_json(service: ServiceStack) -> FinalResponse:
    return await create_response(service.responses)


async def run_stream(service: ServiceStack) -> FinalResponse:
    return get_final_response(await read_events(await accept_request(service.responses, stream=True)))


async def run_chain(service: ServiceStack) -> FinalResponse:
    first = await create_response(service.responses)
    second = await create_response(service.responses, previous_response_id=first.id)
    return get_final_response(
        await read_events(await accept_request(service.responses, stream=True, previous_response_id=second.id))
    )


async def run_unstored(service: ServiceStack) -> FinalResponse:
    first = await create_response(service.responses)
    await create_response(service.responses, previous_response_id=first.id)
    return await create_response(service.responses, previous_response_id=first.id, store=False)


async def run_conversation(service: ServiceStack) -> FinalResponse:
    row = ConversationRow(new_id("conv"), 1.0, {})
    await service.store.create_conversation(TENANT, row, [])
    await create_response(service.responses, conversation=row.id)
    return get_final_response(
        await read_events(await accept_request(service.responses, stream=True, conversation=row.id))
    )


async def run_reference(service: ServiceStack) -> FinalResponse:
    first = await create_response(service.responses)
    return await create_response(service.responses, input=[{"type": "item_reference", "id": first.output[0].id}])


async def run_keyed(service: ServiceStack) -> FinalResponse:
    first = await wait_for_response(await service.responses.create(TENANT, decode_request(), KEY))
    again = await wait_for_response(await service.responses.create(TENANT, decode_request(), KEY))
    assert again == first
    return again


async def run_keyed_stream(service: ServiceStack) -> FinalResponse:
    first = get_final_response(
        await read_events(await service.responses.create(TENANT, decode_request(stream=True), KEY))
    )
    again = get_final_response(
        await read_events(await service.responses.create(TENANT, decode_request(stream=True), KEY))
    )
    assert again == first
    return again


async def run_disconnect(service: ServiceStack) -> FinalResponse:
    close_source(await accept_request(service.responses, stream=True))
    return None


@pytest.fixture(autouse=True)
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten polling and retry delays."""
    monkeypatch.setattr("antiphon.service.runs.follow._POLL_SECONDS", 0.02)
    monkeypatch.setattr("antiphon.service.persistence.response_writer._FIRST_RETRY_DELAY", 0.02)


Scenario = Callable[[ServiceStack], Awaitable[FinalResponse]]
SCENARIOS: list[Scenario] = [
    run_json,
    run_stream,
    run_chain,
    run_unstored,
    run_conversation,
    run_reference,
    run_keyed,
    run_keyed_stream,
    run_disconnect,
]


@pytest.mark.parametrize(
    ("times", "late"),
    [(1, False), (1, True), (3, False), (3, True)],
    ids=["one rejected", "one reply lost", "three rejected", "three replies lost"],
)
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_any_failing_store_operation_leaves_a_consistent_state(
    scenario: Scenario, times: int, late: bool
) -> None:
    number = 0
    while await run_failing_at(range(number, number + times), scenario, late):
        number += 1
    assert number > 0


async def run_failing_at(numbers: range, scenario: Scenario, late: bool) -> bool:
    """Run the scenario with these operations failing; return whether it reached the first of them."""
    instrumented_store = InstrumentedStore()
    await instrumented_store.open()
    instrumented_store.fail_at, instrumented_store.fail_after_call = numbers, late
    response: FinalResponse = None
    engine = FakeEngine(FakeSettings(at_once=1))
    async with start_service(
        engine, instrumented_store.as_store(), settings=StorageSettings(lease_seconds=1.0), queue=0
    ) as service:
        with suppress(Unavailable):
            async with asyncio.timeout(30):
                response = await scenario(service)
        reached = len(instrumented_store.calls) > numbers.start
        async with asyncio.timeout(30):
            await service.detached_runs.tasks.wait_all()
        await service.writer.drain(5.0)
        instrumented_store.fail_at = range(0)
        await check_state(service, instrumented_store, response)
    await instrumented_store.close()
    return reached


async def check_state(service: ServiceStack, instrumented_store: InstrumentedStore, response: FinalResponse) -> None:
    assert service.count_runs() == len(service.writer.leases._rows) == 0
    assert (
        await create_response(service.responses, store=False)
    ).status == "completed"  # the engine's only slot is free
    if response is not None and response.store and response.status == "completed":
        assert await service.load_response(response.id) == response
    elif response is not None and response.store and (row := await service.store.get(TENANT, response.id)) is not None:
        assert row.status in (response.status, *RUNNING_STATUSES)
    # Rows that still run have no owner: another server can claim and end them after their lease.
    instrumented_store.clock_offset = 60.0
    await service.writer.leases.renew()
    claimed = await service.store.claim(Claim("another", time() + 600.0), 10)
    assert all(one.row.status in RUNNING_STATUSES for one in claimed)
    assert await service.store.claim(Claim("a third", time() + 600.0), 10) == []
    for one in claimed:
        assert await service.store.take(one.tenant, one.row.id, Claim("x", time())) is not None


async def test_an_unavailable_store_gives_503_before_any_event() -> None:
    instrumented_store = InstrumentedStore()
    await instrumented_store.open()
    instrumented_store.fail_all = True
    engine = FakeEngine()
    async with start_service(engine, instrumented_store.as_store()) as service:
        with pytest.raises(Unavailable) as refused:
            await accept_request(service.responses, stream=True)
        assert (refused.value.status, refused.value.retry_after) == (503, 1.0)
        assert not engine.seen
        with pytest.raises(Unavailable):
            await create_response(service.responses)
        assert (await create_response(service.responses, store=False)).status == "completed"
        assert service.count_runs() == 0
    await instrumented_store.close()


async def test_a_stream_whose_end_cannot_be_written_fails_and_is_later_stored_as_failed() -> None:
    instrumented_store = InstrumentedStore()
    await instrumented_store.open()
    async with start_service(FakeEngine(), instrumented_store.as_store()) as service:
        stream = await accept_request(service.responses, stream=True)
        instrumented_store.fail_all = True
        events = await read_events(stream)
        response = get_final_response(events)
        assert (response.status, response.error and response.error.code) == ("failed", "service_unavailable")
        instrumented_store.fail_all = False
        await service.writer.drain(5.0)
        stored = await service.load_response(response.id)
        assert stored == response
        assert stored.output == response.output != []
    await instrumented_store.close()


async def test_an_end_that_was_sent_is_written_after_any_store_outage(instrumented_store: InstrumentedStore) -> None:
    async with start_service(
        FakeEngine(), instrumented_store.as_store(), settings=StorageSettings(lease_seconds=0.05)
    ) as service:
        stream = await accept_request(service.responses, stream=True)
        instrumented_store.fail_all = True
        response = get_final_response(await read_events(stream))
        await instrumented_store.wait_for_call(
            "finish", instrumented_store.calls.count("finish") + 5
        )  # the lease has expired by then
        instrumented_store.fail_all = False
        await service.writer.drain(5.0)
        assert await service.load_response(response.id) == response


async def test_a_response_whose_end_is_still_to_be_written_is_not_taken_over(
    instrumented_store: InstrumentedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.service.persistence.response_writer._FIRST_RETRY_DELAY", 60.0)
    async with start_service(FakeEngine(), instrumented_store.as_store()) as service:
        stream = await accept_request(service.responses, stream=True)
        instrumented_store.fail_all = True
        response = get_final_response(await read_events(stream))
        await instrumented_store.wait_for_call("finish", 3)
        instrumented_store.fail_all = False
        async with asyncio.timeout(30):
            while response.id not in service.writer.leases._rows:  # noqa: ASYNC110 - no event signals this state
                await asyncio.sleep(0)
        instrumented_store.clock_offset = service.writer.settings.lease_seconds + 1.0
        leases = service.writer.leases
        leases.make_claim = lambda: Claim(leases.owner, time() + 600.0)  # type: ignore[method-assign]  # expires by the store's clock
        await leases.renew()
        assert await service.store.claim(Claim("another", time() + 600.0), 10) == []
        await service.writer.drain(0.01)
        assert not service.writer.leases._rows


async def test_a_key_returns_the_unwritten_response_once_the_store_is_back(
    instrumented_store: InstrumentedStore, engine: FakeEngine
) -> None:
    async with start_service(engine, instrumented_store.as_store()) as service:
        first = await service.responses.create(TENANT, decode_request(), KEY)
        (response_id,) = service.list_running()
        follower = await replay(service.detached_runs, TENANT, response_id)
        instrumented_store.fail_all = True
        with pytest.raises(Unavailable) as refused:
            await wait_for_response(first)
        assert refused.value.retry_after
        instrumented_store.fail_all = False
        again = await wait_for_response(await service.responses.create(TENANT, decode_request(), KEY))
        assert (again.id, again.status, engine.requests) == (response_id, "completed", 1)
        assert await service.load_response(again.id) == again
        events: list[Event] = []
        await follower.drive(events.extend)
        follower.close()
        assert get_final_response(events) == again

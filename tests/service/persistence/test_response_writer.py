"""`ResponseWriter`: a response's start is stored before any event is sent, and its end before the terminal event.

Leases, idempotency keys and run limits are tested over an in-memory store.

Covers `service/persistence/response_writer.py`, `service/persistence/store_maintenance.py`,
`service/persistence/rows.py` and `service/runs/active_runs.py`.
"""

import asyncio
import gc
import weakref
from time import time
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from antiphon.config.areas import StorageSettings
from antiphon.core.deltas import Text
from antiphon.core.emitter.fold import ResponseEnding
from antiphon.core.replay import Replay, reset_response, unpack
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import Busy, EngineFailed, KeyReused, ServerRestarted, Unavailable, UnsupportedParameter
from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.types.events import Completed, Event, Failed
from antiphon.service.persistence import store_maintenance
from antiphon.service.persistence.response_writer import OwnedRow
from antiphon.service.persistence.rows import decode_input
from antiphon.service.runs.direct_run import DirectRun
from antiphon.stores.base import Claim, IdempotencyKey
from tests.service.instrumented_store import InstrumentedStore
from tests.service.requests import (
    TENANT,
    ServiceStack,
    accept_request,
    close_source,
    create_response,
    decode_request,
    parse_response,
    read_events,
    start_service,
    stream_events,
    wait_for_response,
)

pytestmark = pytest.mark.anyio
KEY = IdempotencyKey("mine", b"digest", time() + 3600.0)
SLOW = FakeSettings(delay=60.0)  # longer than any test waits


def get_running_id(service: ServiceStack) -> str:
    """Return the id of the only running response."""
    (response_id,) = service.list_running()
    return response_id


# ---- stored rows


async def test_a_json_response_is_written_once_at_its_end(
    service: ServiceStack, instrumented_store: InstrumentedStore
) -> None:
    response = await create_response(service.responses, metadata={"a": "b"})
    assert instrumented_store.calls == ["finish"]
    assert response.store is True
    row = await service.load_row(response.id)
    assert (row.status, parse_response(row.response)) == ("completed", response)


async def test_a_stream_is_written_at_its_beginning_and_at_its_end(
    service: ServiceStack, instrumented_store: InstrumentedStore
) -> None:
    events = await stream_events(service.responses)
    assert instrumented_store.calls == ["begin", "finish"]
    last = events[-1]
    assert isinstance(last, Completed)
    row = await service.load_row(last.response.id)
    assert row.response == encode(last.response)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stored_response_replays_the_same_events(
    service: ServiceStack, engine: FakeEngine, stream: bool
) -> None:
    options = {"include_obfuscation": True} if stream else None
    body = {"input": "a much longer question", "reasoning": {"effort": "low"}, "stream_options": options}
    if stream:
        received = await stream_events(service.responses, **body)
        response_id = received[0].response.id  # type: ignore[attr-defined]  # response.created
    else:
        received, response_id = [], (await create_response(service.responses, **body)).id
    row = await service.load_row(response_id)
    response = parse_response(row.response)
    replay = Replay(reset_response(response), stream)
    again = [*replay.open(), *replay.feed(unpack(row.packed_log or b"", row.response))]
    assert isinstance(again[-1], Completed)
    assert again[-1].response == response
    assert not stream or list(map(encode, again)) == list(map(encode, received))


async def test_the_reply_body_equals_the_stored_json(service: ServiceStack) -> None:
    accepted_ = await accept_request(service.responses)
    assert accepted_.source is not None
    body = await accepted_.source.result()
    accepted_.source.close()
    assert (await service.load_row(parse_response(body).id)).response == body


@pytest.mark.parametrize("stream", [False, True])
async def test_a_long_input_is_stored_completely(service: ServiceStack, stream: bool) -> None:
    messages = [{"role": "user", "content": f"word {number}"} for number in range(600)]
    response = await wait_for_response(await accept_request(service.responses, input=messages, stream=stream))
    stored = decode_input((await service.load_row(response.id)).request)
    sent = decode_request(input=messages).request.input
    assert [replace(item, id=UNSET) for item in stored] == [replace(item, status="completed") for item in sent]


@pytest.mark.parametrize("continued", [False, True])
async def test_the_terminal_event_is_sent_after_the_end_is_stored(
    service: ServiceStack, instrumented_store: InstrumentedStore, continued: bool
) -> None:
    previous = (await create_response(service.responses)).id if continued else None
    gate = instrumented_store.gates["finish"] = asyncio.Event()
    received: list[Event] = []
    accepted_ = await accept_request(service.responses, stream=True, previous_response_id=previous)
    assert accepted_.source is not None
    driver = asyncio.ensure_future(accepted_.source.drive(lambda events: received.extend(events)))
    await instrumented_store.wait_for_call("finish", instrumented_store.calls.count("finish") + 1)
    assert received
    assert not any(isinstance(event, Completed) for event in received)
    gate.set()
    async with asyncio.timeout(30):
        await driver
    assert isinstance(received[-1], Completed)
    accepted_.source.close()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.shows("B1.1")
async def test_a_response_with_store_false_is_not_stored(
    service: ServiceStack, instrumented_store: InstrumentedStore, stream: bool
) -> None:
    response = await wait_for_response(await accept_request(service.responses, store=False, stream=stream))
    assert response.store is False
    assert instrumented_store.calls == []


async def test_a_failed_response_is_stored(service: ServiceStack, engine: FakeEngine) -> None:
    engine.says(Text("a"), Text("b"))
    engine.fails(EngineFailed("It broke."), after=1)
    events = await stream_events(service.responses)
    last = events[-1]
    assert isinstance(last, Failed)
    stored = await service.load_response(last.response.id)
    assert (stored.status, stored.error) == ("failed", last.response.error)
    engine.fails(EngineFailed("It broke again."))
    with pytest.raises(EngineFailed, match="again"):
        await create_response(service.responses)


@pytest.mark.parametrize("body", [{}, {"stream": True}, {"store": False}])
async def test_a_finished_run_is_freed_without_the_garbage_collector(
    service: ServiceStack, body: dict[str, Any]
) -> None:
    gc.disable()
    try:
        accepted_ = await accept_request(service.responses, **body)
        assert isinstance(accepted_.source, DirectRun)
        run = weakref.ref(accepted_.source.run)
        await (read_events(accepted_) if body.get("stream") else wait_for_response(accepted_))
        del accepted_
        async with asyncio.timeout(30):
            while run() is not None:  # noqa: ASYNC110 - the store's thread may still reference the run
                await asyncio.sleep(0.001)
    finally:
        gc.enable()


async def test_a_finished_kept_stream_is_freed_without_the_garbage_collector(
    instrumented_store: InstrumentedStore,
) -> None:
    async with start_service(FakeEngine(), instrumented_store.as_store(), settings=StorageSettings()) as service:
        gc.disable()
        try:
            accepted_ = await accept_request(service.responses, stream=True)
            (run,) = [weakref.ref(active) for active in service.detached_runs.by_id.values()]
            await read_events(accepted_)
            del accepted_
            async with asyncio.timeout(30):
                while run() is not None:  # noqa: ASYNC110 - the store's thread may still reference the run
                    await asyncio.sleep(0.001)
        finally:
            gc.enable()


# ---- disconnected clients


async def test_a_client_disconnect_cancels_its_stream(instrumented_store: InstrumentedStore) -> None:
    async with start_service(FakeEngine(SLOW), instrumented_store.as_store()) as service:
        accepted_ = await accept_request(service.responses, stream=True)
        response_id = get_running_id(service)
        assert accepted_.source is not None
        driver = asyncio.ensure_future(accepted_.source.drive(lambda events: None))
        await asyncio.sleep(0)
        driver.cancel()
        await asyncio.wait([driver])
        close_source(accepted_)
        await service.writer.drain(5.0)
        assert (await service.load_row(response_id)).status == "cancelled"
        assert (await service.load_response(response_id)).status == "cancelled"
        assert not service.list_running()


async def test_a_client_disconnect_before_the_start_cancels_the_response(
    service: ServiceStack, engine: FakeEngine
) -> None:
    accepted_ = await accept_request(service.responses, stream=True)
    response_id = get_running_id(service)
    close_source(accepted_)
    close_source(accepted_)
    await service.writer.drain(5.0)
    assert (await service.load_row(response_id)).status == "cancelled"
    assert not engine.seen


async def test_a_client_disconnect_from_a_json_response_stores_nothing(instrumented_store: InstrumentedStore) -> None:
    async with start_service(FakeEngine(SLOW), instrumented_store.as_store()) as service:
        close_source(await accept_request(service.responses))
        await service.writer.drain(5.0)
        assert instrumented_store.calls == []
        assert not service.count_runs()


async def test_a_client_disconnect_while_the_end_is_written_does_not_undo_it(
    service: ServiceStack, instrumented_store: InstrumentedStore
) -> None:
    gate = instrumented_store.gates["finish"] = asyncio.Event()
    accepted_ = await accept_request(service.responses, stream=True)
    response_id = get_running_id(service)
    assert accepted_.source is not None
    driver = asyncio.ensure_future(accepted_.source.drive(lambda events: None))
    await instrumented_store.wait_for_call("finish")
    driver.cancel()
    await asyncio.wait([driver])
    close_source(accepted_)
    gate.set()
    await service.writer.drain(5.0)
    assert (await service.load_row(response_id)).status == "completed"


async def test_draining_abandons_a_write_that_hangs(
    service: ServiceStack, instrumented_store: InstrumentedStore
) -> None:
    accepted_ = await accept_request(service.responses, stream=True)
    response_id = get_running_id(service)
    instrumented_store.gates["finish"] = asyncio.Event()
    close_source(accepted_)
    async with asyncio.timeout(30):
        await service.writer.drain(0.05)
    assert (await service.load_row(response_id)).status == "in_progress"


async def test_interrupted_responses_are_stored_as_failed(service: ServiceStack) -> None:
    accepted_ = await accept_request(service.responses, stream=True)
    response_id = get_running_id(service)
    assert accepted_.source is not None

    def interrupt_run(events: list[Event]) -> None:
        service.detached_runs.interrupt()

    await accepted_.source.drive(interrupt_run)
    accepted_.source.close()
    stored = await service.load_response(response_id)
    assert stored.status == "failed"
    assert stored.error is not None
    assert stored.error.code == "service_unavailable"


# ---- leases


async def begin_row(service: ServiceStack, **body: Any) -> OwnedRow:
    """Plan a streamed response and begin its row, without running it."""
    decoded_request = decode_request(stream=True, **body)
    planned = await service.planner.plan_response(TENANT, decoded_request)
    owned_row = await service.writer.begin(TENANT, planned.decoded, planned.opening)
    planned.leave()
    assert isinstance(owned_row, OwnedRow)
    return owned_row


def make_foreign_claim(seconds: float = 60.0) -> Claim:
    """Make a claim of another owner."""
    return Claim("another", time() + seconds)


async def test_a_heartbeat_renews_held_rows_and_a_scan_claims_expired_ones(
    service: ServiceStack, instrumented_store: InstrumentedStore
) -> None:
    mine, forgotten = await begin_row(service), await begin_row(service)
    forgotten.forget()
    instrumented_store.clock_offset = service.writer.settings.lease_seconds + 1.0  # the leases in the rows have expired
    leases = service.writer.leases
    leases.make_claim = lambda: Claim(leases.owner, time() + instrumented_store.clock_offset + 60.0)  # type: ignore[method-assign]  # expires by the store's clock
    await leases.renew()
    claimed = await service.store.claim(make_foreign_claim(instrumented_store.clock_offset + 60.0), 10)
    assert [one.row.id for one in claimed] == [forgotten.id]
    assert mine.lost is False


async def test_responses_are_claimed_in_creation_order(
    service: ServiceStack, instrumented_store: InstrumentedStore
) -> None:
    begun = [await begin_row(service) for _ in range(30)]
    instrumented_store.clock_offset = service.writer.settings.lease_seconds + 1.0
    claimed = await service.store.claim(make_foreign_claim(), 0)
    assert [one.row.id for one in claimed] == [owned_row.id for owned_row in begun]


async def test_a_former_owner_is_notified_once_and_cannot_end_the_response(service: ServiceStack) -> None:
    owned_row = await begin_row(service)
    received: list[str] = []
    owned_row.on_lost = lambda: received.append(owned_row.id)
    assert await service.store.take(TENANT, owned_row.id, make_foreign_claim()) is not None
    await service.writer.leases.renew()
    await service.writer.leases.renew()
    assert (received, owned_row.lost) == ([owned_row.id], True)
    with pytest.raises(ServerRestarted):
        await owned_row.end(parse_response((await service.load_row(owned_row.id)).response), [])
    assert (await service.load_row(owned_row.id)).status == "in_progress"


async def test_a_row_under_another_fence_is_lost_even_if_it_still_runs(service: ServiceStack) -> None:
    owned_row = await begin_row(service)
    owned_row.verify(await service.load_row(owned_row.id))
    assert owned_row.lost is False
    assert await service.store.take(TENANT, owned_row.id, make_foreign_claim()) is not None
    owned_row.verify(await service.load_row(owned_row.id))
    assert owned_row.lost is True


async def test_deleting_a_running_response_fails_its_stream(instrumented_store: InstrumentedStore) -> None:
    async with start_service(FakeEngine(SLOW), instrumented_store.as_store()) as service:
        accepted_ = await accept_request(service.responses, stream=True)
        received: list[Event] = []
        assert accepted_.source is not None
        driver = asyncio.ensure_future(accepted_.source.drive(lambda events: received.extend(events)))
        await service.store.delete(TENANT, get_running_id(service))
        await service.writer.leases.renew()
        async with asyncio.timeout(30):
            await driver
        accepted_.source.close()
        assert [event.type for event in received][-2:] == ["error", "response.failed"]
        assert not service.list_running()


async def test_a_response_deleted_without_notice_ends_failed(
    service: ServiceStack, instrumented_store: InstrumentedStore
) -> None:
    accepted_ = await accept_request(service.responses, stream=True)
    await service.store.delete(TENANT, get_running_id(service))
    events = await read_events(accepted_)
    assert isinstance(events[-1], Failed)
    assert events[-1].response.error is not None
    assert events[-1].response.error.code == "server_restarted"
    await service.writer.drain(5.0)


async def test_an_adopted_response_is_ended_by_its_new_owner(service: ServiceStack) -> None:
    first = await begin_row(service)
    row = await service.store.take(TENANT, first.id, service.writer.leases.make_claim())
    assert row is not None
    second = await service.writer.adopt(TENANT, row)
    await service.writer.leases.renew()
    assert (first.fence, second.fence, second.lost) == (1, 2, False)
    replay = Replay(reset_response(parse_response(row.response)), False)
    replay.emitter.finish(ResponseEnding(status="cancelled"), None, 5)
    with pytest.raises(ServerRestarted):
        await first.end(replay.emitter.response, replay.emitter.log or [])
    await second.end(replay.emitter.response, replay.emitter.log or [])
    assert (await service.load_row(first.id)).status == "cancelled"


async def test_the_writer_loop_renews_and_sweeps_until_it_is_cancelled(
    instrumented_store: InstrumentedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_maintenance, "SWEEP_SECONDS", 0.01)
    settings = StorageSettings(lease_seconds=0.03, store_max_entries=2)
    async with start_service(FakeEngine(), instrumented_store.as_store(), settings=settings) as service:
        owned_row = await begin_row(service)
        for _ in range(4):
            await create_response(service.responses)
        writer_loop = asyncio.ensure_future(service.writer.run_forever())
        await instrumented_store.wait_for_call("renew", 2)
        await instrumented_store.wait_for_call("sweep", 2)
        instrumented_store.fail_all = True
        for name in ("renew", "sweep"):
            await instrumented_store.wait_for_call(name, instrumented_store.calls.count(name) + 2)
        instrumented_store.fail_all = False
        for name in ("renew", "sweep"):
            await instrumented_store.wait_for_call(name, instrumented_store.calls.count(name) + 2)
        assert not writer_loop.done()
        assert owned_row.lost is False
        writer_loop.cancel()
        await asyncio.wait([writer_loop])
        assert (await service.store.tenants())[TENANT][0] <= 3


async def test_exceeding_a_bound_triggers_a_sweep_before_the_next_interval(
    instrumented_store: InstrumentedStore,
) -> None:
    settings = StorageSettings(store_max_entries=2, store_max_bytes=1024**2)
    async with start_service(FakeEngine(), instrumented_store.as_store(), settings=settings) as service:
        writer_loop = asyncio.ensure_future(service.writer.run_forever())
        for _ in range(6):
            await create_response(service.responses)
        async with asyncio.timeout(30):
            while (await service.store.tenants())[TENANT][0] > 2:
                pass
        swept = instrumented_store.calls.count("sweep")
        service.writer.sweeper.note_write(1024**2 // 16)
        await instrumented_store.wait_for_call("sweep", swept + 1)
        writer_loop.cancel()
        await asyncio.wait([writer_loop])


# ---- idempotency keys


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.shows("B.12")
async def test_the_same_key_and_body_give_the_same_response(
    service: ServiceStack, engine: FakeEngine, stream: bool
) -> None:
    decoded_request = decode_request(stream=stream)
    first = await service.responses.create(TENANT, decoded_request, KEY)
    received = await read_events(first) if stream else [await wait_for_response(first)]
    again = await service.responses.create(TENANT, decode_request(stream=stream), KEY)
    replayed = await read_events(again) if stream else [await wait_for_response(again)]
    assert list(map(encode, received)) == list(map(encode, replayed))
    assert len(engine.seen) == 1


@pytest.mark.shows("B.12")
async def test_a_key_matches_after_the_previous_response_is_deleted(service: ServiceStack, engine: FakeEngine) -> None:
    first = await create_response(service.responses)
    body = {"previous_response_id": first.id}
    second = await wait_for_response(await service.responses.create(TENANT, decode_request(**body), KEY))
    await service.store.delete(TENANT, first.id)
    service.history_loader.forget(TENANT, second.id)
    service.history_loader.forget(TENANT, first.id)
    assert await wait_for_response(await service.responses.create(TENANT, decode_request(**body), KEY)) == second
    assert len(engine.seen) == 2


@pytest.mark.shows("B.13")
async def test_another_body_under_the_same_key_is_rejected(service: ServiceStack, engine: FakeEngine) -> None:
    await wait_for_response(await service.responses.create(TENANT, decode_request(), KEY))
    with pytest.raises(KeyReused) as refused:
        await service.responses.create(
            TENANT, decode_request(input="other"), IdempotencyKey(KEY.name, b"other", KEY.expires)
        )
    assert refused.value.status == 400
    assert len(engine.seen) == 1


@pytest.mark.shows("B.12")
async def test_two_concurrent_requests_with_one_key_share_one_response(
    service: ServiceStack, engine: FakeEngine
) -> None:
    both = await asyncio.gather(*[service.responses.create(TENANT, decode_request(), KEY) for _ in range(2)])
    one, other = await asyncio.gather(*map(wait_for_response, both))
    assert one == other
    assert len(engine.seen) == 1


async def test_a_key_is_scoped_to_its_tenant(service: ServiceStack, engine: FakeEngine) -> None:
    one = await wait_for_response(await service.responses.create(TENANT, decode_request(), KEY))
    other = await wait_for_response(await service.responses.create("another", decode_request(), KEY))
    assert one.id != other.id


async def test_a_key_requires_a_stored_response(service: ServiceStack, engine: FakeEngine) -> None:
    with pytest.raises(UnsupportedParameter, match="Idempotency-Key"):
        await service.responses.create(TENANT, decode_request(store=False), KEY)
    assert not engine.seen


@pytest.mark.shows("B.12")
async def test_a_background_response_is_found_by_its_key(service: ServiceStack) -> None:
    first = await wait_for_response(await service.responses.create(TENANT, decode_request(background=True), KEY))
    assert (first.status, first.background) == ("queued", True)
    again = await wait_for_response(await service.responses.create(TENANT, decode_request(background=True), KEY))
    assert again.id == first.id
    async with asyncio.timeout(30):
        await service.detached_runs.tasks.wait_all()
    last = await wait_for_response(await service.responses.create(TENANT, decode_request(background=True), KEY))
    assert (last.id, last.status) == (first.id, "completed")


# ---- run limits


@pytest.mark.shows("B1.6")
async def test_concurrent_responses_are_limited(engine: FakeEngine, instrumented_store: InstrumentedStore) -> None:
    async with start_service(
        engine, instrumented_store.as_store(), settings=StorageSettings(max_active_sessions=2)
    ) as service:
        first, second = (
            await accept_request(service.responses, stream=True),
            await accept_request(service.responses, store=False),
        )
        calls = len(instrumented_store.calls)
        for body in ({}, {"stream": True}, {"store": False}):
            with pytest.raises(Busy) as busy:
                await accept_request(service.responses, **body)
            assert busy.value.retry_after is not None
        assert len(instrumented_store.calls) == calls
        await wait_for_response(second)
        await create_response(service.responses)
        await read_events(first)
        assert not service.count_runs()


async def test_a_rejected_request_frees_its_slot(instrumented_store: InstrumentedStore) -> None:
    engine = FakeEngine(FakeSettings(at_once=1))
    async with start_service(
        engine, instrumented_store.as_store(), settings=StorageSettings(max_active_sessions=1), queue=0
    ) as service:
        for body in ({"model": None}, {"previous_response_id": "resp_1"}, {"temperature": 1.0, "best_of": 2}):
            with pytest.raises(Exception):  # noqa: B017, PT011  # any error must free the slot
                await accept_request(service.responses, **body)
        instrumented_store.fail_all = True
        with pytest.raises(Unavailable):
            await accept_request(service.responses, stream=True)
        instrumented_store.fail_all = False
        assert (await create_response(service.responses)).status == "completed"

"""What is written of a response, and when: its beginning before it is heard of, its end before it is told."""

import asyncio
import gc
import weakref
from time import time
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from antiphon.core.deltas import Text
from antiphon.core.emitter.fold import Ending
from antiphon.core.replay.packed_log import unpack
from antiphon.core.replay.replay import Replay, reopened
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import Busy, EngineFailed, KeyReused, ServerRestarted, Unavailable, UnsupportedParameter
from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.types.events import Completed, Event, Failed
from antiphon.service.persistence.response_writer import Keeping, Kept
from antiphon.service.persistence.stored_request import input_items
from antiphon.service.runs.detached_runs import SessionSettings
from antiphon.service.runs.direct_run import Direct
from antiphon.stores.base import Bounds, Claim, Key
from tests.service.instrumented_store import Watched
from tests.service.requests import (
    TENANT,
    Service,
    accepted,
    answered,
    decoded,
    heard,
    leave,
    response_in,
    result,
    serving,
    streamed,
)

pytestmark = pytest.mark.anyio
KEY = Key("mine", b"digest", time() + 3600.0)
SLOW = FakeSettings(delay=60.0)  # nobody waits for it


def only(made: Service) -> str:
    """The id of the one response that runs."""
    (response_id,) = made.running()
    return response_id


# ---- what is written


async def test_a_json_response_is_written_once_at_its_end(made: Service, watched: Watched) -> None:
    response = await answered(made.responses, metadata={"a": "b"})
    assert watched.calls == ["finish"]
    assert response.store is True
    row = await made.row(response.id)
    assert (row.status, response_in(row.response)) == ("completed", response)


async def test_a_stream_is_written_at_its_beginning_and_at_its_end(made: Service, watched: Watched) -> None:
    events = await streamed(made.responses)
    assert watched.calls == ["begin", "finish"]
    last = events[-1]
    assert isinstance(last, Completed)
    row = await made.row(last.response.id)
    assert row.response == encode(last.response)


@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_kept_gives_the_same_events_again(made: Service, engine: FakeEngine, stream: bool) -> None:
    options = {"include_obfuscation": True} if stream else None
    asked = {"input": "a much longer question", "reasoning": {"effort": "low"}, "stream_options": options}
    if stream:
        told = await streamed(made.responses, **asked)
        response_id = told[0].response.id  # type: ignore[attr-defined]  # response.created
    else:
        told, response_id = [], (await answered(made.responses, **asked)).id
    row = await made.row(response_id)
    response = response_in(row.response)
    replay = Replay(reopened(response), stream)
    again = [*replay.open(), *replay.feed(unpack(row.tape or b"", response))]
    assert isinstance(again[-1], Completed)
    assert again[-1].response == response
    assert not stream or list(map(encode, again)) == list(map(encode, told))


async def test_the_reply_is_the_very_json_that_is_kept(made: Service) -> None:
    accepted_ = await accepted(made.responses)
    assert accepted_.source is not None
    body = await accepted_.source.result()
    accepted_.source.leave()
    assert (await made.row(response_in(body).id)).response == body


@pytest.mark.parametrize("stream", [False, True])
async def test_what_takes_long_to_write_down_is_kept_like_all_else(made: Service, stream: bool) -> None:
    asked = [{"role": "user", "content": f"word {number}"} for number in range(600)]
    response = await result(await accepted(made.responses, input=asked, stream=stream))
    kept = input_items((await made.row(response.id)).request)
    given = decoded(input=asked).request.input
    assert [replace(item, id=UNSET) for item in kept] == [replace(item, status="completed") for item in given]


@pytest.mark.parametrize("continued", [False, True])
async def test_the_end_is_told_when_it_is_kept(made: Service, watched: Watched, continued: bool) -> None:
    previous = (await answered(made.responses)).id if continued else None
    gate = watched.gates["finish"] = asyncio.Event()
    told: list[Event] = []
    accepted_ = await accepted(made.responses, stream=True, previous_response_id=previous)
    assert accepted_.source is not None
    driver = asyncio.ensure_future(accepted_.source.drive(lambda events: told.extend(events)))
    await watched.until("finish", watched.calls.count("finish") + 1)
    assert told
    assert not any(isinstance(event, Completed) for event in told)
    gate.set()
    async with asyncio.timeout(30):
        await driver
    assert isinstance(told[-1], Completed)
    accepted_.source.leave()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.shows("B1.1")
async def test_what_is_not_to_be_stored_is_not(made: Service, watched: Watched, stream: bool) -> None:
    response = await result(await accepted(made.responses, store=False, stream=stream))
    assert response.store is False
    assert watched.calls == []


async def test_a_failed_response_is_kept_too(made: Service, engine: FakeEngine) -> None:
    engine.says(Text("a"), Text("b"))
    engine.fails(EngineFailed("It broke."), after=1)
    events = await streamed(made.responses)
    last = events[-1]
    assert isinstance(last, Failed)
    kept = await made.stored(last.response.id)
    assert (kept.status, kept.error) == ("failed", last.response.error)
    engine.fails(EngineFailed("It broke again."))
    with pytest.raises(EngineFailed, match="again"):
        await answered(made.responses)


@pytest.mark.parametrize("body", [{}, {"stream": True}, {"store": False}])
async def test_an_answered_request_is_gone_without_the_garbage_collector(made: Service, body: dict[str, Any]) -> None:
    gc.disable()
    try:
        accepted_ = await accepted(made.responses, **body)
        assert isinstance(accepted_.source, Direct)
        run = weakref.ref(accepted_.source.run)
        await (heard(accepted_) if body.get("stream") else result(accepted_))
        del accepted_
        async with asyncio.timeout(30):
            while run() is not None:  # noqa: ASYNC110 - the thread of the store may still have it in its hands
                await asyncio.sleep(0.001)
    finally:
        gc.enable()


# ---- who leaves


async def test_a_client_that_leaves_its_stream_ends_it_cancelled(watched: Watched) -> None:
    async with serving(FakeEngine(SLOW), watched.as_store()) as made:
        accepted_ = await accepted(made.responses, stream=True)
        response_id = only(made)
        assert accepted_.source is not None
        driver = asyncio.ensure_future(accepted_.source.drive(lambda events: None))
        await asyncio.sleep(0)
        driver.cancel()
        await asyncio.wait([driver])
        leave(accepted_)
        await made.keeper.drain(5.0)
        assert (await made.row(response_id)).status == "cancelled"
        assert (await made.stored(response_id)).status == "cancelled"
        assert not made.running()


async def test_a_client_that_leaves_before_it_began_ends_it_cancelled(made: Service, engine: FakeEngine) -> None:
    accepted_ = await accepted(made.responses, stream=True)
    response_id = only(made)
    leave(accepted_)
    leave(accepted_)
    await made.keeper.drain(5.0)
    assert (await made.row(response_id)).status == "cancelled"
    assert not engine.seen


async def test_a_client_that_leaves_its_json_leaves_nothing_behind(watched: Watched) -> None:
    async with serving(FakeEngine(SLOW), watched.as_store()) as made:
        leave(await accepted(made.responses))
        await made.keeper.drain(5.0)
        assert watched.calls == []
        assert not made.places()


async def test_a_client_that_leaves_while_the_end_is_written_does_not_undo_it(made: Service, watched: Watched) -> None:
    gate = watched.gates["finish"] = asyncio.Event()
    accepted_ = await accepted(made.responses, stream=True)
    response_id = only(made)
    assert accepted_.source is not None
    driver = asyncio.ensure_future(accepted_.source.drive(lambda events: None))
    await watched.until("finish")
    driver.cancel()
    await asyncio.wait([driver])
    leave(accepted_)
    gate.set()
    await made.keeper.drain(5.0)
    assert (await made.row(response_id)).status == "completed"


async def test_draining_waits_for_what_is_written_and_gives_up_what_hangs(made: Service, watched: Watched) -> None:
    accepted_ = await accepted(made.responses, stream=True)
    response_id = only(made)
    watched.gates["finish"] = asyncio.Event()
    leave(accepted_)
    async with asyncio.timeout(30):
        await made.keeper.drain(0.05)
    assert (await made.row(response_id)).status == "in_progress"


async def test_interrupted_responses_are_kept_as_failed(made: Service) -> None:
    accepted_ = await accepted(made.responses, stream=True)
    response_id = only(made)
    assert accepted_.source is not None

    def tell(events: list[Event]) -> None:
        made.responses.interrupt()

    await accepted_.source.drive(tell)
    accepted_.source.leave()
    kept = await made.stored(response_id)
    assert kept.status == "failed"
    assert kept.error is not None
    assert kept.error.code == "service_unavailable"


# ---- leases


async def held(made: Service, **body: Any) -> Kept:
    asked = decoded(stream=True, **body)
    undertaking = await made.planner.plan(TENANT, asked)
    kept = await made.keeper.begin(TENANT, undertaking.decoded, undertaking.opening)
    undertaking.leave()
    assert isinstance(kept, Kept)
    return kept


def another(seconds: float = 60.0) -> Claim:
    return Claim("another", time() + seconds)


async def test_a_heartbeat_keeps_what_is_held_and_a_scan_finds_what_is_not(made: Service, watched: Watched) -> None:
    mine, forgotten = await held(made), await held(made)
    forgotten.forget()
    watched.ahead = made.keeper.settings.lease + 1.0  # the rows' own leases are over
    made.keeper.claim = lambda: Claim(made.keeper.owner, time() + watched.ahead + 60.0)  # type: ignore[method-assign]  # by the store's clock
    await made.keeper.renew()
    claimed = await made.store.claim(another(watched.ahead + 60.0), 10)
    assert [one.row.id for one in claimed] == [forgotten.id]
    assert mine.lost is False


async def test_what_was_begun_first_is_taken_up_first(made: Service, watched: Watched) -> None:
    begun = [await held(made) for _ in range(30)]
    watched.ahead = made.keeper.settings.lease + 1.0
    claimed = await made.store.claim(another(), 0)
    assert [one.row.id for one in claimed] == [kept.id for kept in begun]


async def test_who_lost_a_response_is_told_once_and_cannot_end_it(made: Service) -> None:
    kept = await held(made)
    told: list[str] = []
    kept.on_lost = lambda: told.append(kept.id)
    assert await made.store.take(TENANT, kept.id, another()) is not None
    await made.keeper.renew()
    await made.keeper.renew()
    assert (told, kept.lost) == ([kept.id], True)
    with pytest.raises(ServerRestarted):
        await kept.end(response_in((await made.row(kept.id)).response), [])
    assert (await made.row(kept.id)).status == "in_progress"


async def test_a_client_hears_that_its_response_was_deleted_while_it_ran(watched: Watched) -> None:
    async with serving(FakeEngine(SLOW), watched.as_store()) as made:
        accepted_ = await accepted(made.responses, stream=True)
        told: list[Event] = []
        assert accepted_.source is not None
        driver = asyncio.ensure_future(accepted_.source.drive(lambda events: told.extend(events)))
        await made.store.delete(TENANT, only(made))
        await made.keeper.renew()
        async with asyncio.timeout(30):
            await driver
        accepted_.source.leave()
        assert [event.type for event in told][-2:] == ["error", "response.failed"]
        assert not made.running()


async def test_one_that_was_deleted_unnoticed_is_not_told_as_completed(made: Service, watched: Watched) -> None:
    accepted_ = await accepted(made.responses, stream=True)
    await made.store.delete(TENANT, only(made))
    events = await heard(accepted_)
    assert isinstance(events[-1], Failed)
    assert events[-1].response.error is not None
    assert events[-1].response.error.code == "server_restarted"
    await made.keeper.drain(5.0)


async def test_an_adopted_response_is_ended_by_who_adopted_it(made: Service) -> None:
    first = await held(made)
    row = await made.store.take(TENANT, first.id, made.keeper.claim())
    assert row is not None
    second = await made.keeper.adopt(TENANT, row)
    await made.keeper.renew()
    assert (first.fence, second.fence, second.lost) == (1, 2, False)
    replay = Replay(reopened(response_in(row.response)), False)
    replay.emitter.finish(Ending(status="cancelled"), None, 5)
    with pytest.raises(ServerRestarted):
        await first.end(replay.emitter.response, replay.emitter.log or [])
    await second.end(replay.emitter.response, replay.emitter.log or [])
    assert (await made.row(first.id)).status == "cancelled"


async def test_a_heart_beats_and_sweeps_until_it_is_stopped(watched: Watched) -> None:
    keeping = Keeping(lease=0.03, sweep_seconds=0.01, bounds=Bounds(entries=2))
    async with serving(FakeEngine(), watched.as_store(), keeping=keeping) as made:
        kept = await held(made)
        for _ in range(4):
            await answered(made.responses)
        heart = asyncio.ensure_future(made.keeper.attend())
        await watched.until("renew", 2)
        await watched.until("sweep", 2)
        watched.fail_all = True
        for name in ("renew", "sweep"):
            await watched.until(name, watched.calls.count(name) + 2)
        watched.fail_all = False
        for name in ("renew", "sweep"):
            await watched.until(name, watched.calls.count(name) + 2)
        assert not heart.done()
        assert kept.lost is False
        heart.cancel()
        await asyncio.wait([heart])
        assert (await made.store.tenants())[TENANT][0] <= 3


async def test_what_was_written_beyond_a_bound_goes_long_before_the_next_minute(watched: Watched) -> None:
    bounds = Bounds(entries=2, bytes=1024**2)
    async with serving(FakeEngine(), watched.as_store(), keeping=Keeping(bounds=bounds)) as made:
        heart = asyncio.ensure_future(made.keeper.attend())
        for _ in range(6):
            await answered(made.responses)
        async with asyncio.timeout(30):
            while (await made.store.tenants())[TENANT][0] > 2:
                pass
        swept = watched.calls.count("sweep")
        made.keeper.sweeper.wrote(1024**2 // 16)
        await watched.until("sweep", swept + 1)
        heart.cancel()
        await asyncio.wait([heart])


# ---- idempotency keys


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.shows("B.12")
async def test_the_same_key_and_body_give_the_same_response(made: Service, engine: FakeEngine, stream: bool) -> None:
    asked = decoded(stream=stream)
    first = await made.responses.create(TENANT, asked, KEY)
    told = await heard(first) if stream else [await result(first)]
    again = await made.responses.create(TENANT, decoded(stream=stream), KEY)
    retold = await heard(again) if stream else [await result(again)]
    assert list(map(encode, told)) == list(map(encode, retold))
    assert len(engine.seen) == 1


@pytest.mark.shows("B.12")
async def test_a_key_is_joined_though_what_it_continues_is_gone(made: Service, engine: FakeEngine) -> None:
    first = await answered(made.responses)
    asked = {"previous_response_id": first.id}
    second = await result(await made.responses.create(TENANT, decoded(**asked), KEY))
    await made.store.delete(TENANT, first.id)
    made.past.forget(TENANT, second.id)
    made.past.forget(TENANT, first.id)
    assert await result(await made.responses.create(TENANT, decoded(**asked), KEY)) == second
    assert len(engine.seen) == 2


@pytest.mark.shows("B.13")
async def test_another_body_under_the_same_key_is_refused(made: Service, engine: FakeEngine) -> None:
    await result(await made.responses.create(TENANT, decoded(), KEY))
    with pytest.raises(KeyReused) as refused:
        await made.responses.create(TENANT, decoded(input="other"), Key(KEY.name, b"other", KEY.expires))
    assert refused.value.status == 400
    assert len(engine.seen) == 1


@pytest.mark.shows("B.12")
async def test_two_at_once_with_one_key_are_one_response(made: Service, engine: FakeEngine) -> None:
    both = await asyncio.gather(*[made.responses.create(TENANT, decoded(), KEY) for _ in range(2)])
    one, other = await asyncio.gather(*map(result, both))
    assert one == other
    assert len(engine.seen) == 1


async def test_a_key_is_one_tenants_own(made: Service, engine: FakeEngine) -> None:
    one = await result(await made.responses.create(TENANT, decoded(), KEY))
    other = await result(await made.responses.create("another", decoded(), KEY))
    assert one.id != other.id


async def test_a_key_needs_a_response_that_is_stored(made: Service, engine: FakeEngine) -> None:
    with pytest.raises(UnsupportedParameter, match="Idempotency-Key"):
        await made.responses.create(TENANT, decoded(store=False), KEY)
    assert not engine.seen


@pytest.mark.shows("B.12")
async def test_a_background_response_is_found_by_its_key(made: Service) -> None:
    first = await result(await made.responses.create(TENANT, decoded(background=True), KEY))
    assert (first.status, first.background) == ("queued", True)
    again = await result(await made.responses.create(TENANT, decoded(background=True), KEY))
    assert again.id == first.id
    async with asyncio.timeout(30):
        await made.sessions.drained()
    last = await result(await made.responses.create(TENANT, decoded(background=True), KEY))
    assert (last.id, last.status) == (first.id, "completed")


# ---- bounds


@pytest.mark.shows("B1.6")
async def test_no_more_run_at_once_than_may(engine: FakeEngine, watched: Watched) -> None:
    async with serving(engine, watched.as_store(), sessions=SessionSettings(most=2)) as made:
        first, second = await accepted(made.responses, stream=True), await accepted(made.responses, store=False)
        calls = len(watched.calls)
        for body in ({}, {"stream": True}, {"store": False}):
            with pytest.raises(Busy) as busy:
                await accepted(made.responses, **body)
            assert busy.value.retry_after is not None
        assert len(watched.calls) == calls
        await result(second)
        await answered(made.responses)
        await heard(first)
        assert not made.places()


async def test_what_is_refused_takes_no_place(watched: Watched) -> None:
    engine = FakeEngine(FakeSettings(at_once=1))
    async with serving(engine, watched.as_store(), sessions=SessionSettings(most=1), queue=0) as made:
        for body in ({"model": None}, {"previous_response_id": "resp_1"}, {"temperature": 1.0, "best_of": 2}):
            with pytest.raises(Exception):  # noqa: B017, PT011  # whatever it is, the place is free again
                await accepted(made.responses, **body)
        watched.fail_all = True
        with pytest.raises(Unavailable):
            await accepted(made.responses, stream=True)
        watched.fail_all = False
        assert (await answered(made.responses)).status == "completed"

import asyncio

import msgspec
import pytest

from antiphon.core.deltas import Text
from antiphon.errors import Busy, EngineFailed, NotFound
from antiphon.protocol.types.events import Completed, Event, Failed, Incomplete
from antiphon.protocol.types.response import Response
from antiphon.service.runs.active_runs import Places, Running
from antiphon.service.runs.source import Source
from antiphon.stores.base import Key
from tests.service.service_nodes import TENANT, House, Listener, heard, houses, types, wire

pytestmark = pytest.mark.anyio
KEY = Key("mine", b"digest", 4e9)


async def until_over(house: House, response_id: str) -> None:
    running = house.sessions.find(TENANT, response_id)
    if running is not None:
        async with asyncio.timeout(30):
            await running.finished()


def running(house: House, listener: Listener) -> Running:
    found = house.sessions.find(TENANT, listener.id)
    assert found is not None
    return found


async def source_of(house: House, **body: object) -> Source:
    accepted = await house.create(**body)  # type: ignore[arg-type]  # any body
    assert accepted.source is not None
    return accepted.source


# ---- readers


async def test_a_kept_stream_is_taken_up_again_where_it_was_left() -> None:
    async with houses(keep_streams=60.0) as (house,):
        house.engine.says(Text("a"), Text("b"), Text("c"), Text("d"))
        gate = house.engine.holds(after=2)
        first = await house.streaming()
        await gate.reached.wait()
        await first.go_away()
        assert house.engine.running == 1
        last = first.events[-1].sequence_number
        second = Listener(await house.following.replay(TENANT, first.id, last)).start()
        gate.open()
        events = first.events + await second.all()
        assert isinstance(events[-1], Completed)
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert wire(events) == wire(await house.heard(first.id))


async def test_a_kept_stream_to_which_nobody_comes_back_is_cancelled() -> None:
    async with houses(keep_streams=0.02) as (house,):
        house.engine.says(Text("a"), Text("b"))
        gate = house.engine.holds(after=1)
        listener = await house.streaming()
        await gate.reached.wait()
        await listener.go_away()
        await until_over(house, listener.id)
        assert (await house.get(listener.id)).status == "cancelled"
        assert (house.engine.running, house.engine.cancelled) == (0, 1)


async def test_a_kept_stream_is_not_cancelled_while_somebody_else_listens() -> None:
    async with houses(keep_streams=0.01) as (house,):
        house.engine.says(Text("a"), Text("b"))
        gate = house.engine.holds(after=1)
        first = await house.streaming()
        second = Listener(await house.following.replay(TENANT, first.id)).start()
        await gate.reached.wait()
        await first.go_away()
        third = Listener(await house.following.replay(TENANT, first.id)).start()
        await second.go_away()
        gate.open()
        assert isinstance((await third.all())[-1], Completed)


async def test_without_kept_streams_a_session_ends_with_its_last_reader() -> None:
    async with houses() as (house,):
        house.engine.says(Text("a"), Text("b"))
        gate = house.engine.holds(after=1)
        listener = await house.streaming(key=KEY)
        await gate.reached.wait()
        await listener.go_away()
        await until_over(house, listener.id)
        assert (await house.get(listener.id)).status == "cancelled"
        assert isinstance((await house.heard(listener.id))[-1], Incomplete)
        assert house.engine.running == 0


async def test_a_session_that_is_left_before_its_task_began_is_cancelled_too() -> None:
    async with houses() as (house,):
        source = await source_of(house, key=KEY)
        source.leave()
        source.leave()
        await house.sessions.drained()
        assert house.engine.requests == 0
        assert types(await heard(source)) == ["response.created", "response.incomplete"]
        assert await house.keeper.keyed(TENANT, KEY) is None


async def test_every_reader_hears_the_same_and_a_slow_one_holds_up_nobody() -> None:
    async with houses(keep_streams=60.0) as (house,):
        house.engine.says(*[Text(f"{number} ") for number in range(300)])
        go_on = asyncio.Event()
        told: list[int] = []
        first = await house.streaming()

        async def slowly(events: list[Event]) -> None:
            told.append(len(events))
            await go_on.wait()

        slow = await house.following.replay(TENANT, first.id)
        task = asyncio.ensure_future(slow.drive(slowly))
        events = await first.all()
        assert isinstance(events[-1], Completed)
        assert len(told) == 1
        go_on.set()
        async with asyncio.timeout(30):
            await task
        slow.leave()
        assert sum(told) == len(events)


@pytest.mark.shows("B1.2")
async def test_a_stream_that_is_not_stored_can_be_joined_while_it_runs_and_not_later() -> None:
    async with houses(keep_streams=60.0) as (house,):
        house.engine.says(Text("a"), Text("b"))
        gate = house.engine.holds(after=1)
        first = await house.streaming(store=False)
        await gate.reached.wait()
        with pytest.raises(NotFound):
            await house.following.replay("another", first.id)
        second = Listener(await house.following.replay(TENANT, first.id)).start()
        gate.open()
        assert wire(await second.all()) == wire(await first.all())
        await until_over(house, first.id)
        with pytest.raises(NotFound):
            await house.following.replay(TENANT, first.id)
        assert await house.store.get(TENANT, first.id) is None


# ---- ends


async def test_a_failed_session_is_told_to_all_and_raised_from_result() -> None:
    async with houses() as (house,):
        house.engine.says(Text("a"))
        house.engine.fails(EngineFailed("It died."), after=1)
        source = await source_of(house, key=KEY)
        events, raised = await asyncio.gather(
            heard(await house.following.replay(TENANT, str(await house.keeper.keyed(TENANT, KEY)))),
            asyncio.gather(source.result(), return_exceptions=True),
        )
        source.leave()
        assert types(events)[-2:] == ["error", "response.failed"]
        assert isinstance(raised[0], EngineFailed)
        again = await house.create(KEY)  # joins what has ended long ago
        assert again.source is not None
        with pytest.raises(EngineFailed, match="It died"):
            await again.source.result()


@pytest.mark.shows("B.12")
async def test_ten_requests_with_one_key_are_one_response() -> None:
    async with houses() as (house,):
        house.engine.says(Text("a"), Text("b"))
        gate = house.engine.holds(after=1)
        first = await source_of(house, key=KEY)
        others = [await source_of(house, key=KEY) for _ in range(9)]
        results = asyncio.gather(*[source.result() for source in (first, *others)])
        await gate.reached.wait()
        others[0].leave()
        gate.open()
        bodies = await results
        assert len(set(bodies)) == 1
        assert msgspec.json.decode(bodies[0], type=Response).status == "completed"
        assert house.engine.requests == 1
        for source in (first, *others):
            source.leave()


async def test_an_end_that_cannot_be_stored_is_told_as_a_failure_and_stored_as_one() -> None:
    async with houses(keep_streams=60.0, lease=1.0) as (house,):
        house.store.down = {"finish"}
        events = await (await house.streaming()).all()
        last = events[-1]
        assert isinstance(last, Failed)
        assert "response.completed" not in types(events)
        house.store.down = set()
        await house.keeper.drain(5.0)
        assert wire(await house.heard(last.response.id)) == wire(events)


async def test_a_deleted_response_stops_its_session() -> None:
    async with houses(keep_streams=60.0) as (house,):
        house.engine.says(Text("a"), Text("b"))
        house.engine.holds(after=1)
        listener = await house.streaming()
        await listener.until("response.output_text.delta")
        assert await house.store.delete(TENANT, listener.id)
        await house.sessions.deleted(TENANT, listener.id)
        assert isinstance((await listener.all())[-1], Failed)
        assert house.engine.running == 0
        assert await house.store.get(TENANT, listener.id) is None


async def test_at_shutdown_a_foreground_session_ends_failed_and_that_is_stored() -> None:
    async with houses(keep_streams=60.0) as (house,):
        house.engine.says(Text("a"), Text("b"))
        house.engine.holds(after=1)
        listener = await house.streaming()
        await listener.until("response.output_text.delta")
        house.responses.interrupt()
        events = await listener.all()
        await house.sessions.drained()
        response = await house.get(listener.id)
        assert types(events)[-1] == "response.failed"
        assert response.error is not None
        assert response.error.code == "service_unavailable"


async def test_a_session_whose_task_has_not_begun_is_interrupted_too() -> None:
    async with houses(keep_streams=60.0) as (house,):
        house.engine.holds(after=0)
        source = await source_of(house, stream=True)
        house.responses.interrupt()
        assert types(await heard(source))[-1] == "response.failed"


# ---- direct runs, and bounds


async def test_a_direct_run_can_be_followed_and_its_end_is_told_when_it_is_kept() -> None:
    async with houses() as (house,):
        house.engine.says(Text("a"), Text("b"), Text("c"))
        gate = house.engine.holds(after=1)
        direct = await house.streaming()
        await gate.reached.wait()
        follower = Listener(await house.following.replay(TENANT, direct.id)).start()
        await follower.until("response.output_text.delta")
        assert follower.source.waits
        finish, asked, go_on = house.store.finish, asyncio.Event(), asyncio.Event()

        async def slow(*values: object) -> None:
            asked.set()
            await go_on.wait()
            await finish(*values)  # type: ignore[arg-type]  # as they came

        house.store.finish = slow  # type: ignore[method-assign, assignment]  # a store that takes its time
        gate.open()
        await asked.wait()
        assert not any(isinstance(event, Completed) for event in follower.events)
        go_on.set()
        assert wire(await follower.all()) == wire(await direct.all())


async def test_a_direct_run_whose_client_left_ends_cancelled_for_its_followers() -> None:
    async with houses() as (house,):
        house.engine.says(Text("a"), Text("b"))
        gate = house.engine.holds(after=1)
        direct = await house.streaming()
        await gate.reached.wait()
        follower = Listener(await house.following.replay(TENANT, direct.id)).start()
        await follower.until("response.output_text.delta")
        await direct.go_away()
        events = await follower.all()
        last = events[-1]
        assert isinstance(last, Incomplete)
        assert last.response.status == "cancelled"
        assert wire(await house.heard(direct.id)) == wire(events)


@pytest.mark.shows("B1.6")
async def test_too_many_responses_at_once_are_a_429() -> None:
    async with houses(most=2, keep_streams=60.0) as (house,):
        house.engine.says(Text("a"))
        house.engine.holds(after=0)
        first = await house.streaming()
        house.engine.says(Text("a"))
        gate = house.engine.holds(after=0)
        second = await source_of(house, store=False)
        task = asyncio.ensure_future(second.result())
        await gate.reached.wait()
        with pytest.raises(Busy) as refused:
            await house.create()
        assert refused.value.retry_after is not None
        task.cancel()
        await asyncio.wait([task])
        second.leave()
        third = await house.create()
        assert third.source is not None
        await third.source.result()
        third.source.leave()
        running(house, first)
        assert house.sessions.count() == 1
        await first.go_away()


async def test_a_long_direct_run_can_be_followed_from_its_middle() -> None:
    async with houses() as (house,):
        house.engine.says(*[Text(f"{number} ") for number in range(500)])
        gate = house.engine.holds(after=300)
        direct = await house.streaming()
        await gate.reached.wait()
        follower = Listener(await house.following.replay(TENANT, direct.id)).start()
        await follower.until("response.output_text.delta")
        gate.open()
        assert wire(await follower.all()) == wire(await direct.all())
        assert wire(await house.heard(direct.id)) == wire(direct.events)


def test_a_tenant_that_has_taken_all_places_keeps_nobody_else_out() -> None:
    places = Places(2)
    loud = [places.enter("loud"), places.enter("loud")]
    with pytest.raises(Busy):
        places.enter("loud")
    quiet = places.enter("quiet")
    with pytest.raises(Busy):
        places.enter("quiet")
    quiet.leave()
    quiet.leave()
    places.enter("quiet").leave()
    loud[0].leave()
    places.enter("loud")

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from antiphon.core.deltas import Text
from antiphon.engines.fake import FakeSettings
from antiphon.errors import Busy, NotCancellable, NotFound
from antiphon.protocol.types.events import Completed, Failed, Incomplete
from antiphon.protocol.types.response import Response
from tests.service.service_nodes import TENANT, Clock, House, Listener, heard, houses, types, wire

pytestmark = pytest.mark.anyio


def decoded(body: bytes) -> Response:
    return msgspec.json.decode(body, type=Response)


@asynccontextmanager
async def attended(*servers: House) -> AsyncIterator[None]:
    """While their queues are attended to."""
    tasks = [asyncio.ensure_future(server.jobs.attend()) for server in servers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)


# ---- a background response's life


@pytest.mark.shows("B.6")
async def test_a_background_response_is_queued_in_progress_and_completed() -> None:
    async with houses() as (house,):
        house.engine.says(Text("a"), Text("b"))
        gate = house.engine.holds(after=1)
        accepted = await house.create(background=True)
        assert accepted.given is not None
        assert decoded(accepted.given).status == "queued"
        response_id = decoded(accepted.given).id
        await gate.reached.wait()
        async with asyncio.timeout(30):
            await house.store.started.wait()
        assert (await house.get(response_id)).status == "in_progress"
        gate.open()
        response = await house.ended(response_id)
        assert response.status == "completed"
        assert response.output


@pytest.mark.shows("A1.3")
async def test_a_streamed_background_response_goes_on_without_its_client_and_is_resumed() -> None:
    async with houses() as (house,):
        house.engine.says(Text("a"), Text("b"), Text("c"))
        gate = house.engine.holds(after=2)
        first = await house.streaming(background=True)
        await first.until("response.output_text.delta")
        await first.go_away()
        await gate.reached.wait()
        gate.open()
        last = first.events[-1].sequence_number
        events = first.events + await house.heard(first.id, last)
        assert types(events)[:3] == ["response.created", "response.queued", "response.in_progress"]
        assert isinstance(events[-1], Completed)
        assert wire(events) == wire(await house.heard(first.id))


async def test_what_is_streamed_in_the_background_is_durable_before_it_is_told() -> None:
    async with houses() as (house,):
        house.engine.says(Text("a"), Text("b"), Text("c"))
        gate = house.engine.holds(after=3)
        house.store.down = {"append"}
        listener = await house.streaming(background=True)
        await gate.reached.wait()
        assert types(listener.events) == ["response.created", "response.queued"]
        house.store.down = set()
        await listener.until("response.output_text.delta")
        assert await house.store.read(TENANT, listener.id, -1)
        gate.open()
        assert isinstance((await listener.all())[-1], Completed)
        assert not await house.store.read(TENANT, listener.id, -1)


async def test_without_a_stream_nothing_is_written_before_the_end() -> None:
    async with houses() as (house,):
        house.engine.says(Text("a"), Text("b"))
        gate = house.engine.holds(after=2)
        response_id = await house.background()
        await gate.reached.wait()
        assert not await house.store.read(TENANT, response_id, -1)
        follower = Listener(await house.following.replay(TENANT, response_id)).start()
        await follower.until("response.queued")
        gate.open()
        assert isinstance((await follower.all())[-1], Completed)


# ---- slots and the queue


async def test_no_more_run_at_once_than_there_are_slots_and_the_others_follow_in_order() -> None:
    async with houses(slots=2) as (house,), attended(house):
        gates = []
        for number in range(6):
            house.engine.says(Text(f"answer {number}"))
            gates.append(house.engine.holds(after=0))
        ids = [await house.background(input=f"number {number}") for number in range(6)]
        for number in range(6):
            async with asyncio.timeout(30):
                await gates[number].reached.wait()
            assert house.engine.running <= 2
            gates[number].open()
        responses = [await house.ended(response_id) for response_id in ids]
        assert [response.status for response in responses] == ["completed"] * 6
        assert house.engine.requests == 6
        said = [work.prompt.messages[-1]["content"] for work in house.engine.seen]  # type: ignore[union-attr]  # chats
        assert said == [f"number {number}" for number in range(2, 6)]  # it remembers the last four


async def test_those_in_a_hurry_are_taken_out_of_the_queue_before_older_ones() -> None:
    async with houses(slots=1) as (house,), attended(house):
        house.engine.says(Text("a"))
        first = house.engine.holds(after=0)
        await house.background()
        patient = [await house.background(service_tier="flex") for _ in range(24)]
        hurried = [await house.background(service_tier="priority") for _ in range(24)]
        for _ in range(24):
            house.engine.says(Text("b"))
        house.engine.says(Text("c"))
        half = house.engine.holds(after=0)
        first.open()
        async with asyncio.timeout(30):
            await half.reached.wait()
        ended = [name for name in hurried if (await house.get(name)).status == "completed"]
        assert len(ended) > 12, "though one in nine turns goes to the others"
        half.open()
        for name in (*patient, *hurried):
            assert (await house.ended(name)).status == "completed"


async def test_a_stream_that_waits_in_the_queue_is_told_when_its_turn_comes() -> None:
    async with houses(slots=1) as (house,), attended(house):
        house.engine.says(Text("a"))
        gate = house.engine.holds(after=0)
        first = await house.background()
        second = await house.streaming(background=True)
        await gate.reached.wait()
        assert types(second.events) == ["response.created", "response.queued"]
        gate.open()
        events = await second.all()
        assert isinstance(events[-1], Completed)
        assert wire(events) == wire(await house.heard(second.id))
        assert (await house.ended(first)).status == "completed"


async def test_what_one_server_has_no_slot_for_is_run_by_another() -> None:
    async with houses(2, slots=1) as (one, other), attended(other):
        one.engine.says(Text("a"))
        gate = one.engine.holds(after=0)
        first, second = await one.background(), await one.background()
        assert (await one.ended(second)).status == "completed"
        assert (one.engine.requests, other.engine.requests) == (1, 1)
        gate.open()
        assert (await other.ended(first)).status == "completed"


@pytest.mark.shows("B.6")
async def test_beyond_the_queue_of_a_tenant_there_is_a_429() -> None:
    async with houses(slots=1, room=2) as (house,):
        house.engine.says(Text("a"))
        house.engine.holds(after=0)
        await house.background()
        await house.background()
        with pytest.raises(Busy) as refused:
            await house.background()
        assert refused.value.retry_after is not None


async def test_background_work_waits_for_the_model_without_being_busy_and_takes_nobodys_place() -> None:
    async with houses() as (house,):
        house.engine.__init__(FakeSettings(burst=1, at_once=1))  # type: ignore[misc]  # the same engine, with one slot
        house.engine.says(Text("a"))
        gate = house.engine.holds(after=0)
        ids = [await house.background() for _ in range(10)]
        await gate.reached.wait()
        foreground = await house.streaming()  # the queue of four is not taken up by the nine that wait
        gate.open()
        assert isinstance((await foreground.all())[-1], Completed)
        assert {(await house.ended(response_id)).status for response_id in ids} == {"completed"}


async def test_a_scan_outlives_a_store_that_does_not_answer() -> None:
    async with houses(slots=1, lease=0.2) as (house,), attended(house):
        house.engine.says(Text("a"))
        gate = house.engine.holds(after=0)
        await house.background()
        second = await house.background()
        house.store.down = {"claim"}
        gate.open()
        async with asyncio.timeout(30):
            await house.store.refused.wait()
        house.store.down = set()
        assert (await house.ended(second)).status == "completed"


# ---- cancel


@pytest.mark.shows("A.7")
async def test_a_running_response_is_cancelled_and_its_engine_is_free() -> None:
    async with houses() as (house,):
        house.engine.says(Text("a"), Text("b"))
        house.engine.holds(after=1)
        listener = await house.streaming(background=True)
        await listener.until("response.output_text.delta")
        response = decoded(await house.jobs.cancel(TENANT, listener.id))
        assert response.status == "cancelled"
        assert house.engine.running == 0
        last = (await listener.all())[-1]
        assert isinstance(last, Incomplete)
        assert last.response.status == "cancelled"
        assert (await house.get(listener.id)).status == "cancelled"
        assert wire(await house.heard(listener.id)) == wire(listener.events)


@pytest.mark.shows("B.8")
async def test_cancelling_again_changes_nothing_and_neither_does_cancelling_what_completed() -> None:
    async with houses() as (house,):
        gate = house.engine.holds(after=0)
        cancelled = await house.background()
        await gate.reached.wait()
        bodies = [await house.jobs.cancel(TENANT, cancelled) for _ in range(3)]
        assert len(set(bodies)) == 1
        completed = await house.background()
        await house.ended(completed)
        assert decoded(await house.jobs.cancel(TENANT, completed)).status == "completed"


@pytest.mark.shows("B.8")
async def test_a_hundred_cancels_race_with_the_end_and_all_say_the_same() -> None:
    async with houses(2) as (one, other):
        statuses = set()
        for steps in range(12):
            one.engine.says(*[Text("x")] * 4)
            gate = one.engine.holds(after=4)
            response_id = await one.background()
            await gate.reached.wait()
            gate.open()
            for _ in range(steps):
                await asyncio.sleep(0)
            cancels = [house.jobs.cancel(TENANT, response_id) for house in (one,) * 90 + (other,) * 10]
            async with asyncio.timeout(30):
                bodies = await asyncio.gather(*cancels)
            assert len(set(bodies)) == 1
            assert (await one.store.get(TENANT, response_id)).response == bodies[0]  # type: ignore[union-attr]  # there
            assert types(await other.heard(response_id))[-1] in ("response.completed", "response.incomplete")
            statuses.add(decoded(bodies[0]).status)
        assert statuses <= {"completed", "cancelled"}
        assert (one.engine.running, other.engine.requests) == (0, 0)


async def test_a_response_that_waits_in_the_queue_is_cancelled_and_never_runs() -> None:
    async with houses(slots=1) as (house,):
        house.engine.says(Text("a"))
        gate = house.engine.holds(after=0)
        first, second = await house.background(), await house.background()
        await gate.reached.wait()
        assert decoded(await house.jobs.cancel(TENANT, second)).status == "cancelled"
        assert types(await house.heard(second)) == ["response.created", "response.queued", "response.incomplete"]
        gate.open()
        await house.ended(first)
        await house.jobs.scan()
        assert house.engine.requests == 1


async def test_a_response_that_another_server_runs_is_cancelled_and_stops_there_at_once() -> None:
    async with houses(2) as (owner, other):
        owner.engine.says(Text("a"), Text("b"))
        owner.engine.holds(after=1)
        listener = await owner.streaming(background=True)
        await listener.until("response.output_text.delta")
        follower = Listener(await other.following.replay(TENANT, listener.id)).start()
        await follower.until("response.output_text.delta")
        assert decoded(await other.jobs.cancel(TENANT, listener.id)).status == "cancelled"
        events = await listener.all()
        await owner.settled()
        assert wire(await follower.all()) == wire(events) == wire(await other.heard(listener.id))
        last = events[-1]
        assert isinstance(last, Incomplete)
        assert last.response.status == "cancelled"


async def test_a_response_without_a_stream_that_another_server_runs_is_cancelled_there_too() -> None:
    async with houses(2) as (owner, other):
        gate = owner.engine.holds(after=0)
        response_id = await owner.background()
        await gate.reached.wait()
        assert decoded(await other.jobs.cancel(TENANT, response_id)).status == "cancelled"
        await owner.settled()
        assert owner.engine.running == 0
        assert (await owner.get(response_id)).status == "cancelled"


async def test_a_response_whose_owner_died_is_cancelled() -> None:
    async with houses(2) as (dead, other):
        dead.engine.says(Text("a"), Text("b"))
        dead.engine.holds(after=1)
        listener = await dead.streaming(background=True)
        await listener.until("response.output_text.delta")
        before = [*listener.events]
        await listener.go_away()
        dead.die()
        await dead.sessions.drained()
        assert decoded(await other.jobs.cancel(TENANT, listener.id)).status == "cancelled"
        events = await other.heard(listener.id)
        assert wire(events[: len(before)]) == wire(before)
        assert types(events)[-4:] == [
            "response.output_text.done", "response.content_part.done", "response.output_item.done",
            "response.incomplete",
        ]  # fmt: skip


@pytest.mark.shows("A.8")
async def test_what_is_not_in_the_background_cannot_be_cancelled() -> None:
    async with houses() as (house,):
        house.engine.says(Text("a"), Text("b"))
        gate = house.engine.holds(after=1)
        running = await house.streaming()
        await gate.reached.wait()
        with pytest.raises(NotCancellable):
            await house.jobs.cancel(TENANT, running.id)
        gate.open()
        await running.all()
        with pytest.raises(NotCancellable):
            await house.jobs.cancel(TENANT, running.id)


async def test_what_is_unknown_or_somebody_elses_cannot_be_cancelled() -> None:
    async with houses() as (house,):
        gate = house.engine.holds(after=0)
        response_id = await house.background()
        for tenant, asked in (("another", response_id), (TENANT, "resp_" + "0" * 32)):
            with pytest.raises(NotFound):
                await house.jobs.cancel(tenant, asked)
        gate.open()
        assert (await house.ended(response_id)).status == "completed"


# ---- deadlines, deletion and the way down


async def test_a_background_response_has_a_deadline_from_its_creation() -> None:
    async with houses(timeout=0.0) as (house,):
        house.engine.holds(after=0)
        listener = await house.streaming(background=True)
        last = (await listener.all())[-1]
        assert isinstance(last, Failed)
        assert last.response.error is not None
        assert "longer" in last.response.error.message
        assert house.engine.running == 0


async def test_one_that_waited_beyond_its_deadline_is_not_run() -> None:
    clock = Clock()
    async with houses(slots=1, clock=clock) as (house,):
        gate = house.engine.holds(after=0)
        first, second = await house.background(), await house.background()
        await gate.reached.wait()
        gate.open()
        await house.ended(first)
        clock.jump(100_000.0)
        await house.jobs.scan()
        response = await house.ended(second)
        assert response.status == "failed"
        assert house.engine.requests == 1


async def test_a_deleted_background_response_stops_and_those_who_follow_it_are_told() -> None:
    async with houses(2) as (owner, other):
        owner.engine.says(Text("a"), Text("b"))
        owner.engine.holds(after=1)
        listener = await owner.streaming(background=True)
        await listener.until("response.output_text.delta")
        follower = Listener(await other.following.replay(TENANT, listener.id)).start()
        await follower.until("response.output_text.delta")
        assert await other.store.delete(TENANT, listener.id)
        await other.sessions.deleted(TENANT, listener.id)
        for events in (await follower.all(), await listener.all()):
            last = events[-1]
            assert isinstance(last, Failed)
            assert [event.sequence_number for event in events] == list(range(len(events)))
        await owner.settled()


async def test_at_shutdown_what_nobody_has_heard_is_run_by_another_server() -> None:
    async with houses(2) as (one, other), attended(other):
        gate = one.engine.holds(after=0)
        silent = await one.background()
        await gate.reached.wait()
        one.engine.says(Text("a"), Text("b"))
        begun = one.engine.holds(after=0)
        listener = await one.streaming(background=True)
        await begun.reached.wait()
        await listener.until("response.in_progress")  # it began, but has not said anything
        follower = Listener(await other.following.replay(TENANT, listener.id)).start()
        await one.sessions.close()
        assert one.engine.running == 0
        assert (await other.ended(silent)).status == "completed"
        events = await follower.all()
        assert isinstance(events[-1], Completed)
        assert wire(events) == wire(await other.heard(listener.id))
        assert types(events).count("response.in_progress") == 1
        assert types(await listener.all())[-1] == "error"  # this stream cannot go on here
        assert other.engine.requests == 2


async def test_at_shutdown_what_was_streamed_ends_failed() -> None:
    async with houses(2) as (one, other), attended(other):
        one.engine.says(Text("a"), Text("b"))
        one.engine.holds(after=1)
        listener = await one.streaming(background=True)
        await listener.until("response.output_text.delta")
        await one.sessions.close()
        events = await listener.all()
        last = events[-1]
        assert isinstance(last, Failed)
        assert last.response.error is not None
        assert last.response.error.code == "server_restarted"
        assert wire(events) == wire(await other.heard(listener.id))
        assert other.engine.requests == 0


async def test_a_server_that_is_about_to_stop_takes_up_nothing_more() -> None:
    async with houses(2, slots=1) as (one, other):
        gate = one.engine.holds(after=0)
        first = await one.background()
        await gate.reached.wait()
        one.jobs.rest()
        second, third = await one.background(), await one.background()
        gate.open()
        await one.ended(first)
        await one.jobs.scan()
        async with attended(other):
            for response_id in (second, third):
                assert (await other.ended(response_id)).status == "completed"
        assert (one.engine.requests, other.engine.requests) == (1, 2)


async def test_background_work_that_comes_after_the_doors_were_closed_is_left_to_others() -> None:
    async with houses(2) as (one, other), attended(other):
        one.responses.interrupt()
        response_id = await one.background()
        assert (await other.ended(response_id)).status == "completed"
        assert one.engine.requests == 0


async def test_a_follower_of_the_queue_hears_its_own_end_even_if_words_get_lost() -> None:
    async with houses(2, slots=1) as (one, other):
        one.cut()
        gate = one.engine.holds(after=0)
        await one.background()
        listener = await one.streaming(background=True)
        await other.jobs.scan()
        assert isinstance((await listener.all())[-1], Completed)
        gate.open()


async def test_a_background_result_is_the_json_of_its_end() -> None:
    async with houses() as (house,):
        response_id = await house.background()
        source = await house.following.replay(TENANT, response_id)
        async with asyncio.timeout(30):
            assert decoded(await source.result()).status == "completed"
        source.leave()
        assert await heard(await house.following.replay(TENANT, response_id))

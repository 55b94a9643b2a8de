import asyncio
from itertools import pairwise

import pytest

from antiphon.core.deltas import CallDelta, CallStarted, Text
from antiphon.engines.fake.reply import Gate
from antiphon.errors import ModelNotFound, Unavailable
from antiphon.protocol.types.events import Completed, Failed
from antiphon.protocol.types.response import Response
from tests.service.service_nodes import TENANT, Clock, House, Listener, heard, houses, types, wire

pytestmark = pytest.mark.anyio
LEASE = 15.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def die(house: House, clock: Clock) -> None:
    """It is killed, and its lease runs out."""
    house.die()
    await house.sessions.drained()
    clock.jump(LEASE + 1)


def code(response: Response) -> str | None:
    return None if response.error is None else response.error.code


# ---- what is run again


@pytest.mark.shows("B.7")
async def test_what_nobody_heard_of_a_dead_server_is_run_again_and_completes(clock: Clock) -> None:
    async with houses(2, clock) as (dead, other):
        gate = dead.engine.holds(after=0)
        response_id = await dead.background(instructions="Be brief.", metadata={"a": "b"}, temperature=0.5)
        await gate.reached.wait()
        await other.jobs.scan()
        assert other.engine.requests == 0  # its owner is alive
        await die(dead, clock)
        await other.jobs.scan()
        response = await other.ended(response_id)
        assert response.status == "completed"
        assert (response.metadata, response.temperature) == ({"a": "b"}, 0.5)
        assert other.engine.seen[-1].prompt == dead.engine.seen[-1].prompt
        assert other.engine.seen[-1].sampling == dead.engine.seen[-1].sampling


async def test_a_stream_that_only_began_is_run_again_without_a_gap_or_a_repetition(clock: Clock) -> None:
    async with houses(2, clock) as (dead, other):
        gate = dead.engine.holds(after=0)
        listener = await dead.streaming(background=True)
        await gate.reached.wait()
        await listener.until("response.in_progress")
        await listener.go_away()
        follower = Listener(await other.following.replay(TENANT, listener.id)).start()
        await follower.until("response.in_progress")
        await die(dead, clock)
        await other.jobs.scan()
        events = await follower.all()
        assert isinstance(events[-1], Completed)
        assert types(events).count("response.in_progress") == 1
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert wire(events) == wire(await other.heard(listener.id))
        assert wire(events[:3]) == wire(listener.events)


async def test_what_waited_in_a_dead_servers_queue_is_run(clock: Clock) -> None:
    async with houses(2, clock, slots=1) as (dead, other):
        gate = dead.engine.holds(after=0)
        ids = [await dead.background() for _ in range(3)]
        await gate.reached.wait()
        await die(dead, clock)
        for _ in ids:
            await other.jobs.scan()
            await other.settled()
        assert {(await other.ended(response_id)).status for response_id in ids} == {"completed"}
        assert other.engine.requests == 3


async def test_no_more_is_claimed_than_there_are_slots(clock: Clock) -> None:
    async with houses(2, clock, slots=2) as (dead, other):
        gates = []
        for _ in range(2):
            dead.engine.says(Text("a"))
            gates.append(dead.engine.holds(after=0))
        for _ in range(5):
            await dead.background()
        for gate in gates:
            await gate.reached.wait()
        await die(dead, clock)
        for _ in range(2):
            other.engine.says(Text("a"))
            other.engine.holds(after=0)
        await other.jobs.scan()
        await other.jobs.scan()
        assert len(await other.store.claim(other.keeper.claim(), 100)) == 3


async def test_a_response_that_was_committed_is_not_run_again(clock: Clock) -> None:
    async with houses(2, clock) as (dead, other):
        response_id = await dead.background()
        completed = await dead.ended(response_id)
        await die(dead, clock)
        await other.jobs.scan()
        await other.settled()
        assert other.engine.requests == 0
        assert await other.get(response_id) == completed


async def gives_a_sign_and_goes_on(owner: House, other: House, gate: Gate, response_id: str) -> None:
    await owner.keeper.renew()
    other.jobs._wary_until = 0.0  # the time for that is over
    await other.jobs._look()
    gate.open()
    assert (await owner.ended(response_id)).status == "completed"
    assert (owner.keeper.lost, other.engine.requests) == (0, 0)


async def test_after_a_store_was_away_nobody_is_taken_for_dead_before_it_could_give_a_sign_of_life(
    clock: Clock,
) -> None:
    async with houses(2, clock) as (owner, other):
        gate = owner.engine.holds(after=0)
        response_id = await owner.background()
        await gate.reached.wait()
        owner.store.down = {"renew", "claim"}
        clock.jump(LEASE + 1)
        await other.jobs._look()
        owner.store.down = set()
        await other.jobs._look()
        await gives_a_sign_and_goes_on(owner, other, gate, response_id)


async def test_who_starts_when_a_store_is_back_takes_nobody_for_dead_before_a_sign_of_life(clock: Clock) -> None:
    async with houses(2, clock) as (owner, other):
        gate = owner.engine.holds(after=0)
        response_id = await owner.background()
        await gate.reached.wait()
        clock.jump(LEASE + 1)  # nobody could renew anything
        starting = asyncio.ensure_future(other.jobs.attend())
        async with asyncio.timeout(30):
            await other.store.looked.wait()
        await gives_a_sign_and_goes_on(owner, other, gate, response_id)
        starting.cancel()


@pytest.mark.parametrize("stream", [False, True])
async def test_what_could_not_even_be_begun_while_a_store_was_away_is_run_when_it_is_back(
    stream: bool, clock: Clock
) -> None:
    async with houses(1, clock, lease=0.05) as (house,):
        house.store.down = {"start"}
        accepted = await house.create(background=True, stream=stream)
        (response_id,) = house.sessions._places.taken
        await house.settled()
        house.store.down = set()
        clock.jump(LEASE)
        await house.jobs.scan()
        assert (await house.ended(response_id)).status == "completed"
        assert house.engine.requests == 1
        if accepted.source is not None:
            assert isinstance((await heard(accepted.source))[-1], Completed)


async def test_a_store_that_is_away_again_is_given_the_same_time_again(clock: Clock) -> None:
    async with houses(1, clock) as (house,):
        house.store.down = {"renew", "claim"}
        await house.jobs._look()
        first = house.jobs._wary_until
        await house.jobs._look()  # also if there is nothing to renew
        assert house.jobs._wary_until > first


# ---- what gets an end


@pytest.mark.shows("B.7")
async def test_what_was_streamed_is_closed_and_fails_with_the_numbers_that_follow(clock: Clock) -> None:
    async with houses(2, clock) as (dead, other):
        dead.engine.says(Text("Hel"), Text("lo"))
        dead.engine.holds(after=1)
        listener = await dead.streaming(background=True)
        await listener.until("response.output_text.delta")
        follower = Listener(await other.following.replay(TENANT, listener.id)).start()
        await follower.until("response.output_text.delta")
        await listener.go_away()
        await die(dead, clock)
        await other.jobs.scan()
        events = await follower.all()
        assert wire(events[: len(listener.events)]) == wire(listener.events)
        assert types(events)[len(listener.events) :] == [
            "response.output_text.done", "response.content_part.done", "response.output_item.done", "error",
            "response.failed",
        ]  # fmt: skip
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert wire(events) == wire(await other.heard(listener.id))
        response = await other.get(listener.id)
        assert (response.status, code(response)) == ("failed", "server_restarted")
        assert response.output[0].status == "incomplete"  # type: ignore[union-attr]  # a message
        assert other.engine.requests == 0


async def test_an_open_call_is_closed_too(clock: Clock) -> None:
    async with houses(2, clock) as (dead, other):
        dead.engine.says(CallStarted(0, "f"), CallDelta(0, '{"a":'), CallDelta(0, "1}"))
        dead.engine.holds(after=2)
        tools = [{"type": "function", "name": "f"}]
        listener = await dead.streaming(background=True, tools=tools)
        await listener.until("response.function_call_arguments.delta")
        await listener.go_away()
        await die(dead, clock)
        await other.jobs.scan()
        response = await other.ended(listener.id)
        assert (response.status, code(response)) == ("failed", "server_restarted")
        assert response.output[0].status == "incomplete"  # type: ignore[union-attr]  # a call


async def test_a_foreground_response_of_a_dead_server_fails_and_is_never_run_again(clock: Clock) -> None:
    async with houses(2, clock, keep_streams=60.0) as (dead, other):
        gate = dead.engine.holds(after=0)
        listener = await dead.streaming()
        await gate.reached.wait()
        await listener.go_away()
        await die(dead, clock)
        await other.jobs.scan()
        response = await other.ended(listener.id)
        assert (response.status, code(response)) == ("failed", "server_restarted")
        assert types(await other.heard(listener.id)) == ["response.created", "error", "response.failed"]
        assert other.engine.requests == 0


async def test_a_response_that_servers_keep_dying_of_is_given_up(clock: Clock) -> None:
    async with houses(4, clock, attempts=2) as servers:
        gate = servers[0].engine.holds(after=0)
        response_id = await servers[0].background()
        for dead, other in pairwise(servers[:3]):
            await gate.reached.wait()
            await die(dead, clock)
            gate = other.engine.holds(after=0)
            await other.jobs.scan()
        response = await servers[3].ended(response_id)
        assert (response.status, code(response)) == ("failed", "server_restarted")
        assert [house.engine.requests for house in servers] == [1, 1, 0, 0]


async def test_a_response_whose_model_is_gone_fails_with_that(clock: Clock) -> None:
    async with houses(2, clock) as (dead, other):
        gate = dead.engine.holds(after=0)
        response_id = await dead.background()
        await gate.reached.wait()
        await die(dead, clock)

        def gone(name: str | None) -> object:
            raise ModelNotFound("There is no such model.", param="model")

        other.models.find = gone  # type: ignore[method-assign, assignment]  # another server, with other models
        await other.jobs.scan()
        response = await other.ended(response_id)
        assert (response.status, code(response)) == ("failed", "model_not_found")


async def test_a_response_whose_parent_was_deleted_meanwhile_is_still_run(clock: Clock) -> None:
    async with houses(2, clock) as (dead, other):
        parent = await dead.background(input="first")
        await dead.ended(parent)
        gate = dead.engine.holds(after=0)
        child = await dead.background(input="second", previous_response_id=parent)
        await gate.reached.wait()
        await die(dead, clock)
        assert await other.store.delete(TENANT, parent)
        await other.jobs.scan()
        assert (await other.ended(child)).status in ("completed", "failed")
        assert other.engine.running == 0


# ---- what goes wrong on the way


async def test_what_cannot_be_planned_just_now_is_given_back_and_run_later(clock: Clock) -> None:
    async with houses(2, clock) as (dead, other):
        parent = await dead.background(input="first")
        await dead.ended(parent)
        gate = dead.engine.holds(after=0)
        response_id = await dead.background(input="second", previous_response_id=parent)
        await gate.reached.wait()
        await die(dead, clock)
        other.store.down = {"chain"}
        await other.jobs.scan()
        await other.settled()
        row = await other.store.get(TENANT, response_id)
        assert row is not None
        assert (row.status, row.attempts) == ("queued", 1)
        other.store.down = set()
        await other.jobs.scan()
        assert (await other.ended(response_id)).status == "completed"


@pytest.mark.parametrize("operation", ["read", "finish", "release", "start"])
async def test_a_store_that_fails_while_something_is_taken_up_loses_nothing(clock: Clock, operation: str) -> None:
    async with houses(2, clock) as (dead, other):
        dead.engine.says(Text("a"), Text("b"))
        dead.engine.holds(after=1)
        spoken = await dead.streaming(background=True)
        await spoken.until("response.output_text.delta")
        await spoken.go_away()
        gate = dead.engine.holds(after=0)
        silent = await dead.background()
        await gate.reached.wait()
        await die(dead, clock)
        other.store.down = {operation}
        await other.jobs.scan()
        for _ in range(20):
            await asyncio.sleep(0)
        other.store.down = set()
        await other.settled()
        clock.jump(LEASE + 1)
        await other.jobs.scan()
        assert (await other.ended(spoken.id)).status == "failed"
        assert (await other.ended(silent)).status == "completed"


async def test_an_owner_that_comes_back_after_its_lease_changes_nothing(clock: Clock) -> None:
    async with houses(2, clock) as (zombie, other):
        gate = zombie.engine.holds(after=0)
        response_id = await zombie.background()
        await gate.reached.wait()
        clock.jump(LEASE + 1)
        await other.jobs.scan()
        completed = await other.ended(response_id)
        gate.open()  # it wakes up and comes to an end of its own
        await zombie.sessions.drained()
        assert await other.get(response_id) == completed
        assert completed.status == "completed"
        assert types(await zombie.heard(response_id)) == types(await other.heard(response_id))


async def test_a_streaming_owner_that_comes_back_after_its_lease_tells_what_the_store_says(clock: Clock) -> None:
    async with houses(2, clock) as (zombie, other):
        zombie.engine.says(Text("a"), Text("b"), Text("c"))
        gate = zombie.engine.holds(after=1)
        listener = await zombie.streaming(background=True)
        await listener.until("response.output_text.delta")
        clock.jump(LEASE + 1)
        await other.jobs.scan()
        await other.ended(listener.id)
        gate.open()
        events = await listener.all()
        assert isinstance(events[-1], Failed)
        assert wire(events) == wire(await other.heard(listener.id))
        await zombie.sessions.drained()
        assert zombie.engine.running == 0


async def test_an_owner_that_lost_a_running_stream_goes_on_telling_what_its_new_owner_streams(clock: Clock) -> None:
    async with houses(2, clock) as (zombie, other):
        zombie.engine.holds(after=0)
        listener = await zombie.streaming(background=True)
        await listener.until("response.in_progress")
        other.engine.says(Text("a"), Text("b"))
        gate = other.engine.holds(after=1)
        clock.jump(LEASE + 1)
        await other.jobs.scan()
        await gate.reached.wait()
        await zombie.keeper.renew()
        await listener.until("response.output_text.delta")
        assert zombie.engine.running == 0
        gate.open()
        events = await listener.all()
        assert isinstance(events[-1], Completed)
        assert wire(events) == wire(await other.heard(listener.id))


async def test_a_heartbeat_that_finds_a_run_lost_stops_it(clock: Clock) -> None:
    async with houses(2, clock) as (zombie, other):
        zombie.cut()
        gate = zombie.engine.holds(after=0)
        response_id = await zombie.background()
        await gate.reached.wait()
        clock.jump(LEASE + 1)
        await other.jobs.scan()
        await other.ended(response_id)
        await zombie.keeper.renew()
        await zombie.sessions.drained()
        assert zombie.engine.running == 0


async def test_a_server_does_not_claim_what_it_runs_itself(clock: Clock) -> None:
    async with houses(1, clock) as (house,):
        gate = house.engine.holds(after=0)
        response_id = await house.background()
        await gate.reached.wait()
        clock.jump(LEASE + 1)  # it slept for a while
        await house.jobs.scan()
        gate.open()
        assert (await house.ended(response_id)).status == "completed"
        assert house.engine.requests == 1


async def scenario(house: House) -> None:
    """A stream and a silent one, both in the background, and a client who comes back."""
    house.engine.says(Text("a"), Text("b"))
    accepted = await house.create(background=True, stream=True)
    assert accepted.source is not None
    listener = Listener(accepted.source).start()
    silent = await house.background(input="silent")
    events = await listener.all()
    ended = (types(events)[-1], (await house.ended(silent)).status)
    if ended[0] != "error":
        assert wire(await house.heard(listener.id)) == wire(events)


async def test_whichever_operation_of_the_store_fails_everything_ends_once_and_as_it_was_told(clock: Clock) -> None:
    total = refused = 0
    for number in range(1, 200):
        async with houses(1, clock, lease=0.5) as (house,):
            house.store.fails_at = number
            attending = asyncio.ensure_future(house.jobs.attend())
            try:
                async with asyncio.timeout(30):
                    await scenario(house)
            except Unavailable:  # the client was told, before anything was promised
                refused += 1
            finally:
                attending.cancel()
                await asyncio.wait([attending])
            house.store.fails_at = None
            await house.settled()
            clock.jump(10.0)
            house.jobs._wary_until = 0.0
            await house.jobs.scan()
            await house.settled()
            assert await house.store.claim(house.keeper.claim(), 100) == []
            total = house.store.done
        if number > total:
            break
    assert 5 < total < 100
    assert refused < 10

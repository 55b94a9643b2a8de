import asyncio

import msgspec
import pytest

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Delta, Text, Thought
from antiphon.errors import EngineFailed, NotFound, Unavailable
from antiphon.protocol.types.events import Completed, Error, Event, Failed, OutputTextDelta
from antiphon.protocol.types.response import Response
from antiphon.service.runs import event_feed
from antiphon.stores.base import Key
from tests.service.service_nodes import TENANT, House, Listener, heard, houses, types, wire

pytestmark = pytest.mark.anyio
TOOLS = [{"type": "function", "name": "f"}]


async def one_that(house: House, ended: str) -> list[Event]:
    """The events of a stored response that ended so, as its own client heard them."""
    said: list[Delta] = [Thought("hm"), Text("Hel"), Text("lo"), CallStarted(0, "f"), CallDelta(0, "{}"), CallDone(0)]
    house.engine.says(*said, finish="length" if ended == "incomplete" else "stop")
    if ended == "failed":
        house.engine.fails(EngineFailed("It died."), after=4)
    if ended != "cancelled":
        return await (await house.streaming(background=True, tools=TOOLS)).all()
    house.engine.holds(after=4)
    listener = await house.streaming(background=True, tools=TOOLS)
    await listener.until("response.output_item.done")
    await house.jobs.cancel(TENANT, listener.id)
    return await listener.all()


@pytest.mark.parametrize("ended", ["completed", "incomplete", "failed", "cancelled"])
@pytest.mark.shows("A.4", "A.5", "B.5")
async def test_every_suffix_is_told_again_byte_for_byte_and_ends(ended: str) -> None:
    async with houses(2) as (house, other):
        events = await one_that(house, ended)
        response_id = events[0].response.id  # type: ignore[attr-defined]  # it is `created`
        assert (await house.get(response_id)).status == ended
        for after in range(-1, len(events) + 3):
            assert wire(await other.heard(response_id, after)) == wire(events[after + 1 :])
        assert await other.heard(response_id, 2**62) == []


@pytest.mark.shows("B.5")
async def test_what_another_server_streams_is_heard_as_it_comes_and_nothing_is_skipped_or_repeated() -> None:
    async with houses(2) as (owner, other):
        owner.engine.says(*[Text(f"{number} ") for number in range(20)])
        gates = [owner.engine.holds(after=number) for number in (5, 10, 15)]
        listener = await owner.streaming(background=True)
        await gates[0].reached.wait()
        follower = Listener(await other.following.replay(TENANT, listener.id)).start()
        for gate in gates:
            await gate.reached.wait()
            heard_so_far = len(follower.events)
            await follower.until("response.output_text.delta")
            gate.open()
            assert len(follower.events) >= heard_so_far
        assert wire(await follower.all()) == wire(await listener.all())
        assert isinstance(follower.events[-1], Completed)


@pytest.mark.parametrize("after", [0, 2, 4, 6, 7])
async def test_a_follower_joins_a_running_stream_behind_any_event(after: int) -> None:
    async with houses(2) as (owner, other):
        owner.engine.says(Text("a"), Text("b"), Text("c"))
        gate = owner.engine.holds(after=1)
        listener = await owner.streaming(background=True)
        await listener.until("response.output_text.delta")
        here = Listener(await owner.following.replay(TENANT, listener.id, after)).start()
        there = Listener(await other.following.replay(TENANT, listener.id, after)).start()
        gate.open()
        events = await listener.all()
        assert wire(await here.all()) == wire(await there.all()) == wire(events[after + 1 :])


async def test_a_foreground_response_of_another_server_is_told_at_its_end() -> None:
    async with houses(2) as (owner, other):
        owner.engine.says(Text("a"), Text("b"))
        gate = owner.engine.holds(after=1)
        direct = await owner.streaming()
        await gate.reached.wait()
        follower = Listener(await other.following.replay(TENANT, direct.id)).start()
        await follower.until("response.created")
        gate.open()
        assert wire(await follower.all()) == wire(await direct.all())


async def test_unknown_ids_and_those_of_others_are_not_found() -> None:
    async with houses() as (house,):
        response_id = await house.background()
        await house.ended(response_id)
        for tenant, asked in (("another", response_id), (TENANT, "resp_" + "0" * 32), (TENANT, "nonsense")):
            with pytest.raises(NotFound):
                await house.following.replay(tenant, asked)


async def test_a_response_deleted_while_it_is_followed_has_an_end_for_who_follows_it() -> None:
    async with houses(2) as (owner, other):
        owner.engine.says(Text("a"), Text("b"))
        owner.engine.holds(after=1)
        listener = await owner.streaming(background=True)
        follower = Listener(await other.following.replay(TENANT, listener.id)).start()
        await follower.until("response.output_text.delta")
        await owner.store.delete(TENANT, listener.id)
        await other.sessions.deleted(TENANT, listener.id)
        events = await follower.all()
        assert types(events)[-3:] == ["response.output_item.done", "error", "response.failed"]
        error = events[-2]
        assert isinstance(error, Error)
        assert error.error.type == "not_found_error"
        assert [event.sequence_number for event in events] == list(range(len(events)))
        await listener.all()


async def test_a_store_that_is_gone_for_long_ends_a_stream_with_an_error_that_takes_no_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("antiphon.service.runs.remote_run._PATIENCE", 0.1)
    async with houses(2) as (owner, other):
        gate = owner.engine.holds(after=0)
        response_id = await owner.background()
        follower = Listener(await other.following.replay(TENANT, response_id)).start()
        source = await other.following.replay(TENANT, response_id)
        await follower.until("response.queued")
        owner.store.down = {"get", "read"}
        events = await follower.all()
        assert types(events) == ["response.created", "response.queued", "error"]
        assert events[-1].sequence_number == events[-2].sequence_number
        with pytest.raises(Unavailable):
            await source.result()
        owner.store.down = set()
        gate.open()
        assert types(await other.heard(response_id, 1))[-1] == "response.completed"


async def test_events_that_can_no_longer_be_read_end_a_stream_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with houses() as (house,):
        response_id = await house.background()
        await house.ended(response_id)
        monkeypatch.setattr("antiphon.core.replay.packed_log.VERSION", 99)
        events = await house.heard(response_id)
        assert types(events) == ["response.created", "response.queued", "error"]
        assert (await house.get(response_id)).status == "completed"


async def test_a_store_that_stumbles_is_asked_again() -> None:
    async with houses(2) as (owner, other):
        gate = owner.engine.holds(after=0)
        response_id = await owner.background()
        follower = Listener(await other.following.replay(TENANT, response_id)).start()
        await follower.until("response.queued")
        owner.store.down = {"get", "read"}
        async with asyncio.timeout(30):
            await owner.store.refused.wait()
        owner.store.down = set()
        gate.open()
        assert isinstance((await follower.all())[-1], Completed)


async def test_at_shutdown_nobody_waits_for_another_server_any_longer() -> None:
    async with houses(2) as (owner, other):
        gate = owner.engine.holds(after=0)
        response_id = await owner.background()
        follower = Listener(await other.following.replay(TENANT, response_id)).start()
        source = await other.following.replay(TENANT, response_id)
        result = asyncio.ensure_future(source.result())
        await follower.until("response.queued")
        other.responses.interrupt()
        assert types(await follower.all())[-1] == "error"
        with pytest.raises(Unavailable):
            await result
        gate.open()
        await owner.ended(response_id)
        assert types(await other.heard(response_id))[-1] == "response.completed"  # what is there can still be read


async def test_deltas_are_padded_as_the_request_said_or_as_the_reader_says() -> None:
    async with houses() as (house,):
        padded = await house.streaming(background=True, stream_options={"include_obfuscation": True})
        events = await padded.all()
        assert any(isinstance(event, OutputTextDelta) and event.obfuscation for event in events)
        assert wire(await house.heard(padded.id)) == wire(events)
        plain = await heard(await house.following.replay(TENANT, padded.id, -1, False))
        assert not any(isinstance(event, OutputTextDelta) and event.obfuscation for event in plain)
        again = await heard(await house.following.replay(TENANT, padded.id, -1, True))
        assert wire(again) == wire(events)


async def test_a_slow_reader_of_an_old_response_is_waited_for() -> None:
    async with houses() as (house,):
        house.engine.says(*[Text("x")] * 1000)
        response_id = await house.background()
        await house.ended(response_id)
        told, free = [], asyncio.Event()

        async def tell(events: list[Event]) -> None:
            told.append(len(events))
            await free.wait()

        source = await house.following.replay(TENANT, response_id)
        task = asyncio.ensure_future(source.drive(tell))
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(told) == 1
        assert not source.waits  # it is the reader who is slow
        free.set()
        async with asyncio.timeout(30):
            await task
        assert max(told) <= event_feed._AT_ONCE + 10


async def test_a_long_replay_lets_others_have_their_turn() -> None:
    async with houses() as (house,):
        house.engine.says(*[Text("x")] * 5000)
        response_id = await house.background()
        await house.ended(response_id)
        turns, over = 0, False

        async def others() -> None:
            nonlocal turns
            while not over:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.ensure_future(others())
        source = await house.following.replay(TENANT, response_id)
        await source.drive(lambda events: None)
        over = True
        await task
        assert turns > 5000 // event_feed._AT_ONCE


async def test_who_waits_for_somebody_else_says_so_that_silence_can_be_broken() -> None:
    async with houses(2) as (owner, other):
        gate = owner.engine.holds(after=0)
        listener = await owner.streaming(background=True)
        follower = Listener(await other.following.replay(TENANT, listener.id)).start()
        await gate.reached.wait()
        for one in (listener, follower):
            await one.until("response.in_progress")
            async with asyncio.timeout(30):  # between two looks at the log a follower waits, and is seen to
                while not one.source.waits:  # noqa: ASYNC110 - there is no event for it, and nothing is slept away
                    await asyncio.sleep(0)
        gate.open()
        for one in (listener, follower):
            await one.all()
            assert not one.source.waits


async def test_the_result_of_one_that_another_server_works_on_is_waited_for() -> None:
    key = Key("mine", b"digest", 4e9)
    async with houses(2) as (owner, other):
        owner.engine.says(Text("a"))
        gate = owner.engine.holds(after=1)
        first = await owner.create(key)
        joined = await other.create(key)
        assert first.source is not None
        assert joined.source is not None
        results = asyncio.gather(first.source.result(), joined.source.result())
        await gate.reached.wait()
        gate.open()
        async with asyncio.timeout(30):
            mine, theirs = await results
        assert mine == theirs
        assert msgspec.json.decode(mine, type=Response).status == "completed"
        assert (owner.engine.requests, other.engine.requests) == (1, 0)
        first.source.leave()
        joined.source.leave()


async def test_a_stream_that_failed_elsewhere_fails_here() -> None:
    async with houses(2) as (owner, other):
        owner.engine.says(Text("a"))
        owner.engine.fails(EngineFailed("It died."), after=1)
        listener = await owner.streaming(background=True)
        follower = Listener(await other.following.replay(TENANT, listener.id)).start()
        events = await follower.all()
        assert isinstance(events[-1], Failed)
        assert wire(events) == wire(await listener.all())
        source = await other.following.replay(TENANT, listener.id)
        with pytest.raises(EngineFailed, match="It died"):
            await source.result()

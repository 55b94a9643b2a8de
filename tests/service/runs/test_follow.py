"""Following a response: replay after its end, live events of another server, deletion, store failures and shutdown."""

import asyncio

import msgspec
import pytest

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Delta, ReasoningDelta, Text
from antiphon.errors import EngineFailed, NotFound, Unavailable
from antiphon.protocol.types.events import Completed, Error, Event, Failed, OutputTextDelta
from antiphon.protocol.types.response import Response
from antiphon.service.runs import follow
from antiphon.service.runs.follow import replay
from antiphon.stores.base import IdempotencyKey
from tests.service.service_nodes import (
    TENANT,
    EventCollector,
    ServiceNode,
    list_types,
    read_all_events,
    start_nodes,
    to_sse_bytes,
)

pytestmark = pytest.mark.anyio
TOOLS = [{"type": "function", "name": "f"}]


async def run_to_status(node: ServiceNode, status: str) -> list[Event]:
    """Run a stored response to this status and return the events that its client received."""
    deltas: list[Delta] = [
        ReasoningDelta("hm"),
        Text("Hel"),
        Text("lo"),
        CallStarted(0, "f"),
        CallDelta(0, "{}"),
        CallDone(0),
    ]
    node.engine.says(*deltas, finish="length" if status == "incomplete" else "stop")
    if status == "failed":
        node.engine.fails(EngineFailed("It died."), after=4)
    if status != "cancelled":
        return await (await node.create_stream(background=True, tools=TOOLS)).read_all()
    node.engine.holds(after=4)
    collector = await node.create_stream(background=True, tools=TOOLS)
    await collector.wait_for("response.output_item.done")
    await node.background_runs.cancel(TENANT, collector.id)
    return await collector.read_all()


@pytest.mark.parametrize("status", ["completed", "incomplete", "failed", "cancelled"])
@pytest.mark.shows("A.4", "A.5", "B.5")
async def test_every_suffix_is_replayed_byte_for_byte_and_ends(status: str) -> None:
    async with start_nodes(2) as (node, other):
        events = await run_to_status(node, status)
        response_id = events[0].response.id  # type: ignore[attr-defined]  # response.created
        assert (await node.load_response(response_id)).status == status
        for after in range(-1, len(events) + 3):
            assert to_sse_bytes(await other.replay_events(response_id, after)) == to_sse_bytes(events[after + 1 :])
        assert await other.replay_events(response_id, 2**62) == []


@pytest.mark.shows("B.5")
async def test_a_follower_on_another_server_receives_every_event_once_as_it_is_produced() -> None:
    async with start_nodes(2) as (owner, other):
        owner.engine.says(*[Text(f"{number} ") for number in range(20)])
        gates = [owner.engine.holds(after=number) for number in (5, 10, 15)]
        collector = await owner.create_stream(background=True)
        await gates[0].reached.wait()
        follower = EventCollector(await replay(other.detached_runs, TENANT, collector.id)).start()
        for gate in gates:
            await gate.reached.wait()
            received_count = len(follower.events)
            await follower.wait_for("response.output_text.delta")
            gate.open()
            assert len(follower.events) >= received_count
        assert to_sse_bytes(await follower.read_all()) == to_sse_bytes(await collector.read_all())
        assert isinstance(follower.events[-1], Completed)


@pytest.mark.parametrize("after", [0, 2, 4, 6, 7])
async def test_a_follower_joins_a_running_stream_after_any_event(after: int) -> None:
    async with start_nodes(2) as (owner, other):
        owner.engine.says(Text("a"), Text("b"), Text("c"))
        gate = owner.engine.holds(after=1)
        collector = await owner.create_stream(background=True)
        await collector.wait_for("response.output_text.delta")
        local_follower = EventCollector(await replay(owner.detached_runs, TENANT, collector.id, after)).start()
        remote_follower = EventCollector(await replay(other.detached_runs, TENANT, collector.id, after)).start()
        gate.open()
        events = await collector.read_all()
        assert (
            to_sse_bytes(await local_follower.read_all())
            == to_sse_bytes(await remote_follower.read_all())
            == to_sse_bytes(events[after + 1 :])
        )


async def test_a_foreground_response_of_another_server_is_replayed_at_its_end() -> None:
    async with start_nodes(2) as (owner, other):
        owner.engine.says(Text("a"), Text("b"))
        gate = owner.engine.holds(after=1)
        direct = await owner.create_stream()
        await gate.reached.wait()
        follower = EventCollector(await replay(other.detached_runs, TENANT, direct.id)).start()
        await follower.wait_for("response.created")
        gate.open()
        assert to_sse_bytes(await follower.read_all()) == to_sse_bytes(await direct.read_all())


async def test_unknown_ids_and_those_of_other_tenants_are_not_found() -> None:
    async with start_nodes() as (node,):
        response_id = await node.create_background()
        await node.wait_ended(response_id)
        for tenant, requested_id in (("another", response_id), (TENANT, "resp_" + "0" * 32), (TENANT, "nonsense")):
            with pytest.raises(NotFound):
                await replay(node.detached_runs, tenant, requested_id)


async def test_deleting_a_followed_response_ends_its_followers_with_an_error() -> None:
    async with start_nodes(2) as (owner, other):
        owner.engine.says(Text("a"), Text("b"))
        owner.engine.holds(after=1)
        collector = await owner.create_stream(background=True)
        follower = EventCollector(await replay(other.detached_runs, TENANT, collector.id)).start()
        await follower.wait_for("response.output_text.delta")
        await owner.store.delete(TENANT, collector.id)
        await other.detached_runs.notify_servers(collector.id)
        events = await follower.read_all()
        assert list_types(events)[-3:] == ["response.output_item.done", "error", "response.failed"]
        error = events[-2]
        assert isinstance(error, Error)
        assert error.error.type == "not_found_error"
        assert [event.sequence_number for event in events] == list(range(len(events)))
        await collector.read_all()


async def test_a_long_store_outage_ends_a_stream_with_an_error_without_its_own_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("antiphon.service.runs.follow._RETRY_SECONDS", 0.1)
    async with start_nodes(2) as (owner, other):
        gate = owner.engine.holds(after=0)
        response_id = await owner.create_background()
        follower = EventCollector(await replay(other.detached_runs, TENANT, response_id)).start()
        source = await replay(other.detached_runs, TENANT, response_id)
        await follower.wait_for("response.queued")
        owner.store.down = {"get", "read"}
        events = await follower.read_all()
        assert list_types(events) == ["response.created", "response.queued", "error"]
        assert events[-1].sequence_number == events[-2].sequence_number
        with pytest.raises(Unavailable):
            await source.result()
        owner.store.down = set()
        gate.open()
        assert list_types(await other.replay_events(response_id, 1))[-1] == "response.completed"


async def test_an_unreadable_event_log_ends_a_stream_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with start_nodes() as (node,):
        response_id = await node.create_background()
        await node.wait_ended(response_id)
        monkeypatch.setattr("antiphon.core.replay.VERSION", 99)
        events = await node.replay_events(response_id)
        assert list_types(events) == ["response.created", "response.queued", "error"]
        assert (await node.load_response(response_id)).status == "completed"


async def test_a_short_store_failure_is_retried() -> None:
    async with start_nodes(2) as (owner, other):
        gate = owner.engine.holds(after=0)
        response_id = await owner.create_background()
        follower = EventCollector(await replay(other.detached_runs, TENANT, response_id)).start()
        await follower.wait_for("response.queued")
        owner.store.down = {"get", "read"}
        async with asyncio.timeout(30):
            await owner.store.failed.wait()
        owner.store.down = set()
        gate.open()
        assert isinstance((await follower.read_all())[-1], Completed)


async def test_shutdown_ends_waits_for_other_servers() -> None:
    async with start_nodes(2) as (owner, other):
        gate = owner.engine.holds(after=0)
        response_id = await owner.create_background()
        follower = EventCollector(await replay(other.detached_runs, TENANT, response_id)).start()
        source = await replay(other.detached_runs, TENANT, response_id)
        result = asyncio.ensure_future(source.result())
        await follower.wait_for("response.queued")
        other.detached_runs.interrupt()
        assert list_types(await follower.read_all())[-1] == "error"
        with pytest.raises(Unavailable):
            await result
        gate.open()
        await owner.wait_ended(response_id)
        assert (
            list_types(await other.replay_events(response_id))[-1] == "response.completed"
        )  # stored events can still be read


async def test_deltas_are_padded_as_set_by_the_request_or_by_the_reader() -> None:
    async with start_nodes() as (node,):
        padded = await node.create_stream(background=True, stream_options={"include_obfuscation": True})
        events = await padded.read_all()
        assert any(isinstance(event, OutputTextDelta) and event.obfuscation for event in events)
        assert to_sse_bytes(await node.replay_events(padded.id)) == to_sse_bytes(events)
        plain = await read_all_events(await replay(node.detached_runs, TENANT, padded.id, -1, False))
        assert not any(isinstance(event, OutputTextDelta) and event.obfuscation for event in plain)
        again = await read_all_events(await replay(node.detached_runs, TENANT, padded.id, -1, True))
        assert to_sse_bytes(again) == to_sse_bytes(events)


async def test_a_replay_waits_for_a_slow_reader() -> None:
    async with start_nodes() as (node,):
        node.engine.says(*[Text("x")] * 1000)
        response_id = await node.create_background()
        await node.wait_ended(response_id)
        batch_sizes, may_continue = [], asyncio.Event()

        async def read_slowly(events: list[Event]) -> None:
            batch_sizes.append(len(events))
            await may_continue.wait()

        source = await replay(node.detached_runs, TENANT, response_id)
        task = asyncio.ensure_future(source.drive(read_slowly))
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(batch_sizes) == 1
        assert not source.waits  # the reader is slow, not the source
        may_continue.set()
        async with asyncio.timeout(30):
            await task
        assert max(batch_sizes) <= follow._BATCH_SIZE + 10


async def test_a_long_replay_yields_to_other_tasks() -> None:
    async with start_nodes() as (node,):
        node.engine.says(*[Text("x")] * 5000)
        response_id = await node.create_background()
        await node.wait_ended(response_id)
        turns, over = 0, False

        async def count_turns() -> None:
            nonlocal turns
            while not over:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.ensure_future(count_turns())
        source = await replay(node.detached_runs, TENANT, response_id)
        await source.drive(lambda events: None)
        over = True
        await task
        assert turns > 5000 // follow._BATCH_SIZE


async def test_a_source_reports_that_it_waits_so_that_keep_alives_can_be_sent() -> None:
    async with start_nodes(2) as (owner, other):
        gate = owner.engine.holds(after=0)
        collector = await owner.create_stream(background=True)
        follower = EventCollector(await replay(other.detached_runs, TENANT, collector.id)).start()
        await gate.reached.wait()
        for reader in (collector, follower):
            await reader.wait_for("response.in_progress")
            async with asyncio.timeout(30):  # a follower waits between two polls of the log
                while not reader.source.waits:  # noqa: ASYNC110 - no event signals this state
                    await asyncio.sleep(0)
        gate.open()
        for reader in (collector, follower):
            await reader.read_all()
            assert not reader.source.waits


async def test_the_result_of_a_run_on_another_server_is_awaited() -> None:
    key = IdempotencyKey("mine", b"digest", 4e9)
    async with start_nodes(2) as (owner, other):
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
        first.source.close()
        joined.source.close()


async def test_a_failure_on_another_server_fails_its_follower() -> None:
    async with start_nodes(2) as (owner, other):
        owner.engine.says(Text("a"))
        owner.engine.fails(EngineFailed("It died."), after=1)
        collector = await owner.create_stream(background=True)
        follower = EventCollector(await replay(other.detached_runs, TENANT, collector.id)).start()
        events = await follower.read_all()
        assert isinstance(events[-1], Failed)
        assert to_sse_bytes(events) == to_sse_bytes(await collector.read_all())
        source = await replay(other.detached_runs, TENANT, collector.id)
        with pytest.raises(EngineFailed, match="It died"):
            await source.result()

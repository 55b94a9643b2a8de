"""Detached and direct runs of one server: reconnecting clients, followers, idempotency keys, shutdown and limits.

Covers `service/runs/active_runs.py`, `service/runs/direct_run.py` and `service/runs/follow.py`.
"""

import asyncio

import msgspec
import pytest

from antiphon.core.deltas import Text
from antiphon.errors import Busy, EngineFailed, NotFound
from antiphon.protocol.types.events import Completed, Event, Failed, Incomplete
from antiphon.protocol.types.response import Response
from antiphon.service.responses import ResponseSource
from antiphon.service.runs.active_runs import ActiveRun, ActiveRuns
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
KEY = IdempotencyKey("mine", b"digest", 4e9)


async def wait_until_over(node: ServiceNode, response_id: str) -> None:
    active_run = node.detached_runs.find(TENANT, response_id)
    if active_run is not None:
        async with asyncio.timeout(30):
            await active_run.wait_finished()


def get_active_run(node: ServiceNode, collector: EventCollector) -> ActiveRun:
    found = node.detached_runs.find(TENANT, collector.id)
    assert found is not None
    return found


async def create_source(node: ServiceNode, **body: object) -> ResponseSource:
    accepted = await node.create(**body)  # type: ignore[arg-type]  # body fields of any type
    assert accepted.source is not None
    return accepted.source


# ---- readers


async def test_a_retained_stream_resumes_after_the_last_received_event() -> None:
    async with start_nodes(keep_streams=60.0) as (node,):
        node.engine.says(Text("a"), Text("b"), Text("c"), Text("d"))
        gate = node.engine.holds(after=2)
        first = await node.create_stream()
        await gate.reached.wait()
        await first.disconnect()
        assert node.engine.running == 1
        last = first.events[-1].sequence_number
        second = EventCollector(await replay(node.detached_runs, TENANT, first.id, last)).start()
        gate.open()
        events = first.events + await second.read_all()
        assert isinstance(events[-1], Completed)
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert to_sse_bytes(events) == to_sse_bytes(await node.replay_events(first.id))


async def test_a_retained_stream_is_cancelled_if_no_client_returns() -> None:
    async with start_nodes(keep_streams=0.02) as (node,):
        node.engine.says(Text("a"), Text("b"))
        gate = node.engine.holds(after=1)
        collector = await node.create_stream()
        await gate.reached.wait()
        await collector.disconnect()
        await wait_until_over(node, collector.id)
        assert (await node.load_response(collector.id)).status == "cancelled"
        assert (node.engine.running, node.engine.cancelled) == (0, 1)


async def test_a_retained_stream_is_not_cancelled_while_another_client_follows_it() -> None:
    async with start_nodes(keep_streams=0.01) as (node,):
        node.engine.says(Text("a"), Text("b"))
        gate = node.engine.holds(after=1)
        first = await node.create_stream()
        second = EventCollector(await replay(node.detached_runs, TENANT, first.id)).start()
        await gate.reached.wait()
        await first.disconnect()
        third = EventCollector(await replay(node.detached_runs, TENANT, first.id)).start()
        await second.disconnect()
        gate.open()
        assert isinstance((await third.read_all())[-1], Completed)


@pytest.mark.shows("B1.7")
async def test_a_shutdown_does_not_wait_for_a_stream_without_a_reader() -> None:
    async with start_nodes(keep_streams=60.0) as (node,):
        node.engine.says(Text("a"), Text("b"))
        gate = node.engine.holds(after=1)
        collector = await node.create_stream()
        await gate.reached.wait()
        await collector.disconnect()
        assert node.engine.running == 1
        assert not node.detached_runs.is_busy()
        await node.detached_runs.close()
        assert (await node.load_response(collector.id)).status == "failed"


async def test_a_client_that_reads_slowly_slows_down_its_kept_stream() -> None:
    async with start_nodes(keep_streams=60.0) as (node,):
        node.engine.says(*[Text(f"{number} ") for number in range(300)])
        go_on, events = asyncio.Event(), list[Event]()

        async def read_slowly(new: list[Event]) -> None:
            events.extend(new)
            await go_on.wait()

        source = await create_source(node, stream=True)
        task = asyncio.ensure_future(source.drive(read_slowly))
        for _ in range(100):
            await asyncio.sleep(0)
        assert list_types(events) == ["response.created"]
        go_on.set()
        async with asyncio.timeout(30):
            await task
        source.close()
        last = events[-1]
        assert isinstance(last, Completed)
        assert to_sse_bytes(events) == to_sse_bytes(await node.replay_events(last.response.id))


@pytest.mark.parametrize("store", [True, False])
async def test_the_end_of_a_kept_stream_is_sent_when_its_run_is_over(store: bool) -> None:
    """The client may send its next request at once."""
    async with start_nodes(keep_streams=60.0) as (node,):
        counts: dict[str, tuple[int, int]] = {}

        def count(events: list[Event]) -> None:
            counts[events[-1].type] = len(node.detached_runs.slots), len(node.detached_runs.tasks)

        source = await create_source(node, stream=True, store=store)
        await source.drive(count)
        source.close()
        assert counts["response.created"] == (1, 1)
        assert counts["response.completed"] == (0, 0)


async def test_without_keep_streams_a_run_ends_with_its_last_reader() -> None:
    async with start_nodes() as (node,):
        node.engine.says(Text("a"), Text("b"))
        gate = node.engine.holds(after=1)
        collector = await node.create_stream(key=KEY)
        await gate.reached.wait()
        await collector.disconnect()
        await wait_until_over(node, collector.id)
        assert (await node.load_response(collector.id)).status == "cancelled"
        assert isinstance((await node.replay_events(collector.id))[-1], Incomplete)
        assert node.engine.running == 0


async def test_a_run_closed_before_its_task_starts_is_cancelled() -> None:
    async with start_nodes() as (node,):
        source = await create_source(node, key=KEY)
        source.close()
        source.close()
        await node.detached_runs.tasks.wait_all()
        assert node.engine.requests == 0
        assert list_types(await read_all_events(source)) == ["response.created", "response.incomplete"]
        assert await node.store.keyed(TENANT, KEY) is None


async def test_a_slow_reader_receives_all_events_and_does_not_delay_others() -> None:
    async with start_nodes(keep_streams=60.0) as (node,):
        node.engine.says(*[Text(f"{number} ") for number in range(300)])
        go_on = asyncio.Event()
        batch_sizes: list[int] = []
        first = await node.create_stream()

        async def read_slowly(events: list[Event]) -> None:
            batch_sizes.append(len(events))
            await go_on.wait()

        slow = await replay(node.detached_runs, TENANT, first.id)
        task = asyncio.ensure_future(slow.drive(read_slowly))
        events = await first.read_all()
        assert isinstance(events[-1], Completed)
        assert len(batch_sizes) == 1
        go_on.set()
        async with asyncio.timeout(30):
            await task
        slow.close()
        assert sum(batch_sizes) == len(events)


@pytest.mark.shows("B1.2")
async def test_an_unstored_stream_can_be_followed_only_while_it_runs() -> None:
    async with start_nodes(keep_streams=60.0) as (node,):
        node.engine.says(Text("a"), Text("b"))
        gate = node.engine.holds(after=1)
        first = await node.create_stream(store=False)
        await gate.reached.wait()
        with pytest.raises(NotFound):
            await replay(node.detached_runs, "another", first.id)
        second = EventCollector(await replay(node.detached_runs, TENANT, first.id)).start()
        gate.open()
        assert to_sse_bytes(await second.read_all()) == to_sse_bytes(await first.read_all())
        await wait_until_over(node, first.id)
        with pytest.raises(NotFound):
            await replay(node.detached_runs, TENANT, first.id)
        assert await node.store.get(TENANT, first.id) is None


# ---- ends


async def test_a_failed_run_is_sent_to_all_readers_and_raised_from_result() -> None:
    async with start_nodes() as (node,):
        node.engine.says(Text("a"))
        node.engine.fails(EngineFailed("It died."), after=1)
        source = await create_source(node, key=KEY)
        events, raised = await asyncio.gather(
            read_all_events(await replay(node.detached_runs, TENANT, str(await node.store.keyed(TENANT, KEY)))),
            asyncio.gather(source.result(), return_exceptions=True),
        )
        source.close()
        assert list_types(events)[-2:] == ["error", "response.failed"]
        assert isinstance(raised[0], EngineFailed)
        again = await node.create(KEY)  # joins the response that has ended
        assert again.source is not None
        with pytest.raises(EngineFailed, match="It died"):
            await again.source.result()


@pytest.mark.shows("B.12")
async def test_ten_requests_with_one_key_share_one_response() -> None:
    async with start_nodes() as (node,):
        node.engine.says(Text("a"), Text("b"))
        gate = node.engine.holds(after=1)
        first = await create_source(node, key=KEY)
        others = [await create_source(node, key=KEY) for _ in range(9)]
        results = asyncio.gather(*[source.result() for source in (first, *others)])
        await gate.reached.wait()
        others[0].close()
        gate.open()
        bodies = await results
        assert len(set(bodies)) == 1
        assert msgspec.json.decode(bodies[0], type=Response).status == "completed"
        assert node.engine.requests == 1
        for source in (first, *others):
            source.close()


async def test_an_end_that_cannot_be_stored_is_sent_and_later_stored_as_a_failure() -> None:
    async with start_nodes(keep_streams=60.0, lease=1.0) as (node,):
        node.store.down = {"finish"}
        events = await (await node.create_stream()).read_all()
        last = events[-1]
        assert isinstance(last, Failed)
        assert "response.completed" not in list_types(events)
        node.store.down = set()
        await node.writer.drain(5.0)
        assert to_sse_bytes(await node.replay_events(last.response.id)) == to_sse_bytes(events)


async def test_deleting_a_response_stops_its_run() -> None:
    async with start_nodes(keep_streams=60.0) as (node,):
        node.engine.says(Text("a"), Text("b"))
        node.engine.holds(after=1)
        collector = await node.create_stream()
        await collector.wait_for("response.output_text.delta")
        assert await node.store.delete(TENANT, collector.id)
        await node.detached_runs.notify_servers(collector.id)
        assert isinstance((await collector.read_all())[-1], Failed)
        assert node.engine.running == 0
        assert await node.store.get(TENANT, collector.id) is None


async def test_at_shutdown_a_foreground_run_is_stored_as_failed() -> None:
    async with start_nodes(keep_streams=60.0) as (node,):
        node.engine.says(Text("a"), Text("b"))
        node.engine.holds(after=1)
        collector = await node.create_stream()
        await collector.wait_for("response.output_text.delta")
        node.detached_runs.interrupt()
        events = await collector.read_all()
        await node.detached_runs.tasks.wait_all()
        response = await node.load_response(collector.id)
        assert list_types(events)[-1] == "response.failed"
        assert response.error is not None
        assert response.error.code == "service_unavailable"


async def test_a_run_whose_task_has_not_started_is_interrupted() -> None:
    async with start_nodes(keep_streams=60.0) as (node,):
        node.engine.holds(after=0)
        source = await create_source(node, stream=True)
        node.detached_runs.interrupt()
        assert list_types(await read_all_events(source))[-1] == "response.failed"


# ---- direct runs and limits


async def test_a_follower_of_a_direct_run_receives_the_end_after_it_is_stored() -> None:
    async with start_nodes() as (node,):
        node.engine.says(Text("a"), Text("b"), Text("c"))
        gate = node.engine.holds(after=1)
        direct = await node.create_stream()
        await gate.reached.wait()
        follower = EventCollector(await replay(node.detached_runs, TENANT, direct.id)).start()
        await follower.wait_for("response.output_text.delta")
        assert follower.source.waits
        finish, finish_called, go_on = node.store.finish, asyncio.Event(), asyncio.Event()

        async def finish_slowly(*values: object) -> None:
            finish_called.set()
            await go_on.wait()
            await finish(*values)  # type: ignore[arg-type]  # passed through

        node.store.finish = finish_slowly  # type: ignore[method-assign, assignment]  # a slow store
        gate.open()
        await finish_called.wait()
        assert not any(isinstance(event, Completed) for event in follower.events)
        go_on.set()
        assert to_sse_bytes(await follower.read_all()) == to_sse_bytes(await direct.read_all())


async def test_a_direct_run_ends_cancelled_for_its_followers_when_its_client_disconnects() -> None:
    async with start_nodes() as (node,):
        node.engine.says(Text("a"), Text("b"))
        gate = node.engine.holds(after=1)
        direct = await node.create_stream()
        await gate.reached.wait()
        follower = EventCollector(await replay(node.detached_runs, TENANT, direct.id)).start()
        await follower.wait_for("response.output_text.delta")
        await direct.disconnect()
        events = await follower.read_all()
        last = events[-1]
        assert isinstance(last, Incomplete)
        assert last.response.status == "cancelled"
        assert to_sse_bytes(await node.replay_events(direct.id)) == to_sse_bytes(events)


@pytest.mark.shows("B1.6")
async def test_too_many_concurrent_responses_give_429() -> None:
    async with start_nodes(max_runs=2, keep_streams=60.0) as (node,):
        node.engine.says(Text("a"))
        node.engine.holds(after=0)
        first = await node.create_stream()
        node.engine.says(Text("a"))
        gate = node.engine.holds(after=0)
        second = await create_source(node, store=False)
        task = asyncio.ensure_future(second.result())
        await gate.reached.wait()
        with pytest.raises(Busy) as refused:
            await node.create()
        assert refused.value.retry_after is not None
        task.cancel()
        await asyncio.wait([task])
        second.close()
        third = await node.create()
        assert third.source is not None
        await third.source.result()
        third.source.close()
        get_active_run(node, first)
        assert len(node.detached_runs.slots) == 1
        await first.disconnect()


@pytest.mark.parametrize("keep_streams", [0.0, 60.0])
async def test_a_long_stream_is_folded_and_can_be_followed_from_its_middle(keep_streams: float) -> None:
    async with start_nodes(keep_streams=keep_streams) as (node,):
        node.engine.says(*[Text(f"{number} ") for number in range(500)])
        gate = node.engine.holds(after=300)
        direct = await node.create_stream()
        await gate.reached.wait()
        assert len(get_active_run(node, direct).log) < 150
        follower = EventCollector(await replay(node.detached_runs, TENANT, direct.id)).start()
        await follower.wait_for("response.output_text.delta")
        gate.open()
        assert to_sse_bytes(await follower.read_all()) == to_sse_bytes(await direct.read_all())
        assert to_sse_bytes(await node.replay_events(direct.id)) == to_sse_bytes(direct.events)


def test_a_tenant_that_takes_all_slots_does_not_block_other_tenants() -> None:
    active_runs = ActiveRuns(2)
    loud = [active_runs.acquire("loud"), active_runs.acquire("loud")]
    with pytest.raises(Busy):
        active_runs.acquire("loud")
    quiet = active_runs.acquire("quiet")
    with pytest.raises(Busy):
        active_runs.acquire("quiet")
    quiet.release()
    quiet.release()
    active_runs.acquire("quiet").release()
    loud[0].release()
    active_runs.acquire("loud")

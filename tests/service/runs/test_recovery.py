"""Recovery of background responses whose server died or lost its lease: they are rerun, or failed if they had
output.
"""

import asyncio
from itertools import pairwise

import pytest

from antiphon.core.deltas import CallDelta, CallStarted, Text
from antiphon.engines.fake.playback import Gate
from antiphon.errors import Unavailable
from antiphon.protocol.types.events import Completed, Failed
from antiphon.protocol.types.response import Response
from antiphon.service.runs.follow import replay
from antiphon.stores.base import ResponseEnd
from tests.service.service_nodes import (
    TENANT,
    Clock,
    EventCollector,
    ServiceNode,
    list_types,
    read_all_events,
    start_nodes,
    to_sse_bytes,
)

pytestmark = pytest.mark.anyio
LEASE = 15.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def kill_server(node: ServiceNode, clock: Clock) -> None:
    """Kill the server and let its lease expire."""
    node.crash()
    await node.detached_runs.tasks.wait_all()
    clock.advance(LEASE + 1)


def get_error_code(response: Response) -> str | None:
    return None if response.error is None else response.error.code


# ---- reruns


@pytest.mark.shows("B.7")
async def test_a_response_without_output_of_a_dead_server_is_rerun_and_completes(clock: Clock) -> None:
    async with start_nodes(2, clock) as (dead, other):
        gate = dead.engine.holds(after=0)
        response_id = await dead.create_background(instructions="Be brief.", metadata={"a": "b"}, temperature=0.5)
        await gate.reached.wait()
        await other.background_runs.scan()
        assert other.engine.requests == 0  # its owner is alive
        await kill_server(dead, clock)
        await other.background_runs.scan()
        response = await other.wait_ended(response_id)
        assert response.status == "completed"
        assert (response.metadata, response.temperature) == ({"a": "b"}, 0.5)
        assert other.engine.seen[-1].prompt == dead.engine.seen[-1].prompt
        assert other.engine.seen[-1].sampling == dead.engine.seen[-1].sampling


async def test_a_stream_without_output_is_rerun_without_gaps_or_repeated_events(clock: Clock) -> None:
    async with start_nodes(2, clock) as (dead, other):
        gate = dead.engine.holds(after=0)
        collector = await dead.create_stream(background=True)
        await gate.reached.wait()
        await collector.wait_for("response.in_progress")
        await collector.disconnect()
        follower = EventCollector(await replay(other.detached_runs, TENANT, collector.id)).start()
        await follower.wait_for("response.in_progress")
        await kill_server(dead, clock)
        await other.background_runs.scan()
        events = await follower.read_all()
        assert isinstance(events[-1], Completed)
        assert list_types(events).count("response.in_progress") == 1
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert to_sse_bytes(events) == to_sse_bytes(await other.replay_events(collector.id))
        assert to_sse_bytes(events[:3]) == to_sse_bytes(collector.events)


async def test_queued_responses_of_a_dead_server_are_run(clock: Clock) -> None:
    async with start_nodes(2, clock, slots=1) as (dead, other):
        gate = dead.engine.holds(after=0)
        ids = [await dead.create_background() for _ in range(3)]
        await gate.reached.wait()
        await kill_server(dead, clock)
        for _ in ids:
            await other.background_runs.scan()
            await other.wait_settled()
        assert {(await other.wait_ended(response_id)).status for response_id in ids} == {"completed"}
        assert other.engine.requests == 3


async def test_claims_are_limited_by_free_slots(clock: Clock) -> None:
    async with start_nodes(2, clock, slots=2) as (dead, other):
        gates = []
        for _ in range(2):
            dead.engine.says(Text("a"))
            gates.append(dead.engine.holds(after=0))
        for _ in range(5):
            await dead.create_background()
        for gate in gates:
            await gate.reached.wait()
        await kill_server(dead, clock)
        for _ in range(2):
            other.engine.says(Text("a"))
            other.engine.holds(after=0)
        await other.background_runs.scan()
        await other.background_runs.scan()
        assert len(await other.store.claim(other.writer.leases.make_claim(), 100)) == 3


async def test_a_completed_response_is_not_rerun(clock: Clock) -> None:
    async with start_nodes(2, clock) as (dead, other):
        response_id = await dead.create_background()
        completed = await dead.wait_ended(response_id)
        await kill_server(dead, clock)
        await other.background_runs.scan()
        await other.wait_settled()
        assert other.engine.requests == 0
        assert await other.load_response(response_id) == completed


async def renew_and_finish(owner: ServiceNode, other: ServiceNode, gate: Gate, response_id: str) -> None:
    """Renew the owner's lease after the grace period; its run must not be claimed and completes."""
    await owner.writer.leases.renew()
    other.background_runs._cautious_until = 0.0  # the grace period is over
    await other.background_runs._scan_or_log()
    gate.open()
    assert (await owner.wait_ended(response_id)).status == "completed"
    assert (owner.writer.leases.lost_count, other.engine.requests) == (0, 0)


async def test_after_a_store_outage_owners_can_renew_before_their_runs_are_claimed(
    clock: Clock,
) -> None:
    async with start_nodes(2, clock) as (owner, other):
        gate = owner.engine.holds(after=0)
        response_id = await owner.create_background()
        await gate.reached.wait()
        owner.store.down = {"renew", "claim"}
        clock.advance(LEASE + 1)
        await other.background_runs._scan_or_log()
        owner.store.down = set()
        await other.background_runs._scan_or_log()
        await renew_and_finish(owner, other, gate, response_id)


async def test_a_starting_server_lets_owners_renew_before_it_claims_their_runs(clock: Clock) -> None:
    async with start_nodes(2, clock) as (owner, other):
        gate = owner.engine.holds(after=0)
        response_id = await owner.create_background()
        await gate.reached.wait()
        clock.advance(LEASE + 1)  # no lease could be renewed
        queue_loop = asyncio.ensure_future(other.background_runs.run_queue())
        async with asyncio.timeout(30):
            await other.store.claim_polled.wait()
        await renew_and_finish(owner, other, gate, response_id)
        queue_loop.cancel()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_that_could_not_start_in_a_store_outage_runs_afterwards(stream: bool, clock: Clock) -> None:
    async with start_nodes(1, clock, lease=0.05) as (node,):
        node.store.down = {"start"}
        accepted = await node.create(background=True, stream=stream)
        (response_id,) = node.detached_runs.by_id
        await node.wait_settled()
        node.store.down = set()
        clock.advance(LEASE)
        await node.background_runs.scan()
        assert (await node.wait_ended(response_id)).status == "completed"
        assert node.engine.requests == 1
        if accepted.source is not None:
            assert isinstance((await read_all_events(accepted.source))[-1], Completed)


async def test_each_store_outage_restarts_the_grace_period(clock: Clock) -> None:
    async with start_nodes(1, clock) as (node,):
        node.store.down = {"renew", "claim"}
        await node.background_runs._scan_or_log()
        first = node.background_runs._cautious_until
        await node.background_runs._scan_or_log()  # also without leases to renew
        assert node.background_runs._cautious_until > first


# ---- responses that are failed


@pytest.mark.shows("B.7")
async def test_a_stream_with_output_is_closed_and_fails_with_consecutive_sequence_numbers(clock: Clock) -> None:
    async with start_nodes(2, clock) as (dead, other):
        dead.engine.says(Text("Hel"), Text("lo"))
        dead.engine.holds(after=1)
        collector = await dead.create_stream(background=True)
        await collector.wait_for("response.output_text.delta")
        follower = EventCollector(await replay(other.detached_runs, TENANT, collector.id)).start()
        await follower.wait_for("response.output_text.delta")
        await collector.disconnect()
        await kill_server(dead, clock)
        await other.background_runs.scan()
        events = await follower.read_all()
        assert to_sse_bytes(events[: len(collector.events)]) == to_sse_bytes(collector.events)
        assert list_types(events)[len(collector.events) :] == [
            "response.output_text.done", "response.content_part.done", "response.output_item.done", "error",
            "response.failed",
        ]  # fmt: skip
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert to_sse_bytes(events) == to_sse_bytes(await other.replay_events(collector.id))
        response = await other.load_response(collector.id)
        assert (response.status, get_error_code(response)) == ("failed", "server_restarted")
        assert response.output[0].status == "incomplete"  # type: ignore[union-attr]  # a message
        assert other.engine.requests == 0


async def test_an_open_tool_call_is_closed_as_incomplete(clock: Clock) -> None:
    async with start_nodes(2, clock) as (dead, other):
        dead.engine.says(CallStarted(0, "f"), CallDelta(0, '{"a":'), CallDelta(0, "1}"))
        dead.engine.holds(after=2)
        tools = [{"type": "function", "name": "f"}]
        collector = await dead.create_stream(background=True, tools=tools)
        await collector.wait_for("response.function_call_arguments.delta")
        await collector.disconnect()
        await kill_server(dead, clock)
        await other.background_runs.scan()
        response = await other.wait_ended(collector.id)
        assert (response.status, get_error_code(response)) == ("failed", "server_restarted")
        assert response.output[0].status == "incomplete"  # type: ignore[union-attr]  # a call


async def test_a_foreground_response_of_a_dead_server_fails_and_is_not_rerun(clock: Clock) -> None:
    async with start_nodes(2, clock, keep_streams=60.0) as (dead, other):
        gate = dead.engine.holds(after=0)
        collector = await dead.create_stream()
        await gate.reached.wait()
        await collector.disconnect()
        await kill_server(dead, clock)
        await other.background_runs.scan()
        response = await other.wait_ended(collector.id)
        assert (response.status, get_error_code(response)) == ("failed", "server_restarted")
        assert list_types(await other.replay_events(collector.id)) == ["response.created", "error", "response.failed"]
        assert other.engine.requests == 0


async def test_a_response_that_keeps_crashing_its_servers_is_failed(clock: Clock) -> None:
    async with start_nodes(4, clock, attempts=2) as servers:
        gate = servers[0].engine.holds(after=0)
        response_id = await servers[0].create_background()
        for dead, other in pairwise(servers[:3]):
            await gate.reached.wait()
            await kill_server(dead, clock)
            gate = other.engine.holds(after=0)
            await other.background_runs.scan()
        response = await servers[3].wait_ended(response_id)
        assert (response.status, get_error_code(response)) == ("failed", "server_restarted")
        assert [node.engine.requests for node in servers] == [1, 1, 0, 0]


async def test_a_response_whose_model_was_removed_fails_with_model_not_found(clock: Clock) -> None:
    async with start_nodes(2, clock) as (dead, other):
        gate = dead.engine.holds(after=0)
        response_id = await dead.create_background()
        await gate.reached.wait()
        await kill_server(dead, clock)
        other.engine.serves = lambda model: False  # type: ignore[method-assign]  # another server, with other models
        await other.background_runs.scan()
        response = await other.wait_ended(response_id)
        assert (response.status, get_error_code(response)) == ("failed", "model_not_found")


async def test_a_response_whose_parent_was_deleted_is_still_run(clock: Clock) -> None:
    async with start_nodes(2, clock) as (dead, other):
        parent = await dead.create_background(input="first")
        await dead.wait_ended(parent)
        gate = dead.engine.holds(after=0)
        child = await dead.create_background(input="second", previous_response_id=parent)
        await gate.reached.wait()
        await kill_server(dead, clock)
        assert await other.store.delete(TENANT, parent)
        await other.background_runs.scan()
        assert (await other.wait_ended(child)).status in ("completed", "failed")
        assert other.engine.running == 0


# ---- failures during recovery


async def test_a_response_that_cannot_be_planned_is_requeued_and_run_later(clock: Clock) -> None:
    async with start_nodes(2, clock) as (dead, other):
        parent = await dead.create_background(input="first")
        await dead.wait_ended(parent)
        gate = dead.engine.holds(after=0)
        response_id = await dead.create_background(input="second", previous_response_id=parent)
        await gate.reached.wait()
        await kill_server(dead, clock)
        other.store.down = {"chain"}
        await other.background_runs.scan()
        await other.wait_settled()
        row = await other.store.get(TENANT, response_id)
        assert row is not None
        assert (row.status, row.attempts) == ("queued", 1)
        other.store.down = set()
        await other.background_runs.scan()
        assert (await other.wait_ended(response_id)).status == "completed"


@pytest.mark.parametrize("operation", ["read", "finish", "release", "start"])
async def test_a_store_failure_during_recovery_loses_no_response(clock: Clock, operation: str) -> None:
    async with start_nodes(2, clock) as (dead, other):
        dead.engine.says(Text("a"), Text("b"))
        dead.engine.holds(after=1)
        collector = await dead.create_stream(background=True)
        await collector.wait_for("response.output_text.delta")
        await collector.disconnect()
        gate = dead.engine.holds(after=0)
        unstreamed_id = await dead.create_background()
        await gate.reached.wait()
        await kill_server(dead, clock)
        other.store.down = {operation}
        await other.background_runs.scan()
        for _ in range(20):
            await asyncio.sleep(0)
        other.store.down = set()
        await other.wait_settled()
        clock.advance(LEASE + 1)
        await other.background_runs.scan()
        assert (await other.wait_ended(collector.id)).status == "failed"
        assert (await other.wait_ended(unstreamed_id)).status == "completed"


async def test_an_owner_that_resumes_after_its_lease_changes_nothing(clock: Clock) -> None:
    async with start_nodes(2, clock) as (zombie, other):
        gate = zombie.engine.holds(after=0)
        response_id = await zombie.create_background()
        await gate.reached.wait()
        clock.advance(LEASE + 1)
        await other.background_runs.scan()
        completed = await other.wait_ended(response_id)
        gate.open()  # the former owner resumes and finishes
        await zombie.detached_runs.tasks.wait_all()
        assert await other.load_response(response_id) == completed
        assert completed.status == "completed"
        assert list_types(await zombie.replay_events(response_id)) == list_types(await other.replay_events(response_id))


async def test_a_streaming_owner_that_resumes_after_its_lease_sends_the_stored_end(clock: Clock) -> None:
    async with start_nodes(2, clock) as (zombie, other):
        zombie.engine.says(Text("a"), Text("b"), Text("c"))
        gate = zombie.engine.holds(after=1)
        collector = await zombie.create_stream(background=True)
        await collector.wait_for("response.output_text.delta")
        clock.advance(LEASE + 1)
        await other.background_runs.scan()
        await other.wait_ended(collector.id)
        gate.open()
        events = await collector.read_all()
        assert isinstance(events[-1], Failed)
        assert to_sse_bytes(events) == to_sse_bytes(await other.replay_events(collector.id))
        await zombie.detached_runs.tasks.wait_all()
        assert zombie.engine.running == 0


async def test_an_owner_that_lost_a_stream_sends_the_events_of_the_new_owner(clock: Clock) -> None:
    async with start_nodes(2, clock) as (zombie, other):
        zombie.engine.holds(after=0)
        collector = await zombie.create_stream(background=True)
        await collector.wait_for("response.in_progress")
        other.engine.says(Text("a"), Text("b"))
        gate = other.engine.holds(after=1)
        clock.advance(LEASE + 1)
        await other.background_runs.scan()
        await gate.reached.wait()
        await zombie.writer.leases.renew()
        await collector.wait_for("response.output_text.delta")
        assert zombie.engine.running == 0
        gate.open()
        events = await collector.read_all()
        assert isinstance(events[-1], Completed)
        assert to_sse_bytes(events) == to_sse_bytes(await other.replay_events(collector.id))


async def test_followers_of_an_end_that_was_not_stored_receive_the_end_that_another_server_stored(clock: Clock) -> None:
    async with start_nodes(2, clock, keep_streams=60.0) as (owner, other):
        finish, called, go_on = owner.store.finish, asyncio.Event(), asyncio.Event()

        async def finish_late(tenant: str, end: ResponseEnd) -> None:
            if end.fence == 1:
                called.set()
                await go_on.wait()
            await finish(tenant, end)

        owner.store.finish = finish_late  # type: ignore[method-assign]  # a slow store
        owner.engine.says(Text("a"))
        gate = owner.engine.holds(after=1)
        collector = await owner.create_stream()
        early = EventCollector(await replay(owner.detached_runs, TENANT, collector.id)).start()
        await early.wait_for("response.output_text.delta")
        gate.open()
        await called.wait()
        clock.advance(LEASE + 1)
        await other.background_runs.scan()
        stored = await other.wait_ended(collector.id)
        late = EventCollector(await replay(owner.detached_runs, TENANT, collector.id)).start()
        await late.wait_for("response.created")
        go_on.set()
        for follower in (early, late):
            events = await follower.read_all()
            assert isinstance(events[-1], Failed)
            assert events[-1].response.error == stored.error
            assert events[-1].response.completed_at == stored.completed_at
            assert [event.sequence_number for event in events] == [*range(len(events))]
        assert to_sse_bytes(late.events) == to_sse_bytes(await other.replay_events(collector.id))
        assert list_types(await collector.read_all())[-1] == "response.failed"


async def test_a_heartbeat_stops_a_lost_run(clock: Clock) -> None:
    async with start_nodes(2, clock) as (zombie, other):
        zombie.stop_notifications()
        gate = zombie.engine.holds(after=0)
        response_id = await zombie.create_background()
        await gate.reached.wait()
        clock.advance(LEASE + 1)
        await other.background_runs.scan()
        await other.wait_ended(response_id)
        await zombie.writer.leases.renew()
        await zombie.detached_runs.tasks.wait_all()
        assert zombie.engine.running == 0


async def test_a_server_does_not_claim_its_own_runs(clock: Clock) -> None:
    async with start_nodes(1, clock) as (node,):
        gate = node.engine.holds(after=0)
        response_id = await node.create_background()
        await gate.reached.wait()
        clock.advance(LEASE + 1)  # the server was suspended
        await node.background_runs.scan()
        gate.open()
        assert (await node.wait_ended(response_id)).status == "completed"
        assert node.engine.requests == 1


async def run_scenario(node: ServiceNode) -> None:
    """Run one streamed and one unstreamed background response, and replay the streamed one."""
    node.engine.says(Text("a"), Text("b"))
    accepted = await node.create(background=True, stream=True)
    assert accepted.source is not None
    collector = EventCollector(accepted.source).start()
    unstreamed_id = await node.create_background(input="silent")
    events = await collector.read_all()
    ended = (list_types(events)[-1], (await node.wait_ended(unstreamed_id)).status)
    if ended[0] != "error":
        assert to_sse_bytes(await node.replay_events(collector.id)) == to_sse_bytes(events)


async def test_any_failing_store_operation_ends_each_response_once_and_as_it_was_sent(clock: Clock) -> None:
    total = refused = 0
    for number in range(1, 200):
        async with start_nodes(1, clock, lease=0.5) as (node,):
            node.store.fail_at = number
            queue_loop = asyncio.ensure_future(node.background_runs.run_queue())
            try:
                async with asyncio.timeout(30):
                    await run_scenario(node)
            except Unavailable:  # the client got an error before any acknowledgement
                refused += 1
            finally:
                queue_loop.cancel()
                await asyncio.wait([queue_loop])
            node.store.fail_at = None
            await node.wait_settled()
            clock.advance(10.0)
            node.background_runs._cautious_until = 0.0
            await node.background_runs.scan()
            await node.wait_settled()
            assert await node.store.claim(node.writer.leases.make_claim(), 100) == []
            total = node.store.operation_count
        if number > total:
            break
    assert 5 < total < 100
    assert refused < 10

"""Background responses on one or several servers: queue, slots, cancellation, deadlines, deletion and shutdown.

Covers `service/runs/detached_run.py` and `service/runs/takeover.py`.
"""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from antiphon.core.deltas import Text
from antiphon.engines.fake import FakeSettings
from antiphon.errors import Busy, NotCancellable, NotFound
from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import decode_create, encode
from antiphon.protocol.types.events import Completed, Failed, Incomplete
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import Response
from antiphon.protocol.types.tools import McpTool
from antiphon.service.runs import background
from antiphon.service.runs.background import CredentialCache
from antiphon.service.runs.follow import replay
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


def decode_response(body: bytes) -> Response:
    return msgspec.json.decode(body, type=Response)


@asynccontextmanager
async def run_queues(*servers: ServiceNode) -> AsyncIterator[None]:
    """Run the background queues of these servers within the context."""
    tasks = [asyncio.ensure_future(server.background_runs.run_queue()) for server in servers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)


# ---- life cycle


@pytest.mark.shows("B.6")
async def test_a_background_response_is_queued_in_progress_and_completed() -> None:
    async with start_nodes() as (node,):
        node.engine.says(Text("a"), Text("b"))
        gate = node.engine.holds(after=1)
        accepted = await node.create(background=True)
        assert accepted.body is not None
        assert decode_response(accepted.body).status == "queued"
        response_id = decode_response(accepted.body).id
        await gate.reached.wait()
        async with asyncio.timeout(30):
            await node.store.started.wait()
        assert (await node.load_response(response_id)).status == "in_progress"
        gate.open()
        response = await node.wait_ended(response_id)
        assert response.status == "completed"
        assert response.output


@pytest.mark.shows("A1.3")
async def test_a_background_stream_continues_without_its_client_and_can_be_resumed() -> None:
    async with start_nodes() as (node,):
        node.engine.says(Text("a"), Text("b"), Text("c"))
        gate = node.engine.holds(after=2)
        first = await node.create_stream(background=True)
        await first.wait_for("response.output_text.delta")
        await first.disconnect()
        await gate.reached.wait()
        gate.open()
        last = first.events[-1].sequence_number
        events = first.events + await node.replay_events(first.id, last)
        assert list_types(events)[:3] == ["response.created", "response.queued", "response.in_progress"]
        assert isinstance(events[-1], Completed)
        assert to_sse_bytes(events) == to_sse_bytes(await node.replay_events(first.id))


async def test_background_stream_events_are_stored_before_they_are_sent() -> None:
    async with start_nodes() as (node,):
        node.engine.says(Text("a"), Text("b"), Text("c"))
        gate = node.engine.holds(after=3)
        node.store.down = {"append"}
        collector = await node.create_stream(background=True)
        await gate.reached.wait()
        assert list_types(collector.events) == ["response.created", "response.queued"]
        node.store.down = set()
        await collector.wait_for("response.output_text.delta")
        assert await node.store.read(TENANT, collector.id, -1)
        gate.open()
        assert isinstance((await collector.read_all())[-1], Completed)
        assert not await node.store.read(TENANT, collector.id, -1)


async def test_the_engine_is_called_only_after_the_store_has_confirmed_the_ownership() -> None:
    async with start_nodes() as (node,):
        node.store.down = {"start"}
        response_id = await node.create_background()
        async with asyncio.timeout(30):
            await node.store.failed.wait()
        assert not node.engine.seen
        node.store.down = set()
        assert (await node.wait_ended(response_id)).status == "completed"


async def test_without_streaming_no_events_are_written_before_the_end() -> None:
    async with start_nodes() as (node,):
        node.engine.says(Text("a"), Text("b"))
        gate = node.engine.holds(after=2)
        response_id = await node.create_background()
        await gate.reached.wait()
        assert not await node.store.read(TENANT, response_id, -1)
        follower = EventCollector(await replay(node.detached_runs, TENANT, response_id)).start()
        await follower.wait_for("response.queued")
        gate.open()
        assert isinstance((await follower.read_all())[-1], Completed)


async def test_a_finished_background_run_is_freed_without_the_garbage_collector() -> None:
    async with start_nodes() as (node,):
        gc.disable()
        try:
            gate = node.engine.holds(after=0)
            response_id = await node.create_background()
            await gate.reached.wait()
            (run,) = [weakref.ref(active) for active in node.detached_runs.by_id.values()]
            gate.open()
            await node.wait_ended(response_id)
            async with asyncio.timeout(30):
                while run() is not None:  # noqa: ASYNC110 - the task that ends may still reference the run
                    await asyncio.sleep(0.001)
        finally:
            gc.enable()


# ---- slots and the queue


async def test_slots_limit_concurrency_and_the_queue_runs_in_order() -> None:
    async with start_nodes(slots=2) as (node,), run_queues(node):
        gates = []
        for number in range(6):
            node.engine.says(Text(f"answer {number}"))
            gates.append(node.engine.holds(after=0))
        ids = [await node.create_background(input=f"number {number}") for number in range(6)]
        for number in range(6):
            async with asyncio.timeout(30):
                await gates[number].reached.wait()
            assert node.engine.running <= 2
            gates[number].open()
        responses = [await node.wait_ended(response_id) for response_id in ids]
        assert [response.status for response in responses] == ["completed"] * 6
        assert node.engine.requests == 6
        contents = [generation.prompt.messages[-1]["content"] for generation in node.engine.seen]  # type: ignore[union-attr]  # chat prompts
        assert contents == [
            f"number {number}" for number in range(2, 6)
        ]  # the fake engine records the last four requests


async def test_priority_responses_run_before_older_flex_responses() -> None:
    async with start_nodes(slots=1) as (node,), run_queues(node):
        node.engine.says(Text("a"))
        first = node.engine.holds(after=0)
        await node.create_background()
        flex_ids = [await node.create_background(service_tier="flex") for _ in range(24)]
        priority_ids = [await node.create_background(service_tier="priority") for _ in range(24)]
        for _ in range(24):
            node.engine.says(Text("b"))
        node.engine.says(Text("c"))
        half = node.engine.holds(after=0)
        first.open()
        async with asyncio.timeout(30):
            await half.reached.wait()
        ended = [
            response_id for response_id in priority_ids if (await node.load_response(response_id)).status == "completed"
        ]
        assert len(ended) > 12, "one in nine turns goes to the flex responses"
        half.open()
        for response_id in (*flex_ids, *priority_ids):
            assert (await node.wait_ended(response_id)).status == "completed"


async def test_a_queued_stream_receives_its_events_once_it_runs() -> None:
    async with start_nodes(slots=1) as (node,), run_queues(node):
        node.engine.says(Text("a"))
        gate = node.engine.holds(after=0)
        first = await node.create_background()
        second = await node.create_stream(background=True)
        await gate.reached.wait()
        assert list_types(second.events) == ["response.created", "response.queued"]
        gate.open()
        events = await second.read_all()
        assert isinstance(events[-1], Completed)
        assert to_sse_bytes(events) == to_sse_bytes(await node.replay_events(second.id))
        assert (await node.wait_ended(first)).status == "completed"


async def test_a_response_without_a_free_slot_runs_on_another_server() -> None:
    async with start_nodes(2, slots=1) as (one, other), run_queues(other):
        one.engine.says(Text("a"))
        gate = one.engine.holds(after=0)
        first, second = await one.create_background(), await one.create_background()
        assert (await one.wait_ended(second)).status == "completed"
        assert (one.engine.requests, other.engine.requests) == (1, 1)
        gate.open()
        assert (await other.wait_ended(first)).status == "completed"


@pytest.mark.shows("B.6")
async def test_a_full_tenant_queue_gives_429() -> None:
    async with start_nodes(slots=1, room=2) as (node,):
        node.engine.says(Text("a"))
        node.engine.holds(after=0)
        await node.create_background()
        await node.create_background()
        with pytest.raises(Busy) as refused:
            await node.create_background()
        assert refused.value.retry_after is not None


async def test_background_responses_do_not_fill_the_admission_queue_of_the_model() -> None:
    async with start_nodes() as (node,):
        node.engine.__init__(FakeSettings(burst=1, at_once=1))  # type: ignore[misc]  # the same engine, with one slot
        node.engine.says(Text("a"))
        gate = node.engine.holds(after=0)
        ids = [await node.create_background() for _ in range(10)]
        await gate.reached.wait()
        foreground = await node.create_stream()  # the nine waiting responses do not fill the admission queue of four
        gate.open()
        assert isinstance((await foreground.read_all())[-1], Completed)
        assert {(await node.wait_ended(response_id)).status for response_id in ids} == {"completed"}


async def test_the_queue_loop_survives_an_unavailable_store() -> None:
    async with start_nodes(slots=1, lease=0.2) as (node,), run_queues(node):
        node.engine.says(Text("a"))
        gate = node.engine.holds(after=0)
        await node.create_background()
        second = await node.create_background()
        node.store.down = {"claim"}
        gate.open()
        async with asyncio.timeout(30):
            await node.store.failed.wait()
        node.store.down = set()
        assert (await node.wait_ended(second)).status == "completed"


# ---- cancellation


@pytest.mark.shows("A.7")
async def test_cancelling_a_running_response_frees_its_engine() -> None:
    async with start_nodes() as (node,):
        node.engine.says(Text("a"), Text("b"))
        node.engine.holds(after=1)
        collector = await node.create_stream(background=True)
        await collector.wait_for("response.output_text.delta")
        response = decode_response(await node.background_runs.cancel(TENANT, collector.id))
        assert response.status == "cancelled"
        assert node.engine.running == 0
        last = (await collector.read_all())[-1]
        assert isinstance(last, Incomplete)
        assert last.response.status == "cancelled"
        assert (await node.load_response(collector.id)).status == "cancelled"
        assert to_sse_bytes(await node.replay_events(collector.id)) == to_sse_bytes(collector.events)


@pytest.mark.shows("B.8")
async def test_cancelling_an_ended_response_changes_nothing() -> None:
    async with start_nodes() as (node,):
        gate = node.engine.holds(after=0)
        cancelled = await node.create_background()
        await gate.reached.wait()
        bodies = [await node.background_runs.cancel(TENANT, cancelled) for _ in range(3)]
        assert len(set(bodies)) == 1
        completed = await node.create_background()
        await node.wait_ended(completed)
        assert decode_response(await node.background_runs.cancel(TENANT, completed)).status == "completed"


@pytest.mark.shows("B.8")
async def test_a_hundred_cancels_that_race_with_the_end_return_the_same_body() -> None:
    async with start_nodes(2) as (one, other):
        statuses = set()
        for steps in range(12):
            one.engine.says(*[Text("x")] * 4)
            gate = one.engine.holds(after=4)
            response_id = await one.create_background()
            await gate.reached.wait()
            gate.open()
            for _ in range(steps):
                await asyncio.sleep(0)
            cancels = [node.background_runs.cancel(TENANT, response_id) for node in (one,) * 90 + (other,) * 10]
            async with asyncio.timeout(30):
                bodies = await asyncio.gather(*cancels)
            assert len(set(bodies)) == 1
            assert (await one.store.get(TENANT, response_id)).response == bodies[0]  # type: ignore[union-attr]  # the row exists
            assert list_types(await other.replay_events(response_id))[-1] in (
                "response.completed",
                "response.incomplete",
            )
            statuses.add(decode_response(bodies[0]).status)
        assert statuses <= {"completed", "cancelled"}
        assert (one.engine.running, other.engine.requests) == (0, 0)


async def test_a_cancelled_queued_response_never_runs() -> None:
    async with start_nodes(slots=1) as (node,):
        node.engine.says(Text("a"))
        gate = node.engine.holds(after=0)
        first, second = await node.create_background(), await node.create_background()
        await gate.reached.wait()
        assert decode_response(await node.background_runs.cancel(TENANT, second)).status == "cancelled"
        assert list_types(await node.replay_events(second)) == [
            "response.created",
            "response.queued",
            "response.incomplete",
        ]
        gate.open()
        await node.wait_ended(first)
        await node.background_runs.scan()
        assert node.engine.requests == 1


async def test_cancelling_a_stream_of_another_server_stops_it_there() -> None:
    async with start_nodes(2) as (owner, other):
        owner.engine.says(Text("a"), Text("b"))
        owner.engine.holds(after=1)
        collector = await owner.create_stream(background=True)
        await collector.wait_for("response.output_text.delta")
        follower = EventCollector(await replay(other.detached_runs, TENANT, collector.id)).start()
        await follower.wait_for("response.output_text.delta")
        assert decode_response(await other.background_runs.cancel(TENANT, collector.id)).status == "cancelled"
        events = await collector.read_all()
        await owner.wait_settled()
        assert (
            to_sse_bytes(await follower.read_all())
            == to_sse_bytes(events)
            == to_sse_bytes(await other.replay_events(collector.id))
        )
        last = events[-1]
        assert isinstance(last, Incomplete)
        assert last.response.status == "cancelled"


async def test_cancelling_an_unstreamed_response_of_another_server_stops_it_there() -> None:
    async with start_nodes(2) as (owner, other):
        gate = owner.engine.holds(after=0)
        response_id = await owner.create_background()
        await gate.reached.wait()
        assert decode_response(await other.background_runs.cancel(TENANT, response_id)).status == "cancelled"
        await owner.wait_settled()
        assert owner.engine.running == 0
        assert (await owner.load_response(response_id)).status == "cancelled"


async def test_a_response_whose_owner_died_can_be_cancelled() -> None:
    async with start_nodes(2) as (dead, other):
        dead.engine.says(Text("a"), Text("b"))
        dead.engine.holds(after=1)
        collector = await dead.create_stream(background=True)
        await collector.wait_for("response.output_text.delta")
        before = [*collector.events]
        await collector.disconnect()
        dead.crash()
        await dead.detached_runs.tasks.wait_all()
        assert decode_response(await other.background_runs.cancel(TENANT, collector.id)).status == "cancelled"
        events = await other.replay_events(collector.id)
        assert to_sse_bytes(events[: len(before)]) == to_sse_bytes(before)
        assert list_types(events)[-4:] == [
            "response.output_text.done", "response.content_part.done", "response.output_item.done",
            "response.incomplete",
        ]  # fmt: skip


@pytest.mark.shows("A.8")
async def test_a_foreground_response_cannot_be_cancelled() -> None:
    async with start_nodes() as (node,):
        node.engine.says(Text("a"), Text("b"))
        gate = node.engine.holds(after=1)
        running = await node.create_stream()
        await gate.reached.wait()
        with pytest.raises(NotCancellable):
            await node.background_runs.cancel(TENANT, running.id)
        gate.open()
        await running.read_all()
        with pytest.raises(NotCancellable):
            await node.background_runs.cancel(TENANT, running.id)


async def test_unknown_responses_and_those_of_other_tenants_cannot_be_cancelled() -> None:
    async with start_nodes() as (node,):
        gate = node.engine.holds(after=0)
        response_id = await node.create_background()
        for tenant, requested_id in (("another", response_id), (TENANT, "resp_" + "0" * 32)):
            with pytest.raises(NotFound):
                await node.background_runs.cancel(tenant, requested_id)
        gate.open()
        assert (await node.wait_ended(response_id)).status == "completed"


# ---- deadlines, deletion and shutdown


async def test_a_background_response_has_a_deadline_from_its_creation() -> None:
    async with start_nodes(timeout=0.0) as (node,):
        node.engine.holds(after=0)
        collector = await node.create_stream(background=True)
        last = (await collector.read_all())[-1]
        assert isinstance(last, Failed)
        assert last.response.error is not None
        assert "longer" in last.response.error.message
        assert node.engine.running == 0


async def test_a_queued_response_past_its_deadline_is_not_run() -> None:
    clock = Clock()
    async with start_nodes(slots=1, clock=clock) as (node,):
        gate = node.engine.holds(after=0)
        first, second = await node.create_background(), await node.create_background()
        await gate.reached.wait()
        gate.open()
        await node.wait_ended(first)
        clock.advance(100_000.0)
        await node.background_runs.scan()
        response = await node.wait_ended(second)
        assert response.status == "failed"
        assert node.engine.requests == 1


async def test_deleting_a_background_response_stops_it_and_fails_its_followers() -> None:
    async with start_nodes(2) as (owner, other):
        owner.engine.says(Text("a"), Text("b"))
        owner.engine.holds(after=1)
        collector = await owner.create_stream(background=True)
        await collector.wait_for("response.output_text.delta")
        follower = EventCollector(await replay(other.detached_runs, TENANT, collector.id)).start()
        await follower.wait_for("response.output_text.delta")
        assert await other.store.delete(TENANT, collector.id)
        await other.detached_runs.notify_servers(collector.id)
        for events in (await follower.read_all(), await collector.read_all()):
            last = events[-1]
            assert isinstance(last, Failed)
            assert [event.sequence_number for event in events] == list(range(len(events)))
        await owner.wait_settled()


async def test_at_shutdown_responses_without_output_move_to_another_server() -> None:
    async with start_nodes(2) as (one, other), run_queues(other):
        gate = one.engine.holds(after=0)
        unstreamed_id = await one.create_background()
        await gate.reached.wait()
        one.engine.says(Text("a"), Text("b"))
        begun = one.engine.holds(after=0)
        collector = await one.create_stream(background=True)
        await begun.reached.wait()
        await collector.wait_for("response.in_progress")  # started, but without output
        follower = EventCollector(await replay(other.detached_runs, TENANT, collector.id)).start()
        await one.detached_runs.close()
        assert one.engine.running == 0
        assert (await other.wait_ended(unstreamed_id)).status == "completed"
        events = await follower.read_all()
        assert isinstance(events[-1], Completed)
        assert to_sse_bytes(events) == to_sse_bytes(await other.replay_events(collector.id))
        assert list_types(events).count("response.in_progress") == 1
        assert list_types(await collector.read_all())[-1] == "error"  # this server cannot continue the stream
        assert other.engine.requests == 2


async def test_at_shutdown_a_response_with_streamed_output_ends_failed() -> None:
    async with start_nodes(2) as (one, other), run_queues(other):
        one.engine.says(Text("a"), Text("b"))
        one.engine.holds(after=1)
        collector = await one.create_stream(background=True)
        await collector.wait_for("response.output_text.delta")
        await one.detached_runs.close()
        events = await collector.read_all()
        last = events[-1]
        assert isinstance(last, Failed)
        assert last.response.error is not None
        assert last.response.error.code == "server_restarted"
        assert to_sse_bytes(events) == to_sse_bytes(await other.replay_events(collector.id))
        assert other.engine.requests == 0


async def test_a_stopping_server_claims_no_more_responses() -> None:
    async with start_nodes(2, slots=1) as (one, other):
        gate = one.engine.holds(after=0)
        first = await one.create_background()
        await gate.reached.wait()
        one.background_runs.stop_claiming()
        second, third = await one.create_background(), await one.create_background()
        gate.open()
        await one.wait_ended(first)
        await one.background_runs.scan()
        async with run_queues(other):
            for response_id in (second, third):
                assert (await other.wait_ended(response_id)).status == "completed"
        assert (one.engine.requests, other.engine.requests) == (1, 2)


async def test_a_background_response_created_during_shutdown_runs_on_another_server() -> None:
    async with start_nodes(2) as (one, other), run_queues(other):
        one.detached_runs.interrupt()
        response_id = await one.create_background()
        assert (await other.wait_ended(response_id)).status == "completed"
        assert one.engine.requests == 0


async def test_a_queued_follower_receives_the_end_despite_lost_notifications() -> None:
    async with start_nodes(2, slots=1) as (one, other):
        one.stop_notifications()
        gate = one.engine.holds(after=0)
        await one.create_background()
        collector = await one.create_stream(background=True)
        await other.background_runs.scan()
        assert isinstance((await collector.read_all())[-1], Completed)
        gate.open()


async def test_the_result_of_a_background_response_is_its_final_json() -> None:
    async with start_nodes() as (node,):
        response_id = await node.create_background()
        source = await replay(node.detached_runs, TENANT, response_id)
        async with asyncio.timeout(30):
            assert decode_response(await source.result()).status == "completed"
        source.close()
        assert await read_all_events(await replay(node.detached_runs, TENANT, response_id))


def decode_request(**fields: Any) -> CreateResponse:
    tool = {"type": "mcp", "server_label": "s", "server_url": "https://mcp.example", **fields}
    return decode_create(encode({"model": "m", "input": "hi", "tools": [tool]}), Limits()).request


def get_authorization(request: CreateResponse) -> str | None:
    (tool,) = request.tools
    assert isinstance(tool, McpTool)
    return tool.credentials.authorization


@pytest.mark.shows("E.8")
def test_a_queued_response_gets_its_mcp_credentials_back_once() -> None:
    cache = CredentialCache()
    cache.store("resp_1", decode_request(authorization="CANARY"))
    for response_id, expected in (("resp_2", None), ("resp_1", "CANARY"), ("resp_1", None)):
        request = decode_request()
        cache.restore(response_id, request)
        assert get_authorization(request) == expected


def test_the_credential_cache_evicts_the_oldest_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "MAX_RESPONSES", 2)
    cache = CredentialCache()
    for number in range(3):
        cache.store(f"resp_{number}", decode_request(authorization=str(number)))
    found = []
    for number in range(3):
        request = decode_request()
        cache.restore(f"resp_{number}", request)
        found.append(get_authorization(request))
    assert found == [None, "1", "2"]

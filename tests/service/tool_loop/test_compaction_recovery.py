"""Recovery of a response whose server dies after or during a compaction: another server continues from there."""

import asyncio
from typing import Any

import pytest

from antiphon.core.deltas import Text
from antiphon.core.prompt import ChatPrompt
from antiphon.protocol.types.events import Completed
from antiphon.protocol.types.items import Compaction, Message
from antiphon.service.runs.follow import replay
from tests.service.runs.test_recovery import kill_server
from tests.service.service_nodes import TENANT, Clock, EventCollector, list_types, start_nodes, to_sse_bytes

pytestmark = pytest.mark.anyio

LONG: dict[str, Any] = {
    "background": True,
    "input": [
        {"role": "user", "content": "I am Ada."},
        {"role": "assistant", "content": "so it is " * 900},
        {"role": "user", "content": "Who am I?"},
    ],
    "context_management": [{"type": "compaction", "compact_threshold": 1000}],
}


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def test_a_finished_compaction_is_not_repeated(clock: Clock) -> None:
    async with start_nodes(2, clock) as (dead, other), asyncio.timeout(60):
        dead.engine.says(Text("Ada was greeted."))
        dead.engine.answers()
        gate = dead.engine.holds(after=0)
        collector = await dead.create_stream(**LONG)
        await collector.wait_for("response.output_item.done")
        await gate.reached.wait()
        await collector.disconnect()
        follower = EventCollector(await replay(other.detached_runs, TENANT, collector.id)).start()
        await follower.wait_for("response.output_item.done")
        await kill_server(dead, clock)
        await other.background_runs.scan()
        events = await follower.read_all()
        assert isinstance(events[-1], Completed)
        response = events[-1].response
        assert [type(item) for item in response.output] == [Compaction, Message]
        assert to_sse_bytes(events) == to_sse_bytes(await other.replay_events(collector.id))
        assert list_types(events).count("response.compaction.compacting") == 1
        prompt = other.engine.seen[-1].prompt
        assert isinstance(prompt, ChatPrompt)
        assert [message["content"] for message in prompt.messages] == [
            "I am Ada.",
            "[Summary of the conversation so far]\nAda was greeted.",
            "Who am I?",
        ]
        assert other.engine.requests == 1
        assert response.usage is not None
        assert len(response.usage.input_tokens_details.input_tokens_per_turn or []) == 2


@pytest.mark.parametrize("triggered", [False, True])
async def test_an_interrupted_compaction_is_repeated_by_another_server(clock: Clock, triggered: bool) -> None:
    async with start_nodes(2, clock) as (dead, other), asyncio.timeout(60):
        gate = dead.engine.holds(after=0)
        body = {**LONG, "input": [*LONG["input"], {"type": "compaction_trigger"}]} if triggered else LONG
        collector = await dead.create_stream(**body)
        await gate.reached.wait()
        await collector.disconnect()
        await kill_server(dead, clock)
        await other.background_runs.scan()
        response = await other.wait_ended(collector.id)
        assert [type(item) for item in response.output] == ([Compaction] if triggered else [Compaction, Message])
        assert other.engine.requests == (1 if triggered else 2)

"""A server that dies with a compaction behind or before it: whoever takes the response over goes on from there."""

import asyncio
from typing import Any

import pytest

from antiphon.core.deltas import Text
from antiphon.core.prompt import ChatPrompt
from antiphon.protocol.types.events import Completed
from antiphon.protocol.types.items import Compaction, Message
from tests.service.runs.test_recovery import die
from tests.service.service_nodes import TENANT, Clock, Listener, houses, types, wire

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


async def test_what_was_compacted_is_not_compacted_again(clock: Clock) -> None:
    async with houses(2, clock) as (dead, other), asyncio.timeout(60):
        dead.engine.says(Text("Ada was greeted."))
        dead.engine.answers()
        gate = dead.engine.holds(after=0)
        listener = await dead.streaming(**LONG)
        await listener.until("response.output_item.done")
        await gate.reached.wait()
        await listener.go_away()
        follower = Listener(await other.following.replay(TENANT, listener.id)).start()
        await follower.until("response.output_item.done")
        await die(dead, clock)
        await other.jobs.scan()
        events = await follower.all()
        assert isinstance(events[-1], Completed)
        response = events[-1].response
        assert [type(item) for item in response.output] == [Compaction, Message]
        assert wire(events) == wire(await other.heard(listener.id))
        assert types(events).count("response.compaction.compacting") == 1
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
async def test_what_was_being_compacted_is_compacted_by_another(clock: Clock, triggered: bool) -> None:
    async with houses(2, clock) as (dead, other), asyncio.timeout(60):
        gate = dead.engine.holds(after=0)
        body = {**LONG, "input": [*LONG["input"], {"type": "compaction_trigger"}]} if triggered else LONG
        listener = await dead.streaming(**body)
        await gate.reached.wait()
        await listener.go_away()
        await die(dead, clock)
        await other.jobs.scan()
        response = await other.ended(listener.id)
        assert [type(item) for item in response.output] == ([Compaction] if triggered else [Compaction, Message])
        assert other.engine.requests == (1 if triggered else 2)

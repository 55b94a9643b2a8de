"""Reasoning summaries that the model writes (`--reasoning-summaries model`), behind the whole server."""

import asyncio
import logging
from typing import Any

import pytest

from antiphon.core.deltas import ReasoningDelta, Text
from antiphon.core.prompt import ChatPrompt, TokenCounts
from antiphon.engines.fake import FakeEngine
from antiphon.errors import BadRequest, EngineFailed
from tests.api.app import ApiServer, parse_events, run_api
from tests.oracles.responses import accumulate, check_event, check_response
from tests.support.asgi_client import call

pytestmark = pytest.mark.anyio

BODY = {"model": "fake", "input": "hi", "reasoning": {"summary": "concise"}}
PART = "response.reasoning_summary_part"
TEXT = "response.reasoning_summary_text"


def queue_answer(engine: FakeEngine) -> None:
    counts = TokenCounts(input_tokens=10, output_tokens=5, reasoning_tokens=2)
    engine.says(ReasoningDelta("First this, "), ReasoningDelta("then that."), Text("Yes."), counts=counts)


def queue_summary(engine: FakeEngine) -> None:
    engine.says(Text("I weighed "), Text("two things."), counts=TokenCounts(input_tokens=100, output_tokens=4))


async def stream(server: ApiServer, **fields: Any) -> list[dict[str, Any]]:
    answer = await server.post("responses", {**BODY, "stream": True, **fields})
    assert answer.status == 200, answer.body
    events = parse_events(answer)
    for event in events:
        check_event(event)
    accumulate(events)
    check_response(events[-1]["response"])
    return events


@pytest.mark.shows("A.37", "A.38")
async def test_the_model_summarises_its_reasoning() -> None:
    async with run_api(reasoning_summaries="model") as server:
        queue_answer(server.engine)
        queue_summary(server.engine)
        events = await stream(server)
        response = events[-1]["response"]
        reasoning, message = response["output"]
        assert reasoning["summary"] == [{"type": "summary_text", "text": "I weighed two things."}]
        assert reasoning["content"] == [{"type": "reasoning_text", "text": "First this, then that."}]
        assert message["content"][0]["text"] == "Yes."
        kinds = [event["type"] for event in events if "reasoning_summary" in event["type"]]
        assert kinds == [f"{PART}.added", f"{TEXT}.delta", f"{TEXT}.delta", f"{TEXT}.done", f"{PART}.done"]
        assert (response["usage"]["input_tokens"], response["usage"]["output_tokens"]) == (110, 9)
        metrics = (await call(server.app, "GET", "/metrics")).body.decode()
        assert "\nantiphon_prompt_tokens_total 110\n" in metrics
        stored = (await server.get(f"responses/{response['id']}")).json()
        assert stored["output"] == response["output"]
        replayed = parse_events(await server.get(f"responses/{response['id']}?stream=true"))
        assert replayed == events


@pytest.mark.parametrize(
    ("style", "fragment"), [("auto", "one short paragraph"), ("concise", "one or two"), ("detailed", "step by step")]
)
async def test_the_length_is_part_of_the_instruction(style: str, fragment: str) -> None:
    async with run_api(reasoning_summaries="model") as server:
        queue_answer(server.engine)
        queue_summary(server.engine)
        await stream(server, reasoning={"summary": style}, tools=[{"type": "function", "name": "f"}])
        prompt = server.engine.seen[-1].prompt
        assert isinstance(prompt, ChatPrompt)
        assert fragment in prompt.messages[-1]["content"]
        assert "First this, then that." in prompt.messages[-1]["content"]
        assert not prompt.tools


async def test_the_reasoning_itself_is_the_summary_by_default_and_for_several_choices() -> None:
    async with run_api() as server:
        queue_answer(server.engine)
        (reasoning, _), seen = (await stream(server))[-1]["response"]["output"], server.engine.seen
        assert reasoning["summary"][0]["text"] == "First this, then that."
        assert len(seen) == 1
    async with run_api(reasoning_summaries="model") as server:
        queue_answer(server.engine)
        queue_answer(server.engine)
        reasoning, *_ = (await server.post_ok("responses", {**BODY, "n": 2}))["output"]
        assert reasoning["summary"][0]["text"] == "First this, then that."


async def test_without_a_request_for_a_summary_there_is_none() -> None:
    async with run_api(reasoning_summaries="model") as server:
        queue_answer(server.engine)
        reasoning, _ = (await stream(server, reasoning={}))[-1]["response"]["output"]
        assert reasoning["summary"] == []
        assert len(server.engine.seen) == 1


async def test_a_summary_that_fails_does_not_affect_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    async with run_api(reasoning_summaries="model") as server:
        queue_answer(server.engine)
        queue_summary(server.engine)
        server.engine.fails(EngineFailed("It broke."), after=0)
        with caplog.at_level(logging.WARNING):
            response = (await stream(server))[-1]["response"]
        assert response["status"] == "completed"
        assert response["output"][0]["summary"] == []
        assert response["output"][1]["content"][0]["text"] == "Yes."
        assert "reasoning was not summarised: It broke." in caplog.text


async def test_a_server_that_rejects_the_effort_none_is_called_without_it() -> None:
    async with run_api(reasoning_summaries="model") as server:
        queue_answer(server.engine)
        queue_summary(server.engine)
        server.engine.fails(BadRequest("There is no effort none."), after=0)
        queue_summary(server.engine)
        response = (await stream(server))[-1]["response"]
        assert response["output"][0]["summary"][0]["text"] == "I weighed two things."
        assert [request.effort for request in server.engine.seen] == [None, "none", None]


async def test_a_background_response_is_summarised_and_a_single_slot_suffices() -> None:
    async with run_api(reasoning_summaries="model", engine_slots=1) as server:
        queue_answer(server.engine)
        queue_summary(server.engine)
        response = await server.post_ok("responses", {**BODY, "background": True})
        async with asyncio.timeout(30):
            while response["status"] != "completed":
                response = (await server.get(f"responses/{response['id']}")).json()
        assert response["output"][0]["summary"][0]["text"] == "I weighed two things."


async def test_cancelling_a_response_cancels_its_summary() -> None:
    async with run_api(reasoning_summaries="model") as server, asyncio.timeout(30):
        queue_answer(server.engine)
        queue_summary(server.engine)
        gate = server.engine.holds(after=1)
        response = await server.post_ok("responses", {**BODY, "background": True})
        await gate.reached.wait()
        cancelled = await server.post_ok(f"responses/{response['id']}/cancel", {})
        assert cancelled["status"] == "cancelled"
        assert server.engine.running == 0


async def test_a_failing_answer_ends_its_summary() -> None:
    async with run_api(reasoning_summaries="model") as server, asyncio.timeout(30):
        queue_answer(server.engine)
        summary_started = asyncio.Event()
        server.engine.waits(summary_started, after=3)
        server.engine.fails(EngineFailed("It broke."), after=3)
        queue_summary(server.engine)
        gate = server.engine.holds(after=1)
        task = asyncio.create_task(stream(server))
        await gate.reached.wait()
        summary_started.set()
        response = (await task)[-1]["response"]
        assert (response["status"], response["output"][0]["status"]) == ("failed", "incomplete")
        assert server.engine.running == 0

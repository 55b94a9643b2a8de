"""Service tiers: the effective tier, the allowed tiers, the reported tier, and the order of the queue."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from antiphon.core.prompt import Chunk, GenerationRequest
from antiphon.engines.fake import FakeEngine, FakeSettings
from tests.api.app import ApiServer, Client, parse_events, run_api
from tests.oracles.responses import check_response

pytestmark = pytest.mark.anyio

CHAT = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "fake", "prompt": "hi"}


@pytest.mark.shows("A.43", "H1.4")
@pytest.mark.parametrize(
    ("requested", "default", "expected"),
    [
        (None, "default", "default"),
        ("auto", "default", "default"),
        ("default", "flex", "default"),
        (None, "flex", "flex"),
        ("auto", "priority", "priority"),
        ("flex", "default", "flex"),
        ("scale", "default", "scale"),
        ("ultrafast", "default", "ultrafast"),
    ],
)
async def test_the_effective_tier_is_reported(requested: str | None, default: str, expected: str) -> None:
    async with run_api(default_service_tier=default) as server:
        made = await server.create(service_tier=requested)
        check_response(made)
        assert made["service_tier"] == expected
        assert (await server.get(f"responses/{made['id']}")).json()["service_tier"] == expected
        events = parse_events(
            await server.post("responses", {"model": "fake", "input": "hi", "stream": True, "service_tier": requested})
        )
        assert {event["response"]["service_tier"] for event in events if "response" in event} == {expected}
        background = await server.create(service_tier=requested, background=True)
        assert background["service_tier"] == expected


@pytest.mark.shows("A.43", "G1.1")
async def test_chat_and_completions_report_the_tier_only_if_requested_or_not_default() -> None:
    async with run_api() as server:
        for path, body in (("chat/completions", CHAT), ("completions", TEXT)):
            assert "service_tier" not in await server.post_ok(path, body)
            assert (await server.post_ok(path, {**body, "service_tier": "auto"}))["service_tier"] == "default"
            assert (await server.post_ok(path, {**body, "service_tier": "flex"}))["service_tier"] == "flex"
    async with run_api(default_service_tier="flex") as server:
        for path, body in (("chat/completions", CHAT), ("completions", TEXT)):
            assert (await server.post_ok(path, body))["service_tier"] == "flex"


@pytest.mark.shows("A.43", "H1.4")
async def test_a_disallowed_tier_is_a_400_that_lists_the_allowed_tiers() -> None:
    async with run_api(default_service_tier="flex", allowed_service_tiers=("default",)) as server:
        for tier in (None, "auto", "default", "flex"):
            await server.create(service_tier=tier)
        for path, body in (
            ("responses", {"model": "fake", "input": "hi"}),
            ("chat/completions", CHAT),
            ("completions", TEXT),
            ("responses/input_tokens", {"model": "fake", "input": "hi"}),
        ):
            answer = await server.post(path, {**body, "service_tier": "priority"})
            assert (answer.status, answer.error["param"]) == (400, "service_tier")
            assert "auto, default, flex" in answer.error["message"]


class RecordingEngine(FakeEngine):
    """An engine that records the inputs in the order in which it is asked."""

    def __init__(self, settings: FakeSettings) -> None:
        super().__init__(settings)
        self.inputs: list[str] = []

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[list[Chunk], None]:
        prompt: Any = request.prompt
        self.inputs.append(prompt.messages[-1]["content"])
        async with aclosing(super().generate(request)) as lists:
            async for chunks in lists:
                yield chunks


async def get_queue_order(server: ApiServer, gate_tier: str, tiers: list[str]) -> list[str]:
    """Return the order in which the engine is asked for responses of these tiers, all queued behind another one."""
    gate = server.engine.holds()
    first = Client(server.app, service_tier=gate_tier)
    async with asyncio.timeout(30):
        await gate.reached.wait()
    pending = []
    for tier in tiers:
        pending.append(asyncio.ensure_future(server.create(service_tier=tier, input=tier)))
        await asyncio.sleep(0)
    await _wait_until_queued(server, len(tiers))
    gate.open()
    async with asyncio.timeout(30):
        *answers, _ = await asyncio.gather(*pending, first.request)
    assert [answer["service_tier"] for answer in answers] == tiers
    assert isinstance(server.engine, RecordingEngine)
    return server.engine.inputs[1:]


async def _wait_until_queued(server: ApiServer, count: int) -> None:
    life: Any = server.app.lifecycle
    async with asyncio.timeout(30):
        while life.components.models.count_waiting() < count:  # noqa: ASYNC110 - the queue has no event
            await asyncio.sleep(0)


@pytest.mark.shows("A.43")
async def test_tiers_determine_the_order_of_the_queue() -> None:
    async with run_api(engine=RecordingEngine(FakeSettings(at_once=1))) as server:
        order = await get_queue_order(server, "default", ["flex", "default", "scale", "priority", "flex", "priority"])
    assert order == ["priority", "priority", "default", "scale", "flex", "flex"]

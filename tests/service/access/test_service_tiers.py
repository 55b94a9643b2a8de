"""Service tiers: which one runs, who may ask for which, and what the answer tells."""

import asyncio
from typing import Any

import pytest

from antiphon.engines.fake import FakeEngine, FakeSettings
from tests.api.app import Api, Client, api, events_in
from tests.oracles.responses import check_response

pytestmark = pytest.mark.anyio

CHAT = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "fake", "prompt": "hi"}


@pytest.mark.shows("A.43", "H1.4")
@pytest.mark.parametrize(
    ("asked", "default", "ran"),
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
async def test_the_tier_that_runs_is_told(asked: str | None, default: str, ran: str) -> None:
    async with api(default_service_tier=default) as server:
        made = await server.create(service_tier=asked)
        check_response(made)
        assert made["service_tier"] == ran
        assert (await server.get(f"responses/{made['id']}")).json()["service_tier"] == ran
        events = events_in(
            await server.post("responses", {"model": "fake", "input": "hi", "stream": True, "service_tier": asked})
        )
        assert {event["response"]["service_tier"] for event in events if "response" in event} == {ran}
        background = await server.create(service_tier=asked, background=True)
        assert background["service_tier"] == ran


@pytest.mark.shows("A.43", "G1.1")
async def test_chat_and_completions_tell_it_to_who_asked_or_if_it_is_unusual() -> None:
    async with api() as server:
        for path, body in (("chat/completions", CHAT), ("completions", TEXT)):
            assert "service_tier" not in await server.made(path, body)
            assert (await server.made(path, {**body, "service_tier": "auto"}))["service_tier"] == "default"
            assert (await server.made(path, {**body, "service_tier": "flex"}))["service_tier"] == "flex"
    async with api(default_service_tier="flex") as server:
        for path, body in (("chat/completions", CHAT), ("completions", TEXT)):
            assert (await server.made(path, body))["service_tier"] == "flex"


@pytest.mark.shows("A.43", "H1.4")
async def test_what_is_not_allowed_is_a_400_that_names_what_is() -> None:
    async with api(default_service_tier="flex", allowed_service_tiers=("default",)) as server:
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


async def order_of(server: Api, gate_tier: str, tiers: list[str]) -> list[str]:
    """In which order these end, that all wait while another one is made."""
    gate = server.engine.holds()
    first = Client(server.app, service_tier=gate_tier)
    async with asyncio.timeout(30):
        await gate.reached.wait()
    ended: list[str] = []

    async def ask(tier: str) -> None:
        answer = await server.create(service_tier=tier)
        ended.append(answer["service_tier"])

    asking = []
    for tier in tiers:
        asking.append(asyncio.ensure_future(ask(tier)))
        await asyncio.sleep(0)
    await _all_wait(server, len(tiers))
    gate.open()
    async with asyncio.timeout(30):
        await asyncio.gather(*asking, first.request)
    return ended


async def _all_wait(server: Api, many: int) -> None:
    life: Any = server.app.lifecycle
    async with asyncio.timeout(30):
        while life.parts.models.waiting() < many:  # noqa: ASYNC110 - the queue tells nobody
            await asyncio.sleep(0)


@pytest.mark.shows("A.43")
async def test_the_tiers_are_the_order_of_the_queue() -> None:
    async with api(engine=FakeEngine(FakeSettings(at_once=1))) as server:
        ended = await order_of(server, "default", ["flex", "default", "scale", "priority", "flex", "priority"])
    assert ended == ["priority", "priority", "default", "scale", "flex", "flex"]

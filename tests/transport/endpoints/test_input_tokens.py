import asyncio
import json
from typing import Any

import pytest

from antiphon.engines.base import Capabilities
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.engines.fake.tokens import Level
from antiphon.errors import Busy
from antiphon.service.tokens import MAX_COUNTS
from tests.api.app import Api, api
from tests.api.token_counts import BODIES
from tests.support.asgi_client import Answer

pytestmark = pytest.mark.anyio


async def counted(server: Api, body: dict[str, Any]) -> Answer:
    return await server.post("responses/input_tokens", {"model": "fake", **body})


async def both(server: Api, body: dict[str, Any]) -> tuple[Any, Any]:
    """What is counted, and what a response to the same body reports; the errors if it is refused."""
    told = await counted(server, body)
    done = await server.post("responses", {"model": "fake", **body})
    assert told.status == done.status, (told.body, done.body)
    if done.status != 200:
        return told.error, done.error
    assert set(told.json()) == {"object", "input_tokens"}
    return told.json()["input_tokens"], done.json()["usage"]["input_tokens"]


@pytest.mark.shows("A.10")
@pytest.mark.parametrize("level", ["chat", "text", "tokens"])
async def test_the_count_is_what_the_same_body_reports_as_its_usage(level: Level) -> None:
    async with api(engine=FakeEngine(FakeSettings(level=level, context=4000))) as server:
        for name, body in BODIES.items():
            told, done = await both(server, body)
            assert told == done, name
        assert server.engine.running == 0


@pytest.mark.shows("A.10")
async def test_what_came_before_counts_too() -> None:
    async with api() as server:
        first = await server.create(input="I am Ada.", instructions="Be brief.")
        second = await server.create(input="And you?", previous_response_id=first["id"])
        conversation = await server.made("conversations", {"items": [{"role": "user", "content": "Remember: 7"}]})
        items = [{"type": "item_reference", "id": first["output"][0]["id"]}, {"role": "user", "content": "x"}]
        for body in (
            {"input": "hi", "previous_response_id": first["id"]},
            {"input": "hi", "previous_response_id": second["id"], "instructions": "At length."},
            {"input": "hi", "conversation": conversation["id"]},
            {"input": items},
        ):
            told, done = await both(server, body)
            assert told == done
        assert told < (await both(server, {"input": "hi", "previous_response_id": second["id"]}))[0]


async def test_counting_asks_no_model_and_keeps_nothing() -> None:
    async with api() as server:
        conversation = await server.made("conversations", {})
        body = {"input": "hi", "conversation": conversation["id"], "stream": True, "background": True, "store": False}
        answer = await counted(server, body)
        assert answer.status == 200
        assert (await server.get(f"conversations/{conversation['id']}/items")).json()["data"] == []
        assert server.engine.requests == 0


async def test_a_deleted_response_is_not_counted_on() -> None:
    async with api() as server:
        first = await server.create(input="hi")
        await server.create(input="and?", previous_response_id=first["id"])
        assert (await server.delete(f"responses/{first['id']}")).status == 200
        answer = await counted(server, {"input": "hi", "previous_response_id": first["id"]})
        assert answer.error["code"] == "previous_response_not_found"


async def test_fields_that_change_nothing_are_named() -> None:
    async with api() as server:
        answer = await counted(server, {"input": "hi", "personality": "kind", "service_tier": "flex"})
        assert answer.header(b"x-antiphon-ignored") == b"personality, service_tier"


class Silent(FakeEngine):
    """Does not tell how many tokens a prompt has."""

    async def capabilities(self, model: str) -> Capabilities:
        return Capabilities(prompt="chat", honours=frozenset(), counts=False)


@pytest.mark.shows("A.10")
async def test_an_engine_that_cannot_tell_is_refused_by_name() -> None:
    async with api(engine=Silent()) as server:
        error = (await counted(server, {"input": "hi"})).error
        assert (error["code"], error["param"]) == ("unsupported_parameter", "model")
        assert "fake engine" in error["message"]


class Slow(FakeEngine):
    """Counts when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = 0
        self.most = 0
        self.go = asyncio.Event()

    async def count(self, model: str, prompt: Any) -> int:
        self.counts += 1
        self.most = max(self.most, self.counts)
        await self.go.wait()
        self.counts -= 1
        return 1


async def test_only_so_many_are_counted_at_once_and_only_so_many_wait() -> None:
    engine = Slow()
    async with api(engine=engine, queue=2) as server, asyncio.timeout(30):
        asked = [asyncio.ensure_future(counted(server, {"input": "hi"})) for _ in range(MAX_COUNTS + 3)]
        refused, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result().status for task in refused] == [Busy.status]
        assert engine.most == MAX_COUNTS
        engine.go.set()
        assert sorted([(await task).status for task in asked]) == [200] * (MAX_COUNTS + 2) + [429]


async def test_bounds_hold_as_for_a_response() -> None:
    async with api() as server:
        deep = b'{"model": "fake", "input": ' + b"[" * 100 + b"]" * 100 + b"}"
        assert (await server.post("responses/input_tokens", deep)).status == 400
        assert (await server.post("responses/input_tokens", b"{")).error["code"] == "invalid_json"
        large = json.dumps({"model": "fake", "input": "x" * (21 * 1024 * 1024)}).encode()
        assert (await server.post("responses/input_tokens", large)).status == 413
        assert (await server.get("responses/input_tokens")).status == 405

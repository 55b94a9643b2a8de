"""Tests POST /v1/responses/input_tokens: the count equals the usage of a response to the same body."""

import asyncio
import json
from typing import Any

import pytest

from antiphon.engines.base import Capabilities
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.engines.fake.tokens import Level
from antiphon.errors import Busy
from antiphon.service.tokens import MAX_COUNT_CALLS
from tests.api.app import ApiServer, run_api
from tests.api.token_counts import BODIES
from tests.support.asgi_client import AsgiResponse

pytestmark = pytest.mark.anyio


async def count_tokens(server: ApiServer, body: dict[str, Any]) -> AsgiResponse:
    return await server.post("responses/input_tokens", {"model": "fake", **body})


async def count_and_create(server: ApiServer, body: dict[str, Any]) -> tuple[Any, Any]:
    """Return the counted tokens and the usage of a response to the same body, or both errors if it is rejected."""
    count = await count_tokens(server, body)
    created = await server.post("responses", {"model": "fake", **body})
    assert count.status == created.status, (count.body, created.body)
    if created.status != 200:
        return count.error, created.error
    assert set(count.json()) == {"object", "input_tokens"}
    return count.json()["input_tokens"], created.json()["usage"]["input_tokens"]


@pytest.mark.shows("A.10")
@pytest.mark.parametrize("level", ["chat", "text", "tokens"])
async def test_the_count_equals_the_usage_of_the_same_body(level: Level) -> None:
    async with run_api(engine=FakeEngine(FakeSettings(level=level, context=4000))) as server:
        for name, body in BODIES.items():
            count, usage = await count_and_create(server, body)
            assert count == usage, name
        assert server.engine.running == 0


@pytest.mark.shows("A.10")
async def test_the_history_is_counted() -> None:
    async with run_api() as server:
        first = await server.create(input="I am Ada.", instructions="Be brief.")
        second = await server.create(input="And you?", previous_response_id=first["id"])
        conversation = await server.post_ok("conversations", {"items": [{"role": "user", "content": "Remember: 7"}]})
        items = [{"type": "item_reference", "id": first["output"][0]["id"]}, {"role": "user", "content": "x"}]
        for body in (
            {"input": "hi", "previous_response_id": first["id"]},
            {"input": "hi", "previous_response_id": second["id"], "instructions": "At length."},
            {"input": "hi", "conversation": conversation["id"]},
            {"input": items},
        ):
            count, usage = await count_and_create(server, body)
            assert count == usage
        assert count < (await count_and_create(server, {"input": "hi", "previous_response_id": second["id"]}))[0]


async def test_counting_neither_calls_the_model_nor_stores_anything() -> None:
    async with run_api() as server:
        conversation = await server.post_ok("conversations", {})
        body = {"input": "hi", "conversation": conversation["id"], "stream": True, "background": True, "store": False}
        answer = await count_tokens(server, body)
        assert answer.status == 200
        assert (await server.get(f"conversations/{conversation['id']}/items")).json()["data"] == []
        assert server.engine.requests == 0


async def test_a_deleted_previous_response_is_not_found() -> None:
    async with run_api() as server:
        first = await server.create(input="hi")
        await server.create(input="and?", previous_response_id=first["id"])
        assert (await server.delete(f"responses/{first['id']}")).status == 200
        answer = await count_tokens(server, {"input": "hi", "previous_response_id": first["id"]})
        assert answer.error["code"] == "previous_response_not_found"


async def test_ignored_fields_are_listed_in_a_header() -> None:
    async with run_api() as server:
        answer = await count_tokens(server, {"input": "hi", "personality": "kind", "service_tier": "flex"})
        assert answer.header(b"x-antiphon-ignored") == b"personality, service_tier"


class NonCountingEngine(FakeEngine):
    """An engine that does not count the tokens of a prompt."""

    async def capabilities(self, model: str) -> Capabilities:
        return Capabilities(level="chat", supported_fields=frozenset(), can_count_tokens=False)


@pytest.mark.shows("A.10")
async def test_an_engine_that_cannot_count_tokens_is_rejected_by_name() -> None:
    async with run_api(engine=NonCountingEngine()) as server:
        error = (await count_tokens(server, {"input": "hi"})).error
        assert (error["code"], error["param"]) == ("unsupported_parameter", "model")
        assert "fake engine" in error["message"]


class BlockingEngine(FakeEngine):
    """An engine whose counts block until `released` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.active_counts = 0
        self.peak_counts = 0
        self.released = asyncio.Event()

    async def count_tokens(self, model: str, prompt: Any) -> int:
        self.active_counts += 1
        self.peak_counts = max(self.peak_counts, self.active_counts)
        await self.released.wait()
        self.active_counts -= 1
        return 1


async def test_concurrent_and_waiting_counts_are_limited() -> None:
    engine = BlockingEngine()
    async with run_api(engine=engine, queue=2) as server, asyncio.timeout(30):
        tasks = [asyncio.ensure_future(count_tokens(server, {"input": "hi"})) for _ in range(MAX_COUNT_CALLS + 3)]
        refused, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result().status for task in refused] == [Busy.status]
        assert engine.peak_counts == MAX_COUNT_CALLS
        engine.released.set()
        assert sorted([(await task).status for task in tasks]) == [200] * (MAX_COUNT_CALLS + 2) + [429]


async def test_body_limits_apply_as_for_a_response() -> None:
    async with run_api() as server:
        deep = b'{"model": "fake", "input": ' + b"[" * 100 + b"]" * 100 + b"}"
        assert (await server.post("responses/input_tokens", deep)).status == 400
        assert (await server.post("responses/input_tokens", b"{")).error["code"] == "invalid_json"
        large = json.dumps({"model": "fake", "input": "x" * (21 * 1024 * 1024)}).encode()
        assert (await server.post("responses/input_tokens", large)).status == 413
        assert (await server.get("responses/input_tokens")).status == 405

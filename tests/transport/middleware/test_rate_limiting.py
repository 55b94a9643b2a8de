"""Limits at the edge: what is charged, what is refused before any work, and headers that say what the counters say."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import pytest

from antiphon.config.rate_limits import Quota, TenantSpec
from antiphon.core.deltas import Text
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import EngineFailed
from antiphon.service.access.rate_limits import Quotas
from antiphon.transport.http.request import duration
from antiphon.transport.middleware.auth import EVERYBODY
from antiphon.wiring import Lifecycle
from tests.api.app import Api, Client, api, events_in
from tests.support.asgi_client import DEADLINE, HOST, Answer, Header, call
from tests.transport.websocket.ws_client import socket_scope, talking

pytestmark = pytest.mark.anyio

Left = list[int | None]
MESSAGES = [{"role": "user", "content": "hi"}]


def told(answer: Answer) -> Left:
    """What is left of requests and of tokens."""
    names = (b"x-ratelimit-remaining-requests", b"x-ratelimit-remaining-tokens")
    return [None if (value := answer.header(name)) is None else int(value) for name in names]


@asynccontextmanager
async def limited(**settings: Any) -> AsyncIterator[Api]:
    """A server whose clock of limits stands still: nothing comes back, however long a test takes."""
    async with api(**settings) as server:
        quotas, now = quotas_of(server), monotonic()
        quotas._clock = lambda: now
        yield server


def quotas_of(server: Api) -> Quotas:
    life = server.app.lifecycle
    assert isinstance(life, Lifecycle)
    return life.parts.quotas


async def ask(server: Api, path: str = "responses", **fields: Any) -> Answer:
    return await server.post(path, {"model": "fake", "input": "hi", **fields})


def counted(server: Api) -> Left:
    account = quotas_of(server).account(EVERYBODY)
    return [None if one is None else one.remaining for one in account.standing()]


def cost(answer: Answer) -> int:
    usage = answer.json()["usage"]
    return int(usage.get("total_tokens") or usage["input_tokens"] + usage["output_tokens"])


@pytest.mark.shows("H.3")
async def test_without_limits_there_are_no_headers() -> None:
    async with limited() as server:
        answer = await ask(server)
    assert not [name for name, _ in answer.headers if name.startswith(b"x-ratelimit")]


@pytest.mark.shows("H.3", "H2.4")
async def test_every_answer_says_what_is_left_and_it_is_what_the_counters_say() -> None:
    async with limited(quota=Quota(requests_per_minute=100, tokens_per_minute=100)) as server:
        made = await ask(server)
        spent = cost(made)
        assert told(made) == [99, 100 - spent]
        assert made.header(b"x-ratelimit-limit-requests") == b"100"
        assert made.header(b"x-ratelimit-limit-tokens") == b"100"
        assert made.header(b"x-ratelimit-reset-requests") == b"600ms"
        assert counted(server) == [99, 100 - spent]
        for answer in (
            await server.get(f"responses/{made.json()['id']}"),
            await server.get("responses/resp_none"),
            await server.get("models"),
            await server.post("conversations", {}),
        ):
            assert told(answer) == [99, 100 - spent]
        refused = await server.post("responses", b"{")
        assert refused.status == 400
        assert told(refused) == [98, 100 - spent]
        assert counted(server) == [98, 100 - spent]
        assert told(await call(server.app, "GET", "/health")) == [None, None]


async def test_a_stream_tells_how_it_stands_when_it_begins_and_is_settled_when_it_ends() -> None:
    async with limited(quota=Quota(tokens_per_minute=100)) as server:
        answer = await ask(server, stream=True)
        usage = events_in(answer)[-1]["response"]["usage"]
        guessed = 100 - (told(answer)[1] or 0)
        assert 1 <= guessed <= 40
        assert counted(server) == [None, 100 - usage["total_tokens"]]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("chat/completions", {"messages": MESSAGES}),
        ("completions", {"prompt": "hi"}),
        ("messages", {"messages": MESSAGES, "max_tokens": 50}),
        ("embeddings", {"input": "one two three"}),
    ],
)
async def test_other_apis_are_charged_alike(path: str, fields: dict[str, Any]) -> None:
    engine = FakeEngine(FakeSettings(level="text" if path == "completions" else "chat"))
    async with limited(engine=engine, quota=Quota(requests_per_minute=1, tokens_per_minute=100)) as server:
        answer = await server.post(path, {"model": "fake", **fields})
        assert answer.status == 200, answer.body
        spent = cost(answer)
        assert spent > 0
        assert told(answer) == [0, 100 - spent]
        assert counted(server) == [0, 100 - spent]
        refused = await server.post(path, {"model": "fake", **fields})
        assert refused.status == 429
        assert refused.json()["error"]["type"] in ("rate_limit_error",)


async def test_a_refusal_says_which_limit_and_when_to_come_back_and_nothing_is_done() -> None:
    engine = FakeEngine()
    async with limited(engine=engine, quota=Quota(requests_per_minute=2)) as server:
        await ask(server)
        await ask(server)
        refused = await server.post("responses", b"this is not even JSON")
        assert refused.status == 429
        assert refused.error["code"] == "rate_limit_exceeded"
        assert "2 requests per minute" in refused.error["message"]
        assert (refused.header(b"retry-after"), refused.header(b"retry-after-ms")) == (b"30", b"30000")
        assert told(refused) == [0, None]
        assert engine.requests == 2


async def test_each_key_has_a_limit_of_its_own_and_refusals_are_counted() -> None:
    keys: list[Header] = [(b"authorization", b"Bearer sk-one"), (b"authorization", b"Bearer sk-two")]
    async with limited(api_key=("sk-one", "sk-two"), quota=Quota(key_requests_per_minute=1)) as server:
        body = {"model": "fake", "input": "hi"}
        assert [(await server.post("responses", body, key)).status for key in (*keys, *keys)] == [200, 200, 429, 429]
        refused = await server.post("responses", body, keys[0])
        assert "This key" in refused.error["message"]
        metrics = (await call(server.app, "GET", "/metrics", keys[0])).body.decode()
    assert 'antiphon_quota_refusals_total{whose="key",limit="requests"} 3' in metrics


@pytest.mark.parametrize(
    ("path", "fields"), [("responses", {"input": "hi"}), ("chat/completions", {"messages": MESSAGES})]
)
async def test_who_leaves_before_the_end_pays_for_what_was_said(path: str, fields: dict[str, Any]) -> None:
    async with limited(quota=Quota(tokens_per_minute=100)) as server:
        server.engine.says(*[Text(f"{number} ") for number in range(50)])
        gate = server.engine.holds(after=50)
        client = Client(server.app, "POST", path, **fields, model="fake", stream=True)
        async with asyncio.timeout(DEADLINE):
            await gate.reached.wait()
            client.leaves()
            await client.request
        left = counted(server)[1]
    assert left is not None
    assert 20 <= left < 50  # the guess of its prompt beside it


async def test_what_fails_without_a_word_costs_nothing() -> None:
    async with limited(quota=Quota(tokens_per_minute=100)) as server:
        server.engine.fails(EngineFailed("It is gone."))
        assert (await ask(server)).status == 500
        assert counted(server) == [None, 100]


async def test_only_so_many_run_at_once_and_a_client_that_leaves_makes_room() -> None:
    async with limited(quota=Quota(concurrent_responses=1), engine=FakeEngine(FakeSettings(delay=30.0))) as server:
        first = Client(server.app)
        async with asyncio.timeout(DEADLINE):
            await first.heard.get()
        refused = await ask(server)
        assert (refused.status, refused.header(b"retry-after")) == (429, b"1")
        first.leaves()
        async with asyncio.timeout(DEADLINE):
            await first.request
        second = Client(server.app)
        async with asyncio.timeout(DEADLINE):
            assert (await second.heard.get())["status"] == 200
        second.leaves()
        await second.request


async def test_a_background_response_counts_until_it_has_ended() -> None:
    async with limited(quota=Quota(concurrent_responses=1, tokens_per_minute=100)) as server:
        gate = server.engine.holds()
        queued = await server.create(background=True)
        async with asyncio.timeout(DEADLINE):
            await gate.reached.wait()
        assert (await ask(server)).status == 429
        gate.open()
        async with asyncio.timeout(DEADLINE):
            while (await ask(server)).status == 429:  # noqa: ASYNC110 - it is a client that asks again
                await asyncio.sleep(0)
        found = await server.get(f"responses/{queued['id']}")
        assert found.json()["status"] == "completed"
        assert counted(server) == [None, 100 - 2 * cost(found)]


@pytest.mark.shows("H.3")
async def test_what_had_to_wait_in_the_background_is_charged_to_the_key_that_brought_it() -> None:
    key: Header = (b"authorization", b"Bearer sk-one")
    quota, body = Quota(key_tokens_per_minute=1000), {"model": "fake", "input": "hi", "background": True}
    async with limited(api_key=("sk-one", "sk-two"), quota=quota, background_slots=1) as server:
        server.engine.says(Text("first"))
        gate = server.engine.holds(after=0)
        made = [(await server.post("responses", body, key)).json()["id"] for _ in range(2)]
        async with asyncio.timeout(DEADLINE):
            await gate.reached.wait()
        gate.open()
        costs = [await ended(server, name, key) for name in made]
        left = await call(server.app, "GET", "/v1/models", key)
        assert told(left) == [None, 1000 - sum(costs)]
        other = await call(server.app, "GET", "/v1/models", (b"authorization", b"Bearer sk-two"))
        assert told(other) == [None, 1000]


async def ended(server: Api, response_id: str, key: Header) -> int:
    """Wait for it; what it cost."""
    async with asyncio.timeout(DEADLINE):
        while True:
            found = await call(server.app, "GET", f"/v1/responses/{response_id}", key)
            if found.json()["status"] == "completed":
                return cost(found)
            await asyncio.sleep(0.01)


async def test_a_tenant_has_room_for_so_many_in_the_background() -> None:
    tenants = {"default": TenantSpec(background_queue=1)}
    async with limited(tenants=tenants, engine=FakeEngine(FakeSettings(delay=30.0))) as server:
        await server.create(background=True)
        refused = await ask(server, background=True)
        assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")


async def test_a_websocket_is_charged_for_each_response_and_told_so_in_an_event() -> None:
    async with (
        limited(quota=Quota(requests_per_minute=1, tokens_per_minute=100)) as server,
        talking(server.app) as talk,
    ):
        assert counted(server) == [1, 100]
        made = await talk.made()
        assert counted(server) == [0, 100 - made["usage"]["total_tokens"]]
        talk.asks()
        error = await talk.end()
        assert (error["type"], error["status"]) == ("error", 429)
        assert error["error"]["code"] == "rate_limit_exceeded"
        assert error["retry_after"] >= 1


async def test_a_websockets_handshake_says_what_is_left() -> None:
    said: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.disconnect", "code": 1000} if said else {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        said.append(message)

    async with limited(quota=Quota(requests_per_minute=5)) as server, asyncio.timeout(DEADLINE):
        await server.app(socket_scope("/v1/responses", [HOST]), receive, send)
    assert said[0]["type"] == "websocket.accept"
    assert (b"x-ratelimit-remaining-requests", b"5") in said[0]["headers"]


async def test_limits_are_found_under_every_path_of_the_api() -> None:
    async with limited(quota=Quota(requests_per_minute=10)) as server:
        answer = await call(server.app, "GET", "/v3/models")
        assert told(answer) == [10, None]


@pytest.mark.parametrize(
    ("seconds", "written"), [(0.0, "0ms"), (0.85, "850ms"), (1.0, "1s"), (12.5, "12.5s"), (60.0, "1m0s"), (361, "6m1s")]
)
def test_times_are_written_as_openai_writes_them(seconds: float, written: str) -> None:
    assert duration(seconds) == written.encode()


@pytest.mark.shows("H.4")
async def test_where_the_queue_is_full_a_request_is_refused_before_its_body_is_read() -> None:
    engine = FakeEngine(FakeSettings(delay=30.0, at_once=1))
    async with limited(engine=engine, queue=1, quota=Quota(requests_per_minute=10)) as server:
        running, waiting = Client(server.app), Client(server.app)
        for client in (running, waiting):
            async with asyncio.timeout(DEADLINE):
                await client.heard.get()
        refused = await server.post("responses", b"not even JSON")
        assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
        assert "capacity" in refused.error["message"]
        assert told(refused) == [8, None]
        assert (await server.get("models")).status == 200
        for client in (running, waiting):
            client.leaves()
            async with asyncio.timeout(DEADLINE):
                await client.request

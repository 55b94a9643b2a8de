"""Rate limits of the application: what is charged, what is rejected before any work, and headers that match the
counters.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import pytest

from antiphon.config.rate_limits import QuotaSettings, TenantSpec
from antiphon.core.deltas import Text
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import EngineFailed
from antiphon.service.access.rate_limits import RateLimits
from antiphon.transport.middleware.auth import ANONYMOUS
from antiphon.wiring import ServerLifecycle
from tests.api.app import ApiServer, Client, parse_events, run_api
from tests.api.output.test_moderation import ChatOnly
from tests.support.asgi_client import DEADLINE, HOST, AsgiResponse, Header, call
from tests.transport.websocket.ws_client import open_websocket, socket_scope

pytestmark = pytest.mark.anyio

Remaining = list[int | None]
MESSAGES = [{"role": "user", "content": "hi"}]


def read_remaining(answer: AsgiResponse) -> Remaining:
    """Return the remaining requests and tokens that the headers report."""
    names = (b"x-ratelimit-remaining-requests", b"x-ratelimit-remaining-tokens")
    return [None if (value := answer.header(name)) is None else int(value) for name in names]


@asynccontextmanager
async def run_limited(**settings: Any) -> AsyncIterator[ApiServer]:
    """Run a server whose rate limit clock stands still: nothing is refilled, however long a test takes."""
    async with run_api(**settings) as server:
        rate_limits, now = get_rate_limits(server), monotonic()
        rate_limits._clock = lambda: now
        yield server


def get_rate_limits(server: ApiServer) -> RateLimits:
    lifecycle = server.app.lifecycle
    assert isinstance(lifecycle, ServerLifecycle)
    return lifecycle.components.rate_limits


async def create(server: ApiServer, path: str = "responses", **fields: Any) -> AsgiResponse:
    return await server.post(path, {"model": "fake", "input": "hi", **fields})


def read_counters(server: ApiServer) -> Remaining:
    limit_set = get_rate_limits(server).get_limits(ANONYMOUS)
    return [None if one is None else one.remaining for one in limit_set.get_status()]


def count_tokens(answer: AsgiResponse) -> int:
    usage = answer.json()["usage"]
    return int(usage.get("total_tokens") or usage["input_tokens"] + usage["output_tokens"])


@pytest.mark.shows("H.3")
async def test_without_limits_there_are_no_headers() -> None:
    async with run_limited() as server:
        answer = await create(server)
    assert not [name for name, _ in answer.headers if name.startswith(b"x-ratelimit")]


@pytest.mark.shows("H.3", "H2.4")
async def test_the_headers_of_every_reply_match_the_counters() -> None:
    async with run_limited(quota=QuotaSettings(requests_per_minute=100, tokens_per_minute=100)) as server:
        made = await create(server)
        spent = count_tokens(made)
        assert read_remaining(made) == [99, 100 - spent]
        assert made.header(b"x-ratelimit-limit-requests") == b"100"
        assert made.header(b"x-ratelimit-limit-tokens") == b"100"
        assert made.header(b"x-ratelimit-reset-requests") == b"600ms"
        assert read_counters(server) == [99, 100 - spent]
        for answer in (
            await server.get(f"responses/{made.json()['id']}"),
            await server.get("responses/resp_none"),
            await server.get("models"),
            await server.post("conversations", {}),
        ):
            assert read_remaining(answer) == [99, 100 - spent]
        refused = await server.post("responses", b"{")
        assert refused.status == 400
        assert read_remaining(refused) == [98, 100 - spent]
        assert read_counters(server) == [98, 100 - spent]
        assert read_remaining(await call(server.app, "GET", "/health")) == [None, None]


async def test_a_stream_reports_an_estimate_at_its_start_and_is_settled_at_its_end() -> None:
    async with run_limited(quota=QuotaSettings(tokens_per_minute=100)) as server:
        answer = await create(server, stream=True)
        usage = parse_events(answer)[-1]["response"]["usage"]
        estimated = 100 - (read_remaining(answer)[1] or 0)
        assert 1 <= estimated <= 40
        assert read_counters(server) == [None, 100 - usage["total_tokens"]]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("chat/completions", {"messages": MESSAGES}),
        ("completions", {"prompt": "hi"}),
        ("messages", {"messages": MESSAGES, "max_tokens": 50}),
        ("embeddings", {"input": "one two three"}),
    ],
)
async def test_other_apis_are_charged_and_limited(path: str, fields: dict[str, Any]) -> None:
    engine = FakeEngine(FakeSettings(level="text" if path == "completions" else "chat"))
    async with run_limited(engine=engine, quota=QuotaSettings(requests_per_minute=1, tokens_per_minute=100)) as server:
        answer = await server.post(path, {"model": "fake", **fields})
        assert answer.status == 200, answer.body
        spent = count_tokens(answer)
        assert spent > 0
        assert read_remaining(answer) == [0, 100 - spent]
        assert read_counters(server) == [0, 100 - spent]
        refused = await server.post(path, {"model": "fake", **fields})
        assert refused.status == 429
        assert refused.json()["error"]["type"] in ("rate_limit_error",)


@pytest.mark.parametrize(
    ("path", "fields"),
    [("moderations", {"input": "x" * 80}), ("audio/speech", {"input": "hi", "voice": "v", "response_format": "wav"})],
)
async def test_moderations_and_speech_are_limited_and_charged_by_their_size(path: str, fields: dict[str, Any]) -> None:
    quota = QuotaSettings(requests_per_minute=1, tokens_per_minute=1000)
    async with run_limited(moderation_model="fake", quota=quota) as server:
        answer = await server.post(path, {"model": "fake", **fields})
        assert answer.status == 200, answer.body
        requests, tokens = read_counters(server)
        assert requests == 0
        assert tokens is not None
        assert 900 < tokens < 1000
        assert (await server.post(path, {"model": "fake", **fields})).status == 429


async def test_a_chat_model_that_moderates_a_response_is_charged_to_its_caller() -> None:
    quota = QuotaSettings(tokens_per_minute=100_000)
    async with run_limited(engine=ChatOnly(), moderation_model="fake", quota=quota) as server:
        made = await server.create(moderation={"model": "fake"})
        _, tokens = read_counters(server)
    assert made["moderation"]["output"]["type"] == "moderation_result"
    assert tokens is not None
    assert 100_000 - tokens > made["usage"]["total_tokens"] + 200  # two judgements with their instructions


async def test_a_rejection_names_the_limit_and_the_retry_time_and_starts_no_work() -> None:
    engine = FakeEngine()
    async with run_limited(engine=engine, quota=QuotaSettings(requests_per_minute=2)) as server:
        await create(server)
        await create(server)
        refused = await server.post("responses", b"this is not even JSON")
        assert refused.status == 429
        assert refused.error["code"] == "rate_limit_exceeded"
        assert "2 requests per minute" in refused.error["message"]
        assert (refused.header(b"retry-after"), refused.header(b"retry-after-ms")) == (b"30", b"30000")
        assert read_remaining(refused) == [0, None]
        assert engine.requests == 2


async def test_each_key_has_its_own_limit_and_rejections_are_counted() -> None:
    keys: list[Header] = [(b"authorization", b"Bearer sk-one"), (b"authorization", b"Bearer sk-two")]
    async with run_limited(api_key=("sk-one", "sk-two"), quota=QuotaSettings(key_requests_per_minute=1)) as server:
        body = {"model": "fake", "input": "hi"}
        assert [(await server.post("responses", body, key)).status for key in (*keys, *keys)] == [200, 200, 429, 429]
        refused = await server.post("responses", body, keys[0])
        assert "This key" in refused.error["message"]
        metrics = (await call(server.app, "GET", "/metrics", keys[0])).body.decode()
    assert 'antiphon_quota_refusals_total{whose="key",limit="requests"} 3' in metrics


@pytest.mark.parametrize(
    ("path", "fields"), [("responses", {"input": "hi"}), ("chat/completions", {"messages": MESSAGES})]
)
async def test_a_client_that_disconnects_is_charged_for_the_generated_tokens(path: str, fields: dict[str, Any]) -> None:
    async with run_limited(quota=QuotaSettings(tokens_per_minute=100), keep_streams=0) as server:
        server.engine.says(*[Text(f"{number} ") for number in range(50)])
        gate = server.engine.holds(after=50)
        client = Client(server.app, "POST", path, **fields, model="fake", stream=True)
        async with asyncio.timeout(DEADLINE):
            await gate.reached.wait()
            client.disconnect()
            await client.request
        remaining = read_counters(server)[1]
    assert remaining is not None
    assert 20 <= remaining < 50  # 50 tokens and the estimate of the prompt are charged


async def test_a_failure_without_output_costs_no_tokens() -> None:
    async with run_limited(quota=QuotaSettings(tokens_per_minute=100)) as server:
        server.engine.fails(EngineFailed("It is gone."))
        assert (await create(server)).status == 500
        assert read_counters(server) == [None, 100]


async def test_concurrent_responses_are_limited_and_a_disconnect_frees_a_slot() -> None:
    """The first stream continues without its client, and does not count as running."""
    async with run_limited(
        quota=QuotaSettings(concurrent_responses=1), engine=FakeEngine(FakeSettings(delay=30.0))
    ) as server:
        first = Client(server.app)
        async with asyncio.timeout(DEADLINE):
            await first.messages.get()
        refused = await create(server)
        assert (refused.status, refused.header(b"retry-after")) == (429, b"1")
        first.disconnect()
        async with asyncio.timeout(DEADLINE):
            await first.request
        second = Client(server.app)
        async with asyncio.timeout(DEADLINE):
            assert (await second.messages.get())["status"] == 200
        second.disconnect()
        await second.request


async def test_no_more_streams_continue_without_a_client_than_may_run_at_once() -> None:
    async with run_limited(quota=QuotaSettings(concurrent_responses=1)) as server:
        for _ in range(3):
            gate = server.engine.holds()
            client = Client(server.app)
            async with asyncio.timeout(DEADLINE):
                await gate.reached.wait()
                client.disconnect()
                await client.request
        async with asyncio.timeout(DEADLINE):
            while server.engine.cancelled < 2:  # noqa: ASYNC110 - the runs end in tasks of their own
                await asyncio.sleep(0)
        assert server.engine.running == 1


async def test_a_background_response_counts_as_running_until_it_ends() -> None:
    async with run_limited(quota=QuotaSettings(concurrent_responses=1, tokens_per_minute=100)) as server:
        gate = server.engine.holds()
        queued = await server.create(background=True)
        async with asyncio.timeout(DEADLINE):
            await gate.reached.wait()
        assert (await create(server)).status == 429
        gate.open()
        async with asyncio.timeout(DEADLINE):
            while (await create(server)).status == 429:  # noqa: ASYNC110 - a client that retries
                await asyncio.sleep(0)
        found = await server.get(f"responses/{queued['id']}")
        assert found.json()["status"] == "completed"
        assert read_counters(server) == [None, 100 - 2 * count_tokens(found)]


@pytest.mark.shows("H.3")
async def test_a_queued_background_response_is_charged_to_the_key_that_created_it() -> None:
    key: Header = (b"authorization", b"Bearer sk-one")
    quota, body = QuotaSettings(key_tokens_per_minute=1000), {"model": "fake", "input": "hi", "background": True}
    async with run_limited(api_key=("sk-one", "sk-two"), quota=quota, background_slots=1) as server:
        server.engine.says(Text("first"))
        gate = server.engine.holds(after=0)
        made = [(await server.post("responses", body, key)).json()["id"] for _ in range(2)]
        async with asyncio.timeout(DEADLINE):
            await gate.reached.wait()
        gate.open()
        costs = [await wait_completed(server, name, key) for name in made]
        own = await call(server.app, "GET", "/v1/models", key)
        assert read_remaining(own) == [None, 1000 - sum(costs)]
        other = await call(server.app, "GET", "/v1/models", (b"authorization", b"Bearer sk-two"))
        assert read_remaining(other) == [None, 1000]


async def wait_completed(server: ApiServer, response_id: str, key: Header) -> int:
    """Wait until the response is completed, and return its tokens."""
    async with asyncio.timeout(DEADLINE):
        while True:
            found = await call(server.app, "GET", f"/v1/responses/{response_id}", key)
            if found.json()["status"] == "completed":
                return count_tokens(found)
            await asyncio.sleep(0.01)


async def test_the_background_queue_of_a_tenant_is_limited() -> None:
    tenants = {"default": TenantSpec(background_queue=1)}
    async with run_limited(tenants=tenants, engine=FakeEngine(FakeSettings(delay=30.0))) as server:
        await server.create(background=True)
        refused = await create(server, background=True)
        assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")


async def test_a_websocket_is_charged_for_each_response_and_gets_an_error_event() -> None:
    async with (
        run_limited(quota=QuotaSettings(requests_per_minute=1, tokens_per_minute=100)) as server,
        open_websocket(server.app) as client,
    ):
        assert read_counters(server) == [1, 100]
        made = await client.create()
        assert read_counters(server) == [0, 100 - made["usage"]["total_tokens"]]
        client.send_create()
        error = await client.receive_end()
        assert (error["type"], error["status"]) == ("error", 429)
        assert error["error"]["code"] == "rate_limit_exceeded"
        assert error["retry_after"] >= 1


async def test_a_websocket_handshake_reports_the_remaining_requests() -> None:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.disconnect", "code": 1000} if sent else {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    async with run_limited(quota=QuotaSettings(requests_per_minute=5)) as server, asyncio.timeout(DEADLINE):
        await server.app(socket_scope("/v1/responses", [HOST]), receive, send)
    assert sent[0]["type"] == "websocket.accept"
    assert (b"x-ratelimit-remaining-requests", b"5") in sent[0]["headers"]


async def test_limits_apply_under_every_path_prefix() -> None:
    async with run_limited(quota=QuotaSettings(requests_per_minute=10)) as server:
        answer = await call(server.app, "GET", "/v3/models")
        assert read_remaining(answer) == [10, None]


@pytest.mark.shows("H.4")
async def test_a_full_queue_rejects_a_request_before_its_body_is_read() -> None:
    engine = FakeEngine(FakeSettings(delay=30.0, at_once=1))
    async with run_limited(engine=engine, queue=1, quota=QuotaSettings(requests_per_minute=10)) as server:
        running, waiting = Client(server.app), Client(server.app)
        for client in (running, waiting):
            async with asyncio.timeout(DEADLINE):
                await client.messages.get()
        refused = await server.post("responses", b"not even JSON")
        assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
        assert "capacity" in refused.error["message"]
        assert read_remaining(refused) == [8, None]
        assert (await server.get("models")).status == 200
        for client in (running, waiting):
            client.disconnect()
            async with asyncio.timeout(DEADLINE):
                await client.request

"""Tests GET /v1/antiphon/feed: begun and ended responses of a tenant, as events without contents.

Covers `service/operations/feed.py`.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from time import time
from typing import Any

import msgspec
import pytest

from antiphon.engines.fake import FakeEngine
from antiphon.errors import Busy, EngineFailed, NotAuthenticated, Unavailable
from antiphon.ids import new_id
from antiphon.protocol.types.operations.activity import AnyFeedEvent, FeedClosed, FeedGap, ResponseEnded
from antiphon.service.access.api_keys import DEFAULT_TENANT
from antiphon.service.operations import feed as module
from antiphon.service.operations.feed import ActivityFeed, FeedReader
from antiphon.stores.sql.store import Store
from antiphon.testing.rows.response_rows import TENANT, Clock, begin_response, make_end, store_response
from antiphon.wiring import ServerLifecycle
from tests.api.app import Client, run_api
from tests.support.asgi_client import DEADLINE, call

pytestmark = pytest.mark.anyio

MILLISECOND = len("resp_") + 12  # the first digits of an id

_events = msgspec.json.Decoder(AnyFeedEvent)


@pytest.fixture(autouse=True)
def fast_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(module, "_CHECK_SECONDS", 0.01)


async def accept_key() -> None: ...


class Collector:
    """Drives a reader and collects its events."""

    def __init__(self, reader: FeedReader) -> None:
        self.reader = reader
        self.events: list[AnyFeedEvent] = []
        self._grown = asyncio.Event()
        self.task = asyncio.ensure_future(reader.drive(self._emit))

    def _emit(self, events: list[AnyFeedEvent]) -> None:
        self.events += events
        self._grown.set()

    async def wait_for(self, count: int) -> list[tuple[str, str]]:
        """Wait for so many events. Returns their types, and the ids of their responses."""
        async with asyncio.timeout(DEADLINE):
            while len(self.events) < count:
                self._grown.clear()
                await self._grown.wait()
        return [
            (str(event.__struct_config__.tag), "" if isinstance(event, FeedClosed | FeedGap) else event.response.id)
            for event in self.events
        ]


async def test_a_client_follows_responses_without_their_contents() -> None:
    engine = FakeEngine()
    async with run_api(engine=engine) as server:
        await server.create()
        feed = Client(server.app, "GET", "antiphon/feed")
        events = feed.events()
        async with asyncio.timeout(DEADLINE):
            assert (await feed.messages.get())["status"] == 200
        streaming = Client(server.app, input="SECRET", metadata={"a": "SECRET"})
        created = await anext(streaming.events())
        found = []
        async for event in events:
            _events.decode(json.dumps(event))
            assert "SECRET" not in str(event)
            found.append(event)
            if event["type"] == "ended":
                break
        await streaming.request
        assert {event["response"]["id"] for event in found} == {created["response"]["id"]}
        assert found[-1]["at"] == found[-1]["response"]["ended_at"]
        assert found[-1]["response"]["usage"]["output_tokens"] > 0
        feed.disconnect()
        async with asyncio.timeout(DEADLINE):
            await feed.request


async def test_what_is_not_stored_is_reported_when_it_ends_to_its_tenant() -> None:
    async with run_api() as server:
        assert isinstance(server.app.lifecycle, ServerLifecycle)
        feed = server.app.lifecycle.components.activity_feed
        reader, other = [Collector(feed.subscribe(tenant, None, accept_key)) for tenant in (DEFAULT_TENANT, "other")]
        message = {"model": "fake", "max_tokens": 100, "messages": [{"role": "user", "content": "SECRET"}]}
        requests = [
            (await server.post(path, message)).header(b"x-request-id") for path in ("chat/completions", "messages")
        ]
        response = await server.create(input="SECRET", store=False)
        server.engine.fails(EngineFailed("no"))
        assert (await server.post("chat/completions", message)).status == 500
        found = await reader.wait_for(4)
        assert found[:3] == [("ended", (name or b"").decode()) for name in requests] + [("ended", response["id"])]
        summaries = [event.response for event in reader.events if isinstance(event, ResponseEnded)]
        assert [(one.status, one.stored, one.model) for one in summaries] == [
            *[("completed", False, "fake")] * 3, ("failed", False, "fake"),
        ]  # fmt: skip
        assert summaries[2].items == {"message": 1}
        assert summaries[0].usage is not None
        assert summaries[0].usage.output_tokens > 0
        assert "SECRET" not in str(reader.events)
        assert other.events == []
        assert (await server.get("antiphon/responses")).json()["data"] == []


async def test_a_feed_ends_when_the_server_drains() -> None:
    async with run_api() as server:
        feed = Client(server.app, "GET", "antiphon/feed")
        async with asyncio.timeout(DEADLINE):
            await feed.messages.get()
        assert isinstance(server.app.lifecycle, ServerLifecycle)
        server.app.lifecycle.drain()
        last = await anext(feed.events())
        assert (last["type"], last["reason"]) == ("closed", "shutdown")
        await feed.request
        assert (await server.get("antiphon/feed")).status == 503


async def test_events_are_framed_with_their_ids() -> None:
    async with run_api() as server:
        await server.create()
        feed = Client(server.app, "GET", "antiphon/feed")
        await anext(streaming_bodies(feed))
        await server.create()
        async for body in streaming_bodies(feed):
            if body:
                break
        name, number, data, *end = body.decode().split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert (name, number, end) == (f"event: {event['type']}", f"id: {event['at']!r}", ["", ""])
        feed.disconnect()
        await feed.request


async def streaming_bodies(client: Client) -> AsyncIterator[bytes]:
    while True:
        async with asyncio.timeout(DEADLINE):
            yield (await client.messages.get()).get("body", b"")


@pytest.mark.parametrize("value", [b"x", b"nan", b"inf", b""])
async def test_an_invalid_last_event_id_is_rejected(value: bytes) -> None:
    async with run_api() as server:
        answer = await call(server.app, "GET", "/v1/antiphon/feed", (b"last-event-id", value))
        assert (answer.status, answer.error["param"]) == (400, "Last-Event-ID")


async def test_head_and_a_server_without_a_store_do_not_stream() -> None:
    async with run_api() as server:
        assert (await call(server.app, "HEAD", "/v1/antiphon/feed")).status == 200
    async with run_api(disable_store=True) as server:
        assert (await server.get("antiphon/feed")).status == 404


async def test_begin_and_end_are_reported_once_and_only_to_the_tenant(store: Store, clock: Clock) -> None:
    feed = ActivityFeed(store)
    clock.now = time()
    old = await store_response(store, clock)
    clock.now += 10
    reader, other = [Collector(feed.subscribe(tenant, None, accept_key)) for tenant in (TENANT, "other")]
    new = await begin_response(store, clock)
    assert await reader.wait_for(1) == [("begun", new.id)]
    clock.now += 1
    await store.finish(TENANT, make_end(clock, new))
    later = await store_response(store, clock)
    found = await reader.wait_for(3)
    assert sorted(found[1:]) == sorted([("ended", new.id), ("ended", later)])
    assert old not in str(found)
    await feed.close()
    assert (await reader.wait_for(4))[3:] == [("closed", "")]
    assert await other.wait_for(1) == [("closed", "")]
    await asyncio.gather(reader.task, other.task)


async def test_a_reader_resumes_after_its_last_event(store: Store, clock: Clock) -> None:
    feed = ActivityFeed(store)
    clock.now = time() - 1000
    forgotten = await store_response(store, clock)
    clock.now += 500
    missed = await store_response(store, clock)
    readers = [Collector(feed.subscribe(TENANT, clock.now - 1, accept_key)) for _ in range(2)]
    for reader in readers:
        assert await reader.wait_for(1) == [("ended", missed)]
        assert forgotten not in str(reader.events)
    # by now the events are in memory
    late = Collector(feed.subscribe(TENANT, clock.now - 1, accept_key))
    assert await late.wait_for(1) == [("ended", missed)]
    await feed.close()


async def test_more_responses_than_a_poll_compares_are_a_gap(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_WINDOW", 2)
    clock.now = time() + 10
    tenant_feed = module.TenantFeed(store, TENANT, lambda: None)
    await store_response(store, clock)
    running = await begin_response(store, clock)
    await tenant_feed.poll()
    reader = FeedReader(tenant_feed, 0.0, accept_key)
    tenant_feed.readers.add(reader)
    collector = Collector(reader)
    clock.now += 1
    while new_id("resp")[:MILLISECOND] == running.id[:MILLISECOND]:
        pass  # ids of one millisecond are in no order
    for _ in range(2):
        await store_response(store, clock)
    await store.finish(TENANT, make_end(clock, running))
    await tenant_feed.poll()
    found = await collector.wait_for(4)
    assert found[0] == ("gap", "")
    assert ("ended", running.id) in found
    reader.shut(FeedClosed(at=0.0, reason="slow"))
    await collector.task


async def test_a_slow_reader_is_closed(store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_PENDING", 2)
    tenant_feed = module.TenantFeed(store, TENANT, lambda: None)
    reader = FeedReader(tenant_feed, 0.0, accept_key)
    tenant_feed.add(reader)
    for _ in range(3):
        await store_response(store, clock)
        await tenant_feed.poll()
    collector = Collector(reader)
    await collector.task
    assert [type(event) for event in collector.events] == [ResponseEnded, ResponseEnded, FeedClosed]
    assert isinstance(collector.events[-1], FeedClosed)
    assert collector.events[-1].reason == "slow"


@pytest.mark.parametrize("is_revoked", [True, False])
async def test_a_reader_whose_key_is_revoked_is_closed(store: Store, is_revoked: bool) -> None:
    checks = 0

    async def check_key() -> None:
        nonlocal checks
        checks += 1
        if is_revoked or checks > 3:
            raise NotAuthenticated("no")
        raise Unavailable("The store does not respond.")

    feed = ActivityFeed(store)
    collector = Collector(feed.subscribe(TENANT, None, check_key))
    async with asyncio.timeout(DEADLINE):
        await collector.task
    assert isinstance(collector.events[-1], FeedClosed)
    assert (collector.events[-1].reason, checks) == ("key", 1 if is_revoked else 4)
    collector.reader.close()
    await feed.close()


async def test_readers_are_limited_and_polling_ends_with_the_last(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_TENANT_READERS", 2)
    feed = ActivityFeed(store)
    readers: list[Any] = [feed.subscribe(TENANT, None, accept_key) for _ in range(2)]
    with pytest.raises(Busy):
        feed.subscribe(TENANT, None, accept_key)
    for reader in readers:
        reader.close()
    async with asyncio.timeout(DEADLINE):
        await feed._tasks.wait_all()
    assert not feed._tenants
    feed.subscribe(TENANT, None, accept_key).close()
    await feed.close()

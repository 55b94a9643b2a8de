"""Contract suite of live logs: runs against every registered live log.

Two `LiveLog` instances represent two processes if the log can be shared.

Covers `stores/live/base.py`, `stores/live/postgres.py` and `stores/sql/running_responses.py`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from time import time
from urllib.parse import urlsplit

import pytest
from msgspec import Struct

from antiphon.errors import Unavailable
from antiphon.ids import new_id
from antiphon.stores.base import Claim, NewResponse, OwnershipLost, ResponseEnd
from antiphon.stores.live.base import LiveLog
from antiphon.stores.registry import BY_SCHEME, BY_STORE, STORES, load, make_live_log
from antiphon.stores.sql.store import Store
from tests.stores.live.subscribers import NotificationQueue
from tests.support.services import Postgres, Redis

pytestmark = pytest.mark.anyio

KINDS = [*BY_STORE, *(scheme for scheme in BY_SCHEME if scheme != "rediss")]  # rediss is redis over TLS
NEEDS = {"postgresql": [pytest.mark.needs("postgresql")], "redis": [pytest.mark.needs("redis")]}
TENANT = "tenant"


class Process(Struct, eq=False):
    store: Store
    log: LiveLog
    subscriber: NotificationQueue


class ProcessPair(Struct, eq=False):
    """Two processes, or twice the same one if the log is local. `disconnect` closes all their connections."""

    one: Process
    other: Process
    disconnect: Callable[[], object]

    async def wait_for_notifications(self, response_id: str) -> None:
        for subscriber in {self.one.subscriber, self.other.subscriber}:
            await subscriber.wait_for(response_id)

    async def begin_response(self, tenant: str = TENANT) -> str:
        """Begin a response that the first process owns under fence 1, and return its id."""
        new = NewResponse(
            id=new_id("resp"), status="in_progress", background=True, created=time(), request=b"{}", response=b"{}"
        )
        await self.one.store.begin(tenant, new, Claim("one", time() + 60))
        return new.id

    async def take_over(self, response_id: str) -> int:
        """Take over the response in the other process and return its fence."""
        row = await self.other.store.take(TENANT, response_id, Claim("other", time() + 60))
        assert row
        await self.other.log.fence(TENANT, response_id, row.fence)
        return row.fence

    async def end_response(self, response_id: str) -> None:
        end = ResponseEnd(
            id=response_id, fence=1, status="completed", response=b"{}", packed_log=b"", ended=time(), expires=None
        )
        await self.one.store.finish(TENANT, end)
        await self.one.log.drop(TENANT, response_id)


@pytest.fixture
def disconnects(request: pytest.FixtureRequest) -> dict[str, Callable[[], object]]:
    """Functions that make each server close all connections."""

    def terminate_backends() -> None:
        postgres: Postgres = request.getfixturevalue("postgres")
        database = urlsplit(request.getfixturevalue("postgres_url")).path[1:]
        own = f"datname = '{database}' AND application_name = 'antiphon'"
        postgres.run_sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {own}")

    def kill_clients() -> None:
        redis: Redis = request.getfixturevalue("redis")
        redis.send("CLIENT KILL TYPE pubsub")
        redis.send("CLIENT KILL TYPE normal SKIPME yes")

    return {"postgresql": terminate_backends, "redis": kill_clients, "local": lambda: None}


@pytest.fixture(params=[pytest.param(kind, marks=NEEDS.get(kind, ())) for kind in KINDS])
async def pair(
    request: pytest.FixtureRequest, disconnects: dict[str, Callable[[], object]]
) -> AsyncIterator[ProcessPair]:
    kind: str = request.param
    store_name = "postgresql" if kind == "postgresql" else "memory"
    store_location = request.getfixturevalue("postgres_url") if kind == "postgresql" else ":memory:"
    address = request.getfixturevalue("redis_url") if kind == "redis" else None

    async with AsyncExitStack() as stack:

        async def open_store() -> Store:
            new_store: Store = load(STORES[store_name])(store_location, 3600.0)
            await new_store.open()
            stack.push_async_callback(new_store.close)
            return new_store

        async def open_process(process_store: Store) -> Process:
            log, subscriber = make_live_log(address, process_store, 60.0), NotificationQueue()
            await log.open(subscriber)
            stack.push_async_callback(log.close)
            return Process(process_store, log, subscriber)

        one = await open_process(await open_store())
        match kind:
            case "postgresql":
                other = await open_process(await open_store())
            case "redis":
                other = await open_process(one.store)
            case _:
                other = one
        yield ProcessPair(one, other, disconnects[kind])


async def test_batches_are_read_in_order_from_any_number(pair: ProcessPair) -> None:
    response_id = await pair.begin_response()
    batches = [f"batch {number}".encode() * 10 for number in range(25)]
    for number, batch in enumerate(batches):
        await pair.one.log.append(TENANT, response_id, 1, number, batch)
    for after in (-1, 0, 7, 23, 24, 25, 1000):
        assert await pair.other.log.read(TENANT, response_id, after) == batches[after + 1 :]


async def test_a_batch_may_contain_any_bytes(pair: ProcessPair) -> None:
    response_id = await pair.begin_response()
    batches = [b"", b"\0", bytes(range(256)), b"\xff" * 200_000]
    for number, batch in enumerate(batches):
        await pair.one.log.append(TENANT, response_id, 1, number, batch)
    assert await pair.other.log.read(TENANT, response_id, -1) == batches


async def test_a_batch_that_is_written_twice_is_stored_once(pair: ProcessPair) -> None:
    response_id = await pair.begin_response()
    for number, batch in ((0, b"a"), (0, b"a"), (1, b"b"), (0, b"a"), (1, b"b"), (2, b"c")):
        await pair.one.log.append(TENANT, response_id, 1, number, batch)
    assert await pair.other.log.read(TENANT, response_id, -1) == [b"a", b"b", b"c"]


async def test_a_fenced_owner_is_rejected_and_the_next_owner_continues(pair: ProcessPair) -> None:
    response_id = await pair.begin_response()
    await pair.one.log.append(TENANT, response_id, 1, 0, b"mine")
    fence = await pair.take_over(response_id)
    with pytest.raises(OwnershipLost):
        await pair.one.log.append(TENANT, response_id, 1, 1, b"a zombie's")
    await pair.other.log.append(TENANT, response_id, fence, 1, b"his")
    with pytest.raises(OwnershipLost):
        await pair.one.log.append(TENANT, response_id, 1, 2, b"a zombie's")
    assert await pair.one.log.read(TENANT, response_id, -1) == [b"mine", b"his"]


async def test_an_owner_can_be_fenced_before_its_first_write(pair: ProcessPair) -> None:
    response_id = await pair.begin_response()
    await pair.take_over(response_id)
    with pytest.raises(OwnershipLost):
        await pair.one.log.append(TENANT, response_id, 1, 0, b"a zombie's")
    assert await pair.one.log.read(TENANT, response_id, -1) == []


async def test_the_log_of_an_ended_response_is_removed_permanently(pair: ProcessPair) -> None:
    response_id = await pair.begin_response()
    await pair.one.log.append(TENANT, response_id, 1, 0, b"a")
    await pair.end_response(response_id)
    assert await pair.other.log.read(TENANT, response_id, -1) == []
    for number in (0, 1):
        with pytest.raises(OwnershipLost):
            await pair.one.log.append(TENANT, response_id, 1, number, b"late")
    assert await pair.other.log.read(TENANT, response_id, -1) == []


async def test_an_unknown_response_has_an_empty_log(pair: ProcessPair) -> None:
    for unknown in (new_id("resp"), "", "resp_\0", "resp_\ud800", "*"):
        assert await pair.one.log.read(TENANT, unknown, -1) == []


async def test_a_tenant_reads_nothing_of_another(pair: ProcessPair) -> None:
    response_id = await pair.begin_response()
    await pair.one.log.append(TENANT, response_id, 1, 0, b"a")
    assert await pair.other.log.read("somebody else", response_id, -1) == []


async def test_all_processes_receive_batch_and_explicit_notifications(pair: ProcessPair) -> None:
    response_id, another = await pair.begin_response(), new_id("resp")
    await pair.one.log.append(TENANT, response_id, 1, 0, b"a")
    await pair.wait_for_notifications(response_id)
    await pair.other.log.tell(another)
    await pair.wait_for_notifications(another)


async def test_a_batch_is_readable_once_its_notification_arrives(pair: ProcessPair) -> None:
    response_id = await pair.begin_response()
    for number in range(20):
        await pair.one.log.append(TENANT, response_id, 1, number, b"%d" % number)
        await pair.other.subscriber.wait_for(response_id)
        assert await pair.other.log.read(TENANT, response_id, number - 1) == [b"%d" % number]


async def test_many_responses_are_logged_concurrently(pair: ProcessPair) -> None:
    response_ids = [await pair.begin_response() for _ in range(30)]

    async def write(response_id: str) -> None:
        for number in range(10):
            await pair.one.log.append(TENANT, response_id, 1, number, f"{response_id} {number}".encode())

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for response_id in response_ids:
            group.create_task(write(response_id))
    await pair.other.subscriber.wait_for(*response_ids)
    for response_id in response_ids:
        expected = [f"{response_id} {number}".encode() for number in range(10)]
        assert await pair.other.log.read(TENANT, response_id, -1) == expected


async def test_a_lost_connection_is_reestablished(pair: ProcessPair) -> None:
    response_id = await pair.begin_response()
    await pair.one.log.append(TENANT, response_id, 1, 0, b"before")
    pair.disconnect()
    async with asyncio.timeout(60):
        await _append_until_stored(pair, response_id)
        assert await pair.other.log.read(TENANT, response_id, -1) == [b"before", b"after"]
        await _notify_until_received(pair, response_id)


async def _append_until_stored(pair: ProcessPair, response_id: str) -> None:
    """Retry the same batch while the log is unavailable, as an owner does."""
    while True:
        with suppress(Unavailable):
            return await pair.one.log.append(TENANT, response_id, 1, 1, b"after")


async def _notify_until_received(pair: ProcessPair, response_id: str) -> None:
    """Repeat the notification until it is received: notifications without a subscriber are lost."""
    while True:
        await pair.one.log.tell(response_id)
        with suppress(TimeoutError):
            return await pair.other.subscriber.wait_for(response_id, seconds=0.1)

"""The live log in Redis where it differs from others: expiry, fences, startup errors and outages."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from redis import Redis as Client

from antiphon.errors import StartupError, Unavailable
from antiphon.ids import new_id
from antiphon.stores.base import OwnershipLost
from antiphon.stores.live import redis as redis_live
from antiphon.stores.live.redis import RedisLiveLog
from tests.stores.live.subscribers import NotificationQueue
from tests.support.services import Redis, redis_server

pytestmark = [pytest.mark.anyio, pytest.mark.needs("redis")]

TENANT = "tenant"
SECRET = "sesame"
TTL = 60.0


@pytest.fixture
async def log(redis_url: str) -> AsyncIterator[RedisLiveLog]:
    log = RedisLiveLog(redis_url, TTL)
    await log.open(NotificationQueue())
    yield log
    await log.close()


@pytest.fixture
def client(redis: Redis) -> Iterator["Client"]:
    with Client(port=redis.port) as client:
        yield client


async def test_every_key_expires(log: RedisLiveLog, client: "Client") -> None:
    running, dropped, fenced = (new_id("resp") for _ in range(3))
    await log.append(TENANT, running, 1, 0, b"a")
    await log.append(TENANT, dropped, 1, 0, b"a")
    await log.drop(TENANT, dropped)
    await log.fence(TENANT, fenced, 7)
    expiries = {key: client.pttl(key) for key in client.scan_iter()}
    assert len(expiries) == 4  # two of the running response, one fence of each other response
    assert all(0 < milliseconds <= 600_000 for milliseconds in expiries.values()), expiries


async def test_every_batch_extends_the_expiry_of_the_log(log: RedisLiveLog, client: "Client") -> None:
    response_id = new_id("resp")
    await log.append(TENANT, response_id, 1, 0, b"a")
    for key in client.scan_iter():
        client.pexpire(key, 1000)
    await log.append(TENANT, response_id, 1, 1, b"b")
    assert all(client.pttl(key) > TTL * 500 for key in client.scan_iter())


async def test_a_log_without_its_first_batches_is_not_continued(log: RedisLiveLog, redis: Redis) -> None:
    response_id = new_id("resp")
    await log.append(TENANT, response_id, 1, 0, b"a")
    redis.flush()
    with pytest.raises(Unavailable, match="lost the beginning"):
        await log.append(TENANT, response_id, 1, 1, b"b")
    assert await log.read(TENANT, response_id, -1) == []


async def test_a_batch_number_is_accepted_from_one_owner_only(log: RedisLiveLog) -> None:
    response_id = new_id("resp")
    await log.append(TENANT, response_id, 1, 0, b"a")
    with pytest.raises(OwnershipLost):
        await log.append(TENANT, response_id, 2, 0, b"b")
    assert await log.read(TENANT, response_id, -1) == [b"a"]


async def test_a_lower_fence_does_not_replace_a_higher_one(log: RedisLiveLog) -> None:
    response_id = new_id("resp")
    await log.fence(TENANT, response_id, 5)
    await log.fence(TENANT, response_id, 3)
    with pytest.raises(OwnershipLost):
        await log.append(TENANT, response_id, 4, 0, b"a")
    await log.append(TENANT, response_id, 5, 0, b"a")


async def test_the_error_for_an_unreachable_redis_names_its_address() -> None:
    log = RedisLiveLog(f"redis://user:{SECRET}@127.0.0.1:1/0", TTL)
    async with asyncio.timeout(60):
        with pytest.raises(StartupError, match=r"127\.0\.0\.1:1/0 ") as refused:
            await log.open(NotificationQueue())
    assert SECRET not in str(refused.value)
    await log.close()


async def test_the_error_for_a_wrong_password_does_not_contain_it(redis: Redis, client: "Client") -> None:
    client.acl_setuser("locked", enabled=True, passwords=["+right"])
    log = RedisLiveLog(f"redis://locked:{SECRET}@127.0.0.1:{redis.port}/0", TTL)
    with pytest.raises(StartupError, match="password") as refused:
        await log.open(NotificationQueue())
    assert SECRET not in str(refused.value)
    await log.close()


@pytest.mark.parametrize("address", [f"redis://user:{SECRET}@host:port/0", f"redis://user:{SECRET}@[::1/0"])
def test_an_invalid_address_is_rejected(address: str) -> None:
    with pytest.raises(StartupError, match="--live") as refused:
        RedisLiveLog(address, TTL)
    assert SECRET not in str(refused.value)


async def test_the_live_log_reconnects_after_a_restart_of_redis() -> None:
    response_id = new_id("resp")
    with redis_server() as server:
        one, other, notifications = RedisLiveLog(server.url, TTL), RedisLiveLog(server.url, TTL), NotificationQueue()
        await one.open(NotificationQueue())
        await other.open(notifications)
        await asyncio.to_thread(server.stop)
        for call in (
            one.append(TENANT, response_id, 1, 0, b"a"),
            one.read(TENANT, response_id, -1),
            one.tell(response_id),
        ):
            async with asyncio.timeout(60):
                with pytest.raises(Unavailable) as refused:
                    await call
            assert refused.value.retry_after
        await asyncio.to_thread(server.start)
        await one.append(TENANT, response_id, 1, 0, b"a")
        async with asyncio.timeout(60):
            while True:
                await one.tell(response_id)
                try:
                    await notifications.wait_for(response_id, seconds=0.2)
                    break
                except TimeoutError:
                    continue
        await one.close()
        await other.close()


@pytest.mark.parametrize("turns", range(12))
async def test_the_live_log_closes_in_any_state_of_its_subscription(redis_url: str, turns: int) -> None:
    log = RedisLiveLog(redis_url, TTL)
    await log.open(NotificationQueue())
    for _ in range(turns):
        await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await log.close()


async def test_a_silent_redis_is_unavailable_within_the_deadline(
    log: RedisLiveLog, client: "Client", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_live, "DEADLINE", 0.3)
    client.client_pause(600_000, all=False)  # writes only: CLIENT UNPAUSE must still be processed
    try:
        async with asyncio.timeout(60):
            with pytest.raises(Unavailable):
                await log.append(TENANT, new_id("resp"), 1, 0, b"a")
    finally:
        client.client_unpause()

"""The live log in Redis where it differs from others: what it keeps, for how long, and what if it is not there."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from redis import Redis as Client

from antiphon.errors import StartupError, Unavailable
from antiphon.ids import new_id
from antiphon.stores.base import Lost
from antiphon.stores.live import redis as redis_live
from antiphon.stores.live.redis import RedisLive
from tests.stores.live.subscribers import Ear
from tests.support.services import Redis, redis_server

pytestmark = [pytest.mark.anyio, pytest.mark.needs("redis")]

TENANT = "tenant"
SECRET = "sesame"
TTL = 60.0


@pytest.fixture
async def log(redis_url: str) -> AsyncIterator[RedisLive]:
    log = RedisLive(redis_url, TTL)
    await log.open(Ear())
    yield log
    await log.close()


@pytest.fixture
def client(redis: Redis) -> Iterator["Client"]:
    with Client(port=redis.port) as client:
        yield client


async def test_nothing_stays_for_ever(log: RedisLive, client: "Client") -> None:
    running, dropped, fenced = (new_id("resp") for _ in range(3))
    await log.append(TENANT, running, 1, 0, b"a")
    await log.append(TENANT, dropped, 1, 0, b"a")
    await log.drop(TENANT, dropped)
    await log.fence(TENANT, fenced, 7)
    left = {key: client.pttl(key) for key in client.scan_iter()}
    assert len(left) == 4  # two of the running one, a fence for each other
    assert all(0 < milliseconds <= 600_000 for milliseconds in left.values()), left


async def test_a_log_lives_on_with_every_batch(log: RedisLive, client: "Client") -> None:
    response_id = new_id("resp")
    await log.append(TENANT, response_id, 1, 0, b"a")
    for key in client.scan_iter():
        client.pexpire(key, 1000)
    await log.append(TENANT, response_id, 1, 1, b"b")
    assert all(client.pttl(key) > TTL * 500 for key in client.scan_iter())


async def test_a_log_whose_beginning_was_lost_is_not_continued(log: RedisLive, redis: Redis) -> None:
    response_id = new_id("resp")
    await log.append(TENANT, response_id, 1, 0, b"a")
    redis.flush()
    with pytest.raises(Unavailable, match="lost the beginning"):
        await log.append(TENANT, response_id, 1, 1, b"b")
    assert await log.read(TENANT, response_id, -1) == []


async def test_two_owners_with_one_number_are_not_both_believed(log: RedisLive) -> None:
    response_id = new_id("resp")
    await log.append(TENANT, response_id, 1, 0, b"a")
    with pytest.raises(Lost):
        await log.append(TENANT, response_id, 2, 0, b"b")
    assert await log.read(TENANT, response_id, -1) == [b"a"]


async def test_a_lower_fence_takes_nothing_back(log: RedisLive) -> None:
    response_id = new_id("resp")
    await log.fence(TENANT, response_id, 5)
    await log.fence(TENANT, response_id, 3)
    with pytest.raises(Lost):
        await log.append(TENANT, response_id, 4, 0, b"a")
    await log.append(TENANT, response_id, 5, 0, b"a")


async def test_a_redis_that_is_not_there_is_named_at_the_start() -> None:
    log = RedisLive(f"redis://user:{SECRET}@127.0.0.1:1/0", TTL)
    async with asyncio.timeout(60):
        with pytest.raises(StartupError, match=r"127\.0\.0\.1:1/0 ") as refused:
            await log.open(Ear())
    assert SECRET not in str(refused.value)
    await log.close()


async def test_a_wrong_password_is_not_repeated(redis: Redis, client: "Client") -> None:
    client.acl_setuser("locked", enabled=True, passwords=["+right"])
    log = RedisLive(f"redis://locked:{SECRET}@127.0.0.1:{redis.port}/0", TTL)
    with pytest.raises(StartupError, match="password") as refused:
        await log.open(Ear())
    assert SECRET not in str(refused.value)
    await log.close()


@pytest.mark.parametrize("address", [f"redis://user:{SECRET}@host:port/0", f"redis://user:{SECRET}@[::1/0"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(StartupError, match="--live") as refused:
        RedisLive(address, TTL)
    assert SECRET not in str(refused.value)


async def test_a_redis_that_comes_back_is_found_again() -> None:
    response_id = new_id("resp")
    with redis_server() as server:
        one, other, ear = RedisLive(server.url, TTL), RedisLive(server.url, TTL), Ear()
        await one.open(Ear())
        await other.open(ear)
        await asyncio.to_thread(server.stop)
        for asked in (
            one.append(TENANT, response_id, 1, 0, b"a"),
            one.read(TENANT, response_id, -1),
            one.tell(response_id),
        ):
            async with asyncio.timeout(60):
                with pytest.raises(Unavailable) as refused:
                    await asked
            assert refused.value.retry_after
        await asyncio.to_thread(server.start)
        await one.append(TENANT, response_id, 1, 0, b"a")
        async with asyncio.timeout(60):
            while True:
                await one.tell(response_id)
                try:
                    await ear.hears(response_id, seconds=0.2)
                    break
                except TimeoutError:
                    continue
        await one.close()
        await other.close()


@pytest.mark.parametrize("turns", range(12))
async def test_it_closes_whatever_its_listener_is_at(redis_url: str, turns: int) -> None:
    log = RedisLive(redis_url, TTL)
    await log.open(Ear())
    for _ in range(turns):
        await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await log.close()


async def test_a_silent_redis_is_unavailable_within_the_deadline(
    log: RedisLive, client: "Client", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_live, "DEADLINE", 0.3)
    client.client_pause(600_000, all=False)  # but for who ends it: that writes nothing
    try:
        async with asyncio.timeout(60):
            with pytest.raises(Unavailable):
                await log.append(TENANT, new_id("resp"), 1, 0, b"a")
    finally:
        client.client_unpause()

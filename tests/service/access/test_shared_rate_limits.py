"""Rate limits that servers share through a real Redis, or workers through their parent: the total is never exceeded.

Without a connection each server counts alone.

Covers `stores/live/redis.py` and `stores/live/worker_limits.py`.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from multiprocessing import Pipe, connection
from time import monotonic

import pytest
from msgspec import Struct

from antiphon.config import Config
from antiphon.config.rate_limits import QuotaSettings
from antiphon.errors import Busy
from antiphon.service.access import shared_rate_limits as module
from antiphon.service.access.api_keys import Principal
from antiphon.service.access.charges import Charge, LimitSet
from antiphon.service.access.rate_limits import RateLimits
from antiphon.service.access.shared_rate_limits import LeasedBucket, SharedRateLimits, make_rate_limits
from antiphon.stores.live.base import BucketGrant, SharedLimits
from antiphon.stores.live.redis import RedisLimits
from antiphon.stores.live.worker_limits import LimitServer, ParentLimits
from tests.support.services import Redis

pytestmark = pytest.mark.anyio

ACME = Principal(tenant="acme", key="one")
SECONDS = 30.0

LimitsFactory = Callable[[], SharedLimits]


class Replica(Struct, frozen=True):
    rate_limits: RateLimits
    shared_limits: SharedRateLimits

    @property
    def limit_set(self) -> LimitSet:
        return self.rate_limits.get_limits(ACME)

    async def admit(self, size: int = 4) -> Charge | None:
        """Return the charge, or None if refused."""
        await self.shared_limits.refill(self.limit_set, size)
        try:
            return self.limit_set.admit(size)
        except Busy:
            return None

    @property
    def remaining(self) -> list[int | None]:
        return [None if one is None else one.remaining for one in self.limit_set.get_status()]


def make_bucket() -> tuple[SharedRateLimits, LeasedBucket]:
    """Return a bucket of one unit a second, of which two are held and ten are left since second 100."""
    shared_limits = SharedRateLimits(ParentLimits(Pipe()[0]))
    bucket = shared_limits.lease("acme", "requests", 60.0, 0.0)
    bucket.apply_grant(BucketGrant(taken=2.0, left=10.0), 100.0)
    return shared_limits, bucket


async def test_all_that_is_held_can_be_taken() -> None:
    _, bucket = make_bucket()
    assert bucket.available(100.0) == 12.0
    assert bucket.available(106.0) == 18.0
    assert not bucket.try_take(2.1, 100.0)
    assert bucket.try_take(2.0, 100.0)
    assert bucket.held == 0.0


@pytest.mark.parametrize(
    ("amount", "now", "expected"),
    [
        (2.0, 200.0, False),  # held
        (2.1, 100.0, True),
        (12.0, 100.0, True),
        (12.1, 100.0, False),
        (13.0, 100.0 + module._INTERVAL, True),  # the level may be another one by now
    ],
)
async def test_a_refill_is_requested_if_it_may_be_granted(amount: float, now: float, expected: bool) -> None:
    assert make_bucket()[1].needs_refill(amount, now) is expected


async def test_a_slice_is_returned_once_it_was_not_used_for_a_time() -> None:
    _, bucket = make_bucket()
    bucket.take(0.5, 100.0)
    for now, returned in ((100.0 + module._UNUSED_SECONDS - 0.1, 0.0), (100.0 + module._UNUSED_SECONDS, 1.5)):
        settlement = bucket.make_settlement(now)
        assert settlement is not None
        assert settlement.back == returned
    assert bucket.make_settlement(100.0 + module._UNUSED_SECONDS) is None


async def test_without_a_connection_a_bucket_counts_alone() -> None:
    shared_limits, bucket = make_bucket()
    shared_limits.connected = False
    bucket.take(30.0, 0.0)
    assert bucket.available(0.0) == 30.0
    bucket.resize(20.0, 0.0)
    assert bucket.available(0.0) <= 20.0


async def test_limits_are_shared_between_workers_if_there_are_several() -> None:
    config = Config(quota=QuotaSettings(requests_per_minute=6))
    for worker_limits in (None, ParentLimits(Pipe()[0])):
        rate_limits, shared_limits = make_rate_limits(config, worker_limits)
        (budget,) = rate_limits.get_limits(ACME).budgets
        assert isinstance(budget.requests, LeasedBucket) is (worker_limits is not None)
        assert (shared_limits is None) is (worker_limits is None)


class ParentProcess:
    """Serves the limits of workers like their parent process, in a thread."""

    def __init__(self) -> None:
        self.limit_server = LimitServer()
        self.responsive = threading.Event()
        self.responsive.set()
        self._connections: list[connection.Connection] = []
        self._wake_reader, self._wake_writer = Pipe()
        self._thread = threading.Thread(target=self._serve)

    def connect(self) -> SharedLimits:
        parent_end, worker_end = Pipe()
        self._connections.append(parent_end)
        self._wake_writer.send_bytes(b"one more")
        return ParentLimits(worker_end)

    def _serve(self) -> None:
        while True:
            for one in connection.wait([self._wake_reader, *self._connections]):
                assert isinstance(one, connection.Connection)
                self.responsive.wait()
                try:
                    body = one.recv_bytes()
                except EOFError:
                    if one is self._wake_reader:
                        return
                    self._connections.remove(one)
                    continue
                if one is not self._wake_reader:
                    one.send_bytes(self.limit_server.handle(one.fileno(), body))

    @contextmanager
    def start(self) -> Iterator["ParentProcess"]:
        self._thread.start()
        try:
            yield self
        finally:
            self.responsive.set()  # a failed test may leave the thread blocked
            self._wake_writer.close()
            self._thread.join(SECONDS)
            for one in (self._wake_reader, *self._connections):
                one.close()


@pytest.fixture(params=[pytest.param("redis", marks=pytest.mark.needs("redis")), "parent"])
def limits_factory(request: pytest.FixtureRequest) -> Iterator[LimitsFactory]:
    if request.param == "redis":
        url: str = request.getfixturevalue("redis_url")
        yield lambda: RedisLimits(url)
        return
    with ParentProcess().start() as parent:
        yield parent.connect


@asynccontextmanager
async def start_replicas(factory: LimitsFactory, quota: QuotaSettings, count: int = 2) -> AsyncIterator[list[Replica]]:
    servers, tasks = [], []
    for _ in range(count):
        shared_limits = SharedRateLimits(factory())
        rate_limits = RateLimits(shared_limits.lease)
        rate_limits.configure(quota, {})
        servers.append(Replica(rate_limits, shared_limits))
        tasks.append(asyncio.create_task(shared_limits.run_forever(rate_limits)))
    try:
        yield servers
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110 - the background loop has no event
            await asyncio.sleep(0.01)


async def admit_many(*servers: Replica, times: int = 100) -> tuple[int, float]:
    """Return the number of admitted requests and the elapsed seconds; at 60 requests a minute, one is refilled each
    second.
    """
    began = monotonic()
    charges = await asyncio.gather(*[server.admit() for _ in range(times) for server in servers])
    return sum(charge is not None for charge in charges), monotonic() - began


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.shows("H.3")
async def test_servers_together_admit_as_many_as_one_server(limits_factory: LimitsFactory, count: int) -> None:
    async with start_replicas(limits_factory, QuotaSettings(requests_per_minute=60), count) as servers:
        admitted, seconds = await admit_many(*servers)
    assert 57 <= admitted <= 61 + seconds  # each server may still hold an unused slice of three


async def test_tokens_spent_on_one_server_are_unavailable_on_the_other(limits_factory: LimitsFactory) -> None:
    async with start_replicas(limits_factory, QuotaSettings(tokens_per_minute=600)) as (first, second):
        charge = await first.admit()
        assert charge is not None
        charge.spend(590)
        await second.admit()
        await wait_until(lambda: (second.remaining[1] or 0) < 150)
        assert await second.admit(4 * 140) is None


async def test_a_debt_blocks_all_servers(limits_factory: LimitsFactory) -> None:
    async with start_replicas(limits_factory, QuotaSettings(tokens_per_minute=600)) as (first, second):
        charge = await first.admit()
        assert charge is not None
        charge.spend(5000)

        async with asyncio.timeout(SECONDS):
            while await second.admit() is not None:  # noqa: ASYNC110 - the other server settles on its own
                await asyncio.sleep(0.01)
        assert second.remaining == [None, 0]


async def test_a_debt_is_settled_while_its_slice_is_in_use(limits_factory: LimitsFactory) -> None:
    shared_limits = SharedRateLimits(factory := limits_factory())
    meter, now = shared_limits.lease("t", "tokens", 600.0, 1000.0), 1000.0
    assert not meter.try_take(10.0, now)
    meter.take(100.0, now)
    settlement = meter.make_settlement(now)
    await factory.close()
    assert settlement is not None
    assert (settlement.back, meter.held) == (-100.0, 0.0)


async def test_an_unused_slice_is_returned(limits_factory: LimitsFactory) -> None:
    async with start_replicas(limits_factory, QuotaSettings(requests_per_minute=100)) as (first, second):
        await first.admit()  # takes a slice of five and uses one
        meter = first.limit_set.budgets[0].requests
        assert isinstance(meter, LeasedBucket)
        assert meter.held == 4
        await wait_until(lambda: meter.held == 0)
        charges = [await second.admit() for _ in range(100)]
    assert sum(charge is not None for charge in charges) in (99, 100)


async def test_runs_on_other_servers_count_towards_the_limit(limits_factory: LimitsFactory) -> None:
    async with start_replicas(limits_factory, QuotaSettings(concurrent_responses=3)) as (first, second):
        charges = [await first.admit() for _ in range(2)]
        await second.admit()
        await wait_until(
            lambda: (
                first.limit_set.budgets[0].running_remotely == 1 and second.limit_set.budgets[0].running_remotely == 2
            )
        )
        assert await first.admit() is None
        assert await second.admit() is None
        for charge in charges:
            assert charge is not None
            charge.leave()
        await wait_until(lambda: second.limit_set.budgets[0].running_remotely == 0)
        assert await second.admit() is not None
        assert first.limit_set.budgets[0].running == 0


async def test_remote_runs_are_forgotten_while_redis_is_down(redis: Redis, redis_url: str) -> None:
    async with start_replicas(lambda: RedisLimits(redis_url), QuotaSettings(concurrent_responses=2)) as (first, second):
        assert await first.admit() is not None
        assert await second.admit() is not None
        await wait_until(lambda: second.limit_set.budgets[0].running_remotely == 1)
        redis.stop()
        try:
            await wait_until(lambda: second.limit_set.budgets[0].running_remotely == 0)
            assert await second.admit() is not None
        finally:
            redis.start()


async def test_without_redis_each_server_counts_alone_logs_it_and_recovers(
    redis: Redis, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with start_replicas(lambda: RedisLimits(redis_url), QuotaSettings(requests_per_minute=60)) as (first, second):
        assert await first.admit() is not None
        redis.stop()
        try:
            await wait_until(lambda: not first.shared_limits.connected)
            for server in (first, second):  # the second server notices the failure at its next request
                admitted, seconds = await admit_many(server)
                assert 60 <= admitted <= 61 + seconds
            assert not second.shared_limits.connected
            assert "enforced by this process alone until Redis is available again" in caplog.text
        finally:
            redis.start()
        await wait_until(lambda: first.shared_limits.connected and second.shared_limits.connected)
        assert "Rate limits are shared again: Redis is available" in caplog.text
        admitted, seconds = await admit_many(first, second, times=50)
        assert admitted <= 61 + seconds


async def test_an_unresponsive_parent_is_retried_until_it_answers(caplog: pytest.LogCaptureFixture) -> None:
    with ParentProcess().start() as parent:
        async with start_replicas(parent.connect, QuotaSettings(requests_per_minute=60)) as (first, second):
            assert await first.admit() is not None
            parent.responsive.clear()
            await wait_until(lambda: not first.shared_limits.connected)
            assert "until the parent process is available again" in caplog.text
            admitted, seconds = await admit_many(first)
            assert 60 <= admitted <= 61 + seconds, "the server counts alone"
            parent.responsive.set()
            await wait_until(lambda: first.shared_limits.connected and second.shared_limits.connected)
            admitted, seconds = await admit_many(first, second, times=50)
            assert admitted <= 61 + seconds


async def test_the_runs_of_a_gone_worker_are_forgotten() -> None:
    limit_server = LimitServer()
    for worker in (1, 2):
        limit_server._count_others(worker, ("acme", "one"), worker)
    assert limit_server._count_others(3, ("acme", "one"), 1) == 3
    limit_server.forget(2)
    assert limit_server._count_others(3, ("acme", "one"), 1) == 1


async def test_refused_requests_do_not_query_redis_each_time(redis: Redis, redis_url: str) -> None:
    async with start_replicas(lambda: RedisLimits(redis_url), QuotaSettings(requests_per_minute=60), 1) as (server,):
        while await server.admit() is not None:
            pass
        before = _count_commands(redis)
        for _ in range(500):
            await server.admit()
        assert _count_commands(redis) - before < 50


def _count_commands(redis: Redis) -> int:
    for line in redis.send("INFO stats").decode().splitlines():
        if line.startswith("total_commands_processed:"):
            return int(line.partition(":")[2])
    raise AssertionError("INFO stats has no total_commands_processed")

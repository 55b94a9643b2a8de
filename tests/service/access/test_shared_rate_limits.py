"""Limits that servers share through a real Redis, or workers through their parent: never more than there is.

When nobody answers, each counts for itself."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from multiprocessing import Pipe, connection
from time import monotonic

import pytest
from msgspec import Struct

from antiphon.config.rate_limits import Quota
from antiphon.errors import Busy
from antiphon.service.access.principal import Principal
from antiphon.service.access.rate_limits import Account, Bill, Quotas
from antiphon.service.access.shared_rate_limits import Leased, Sharing
from antiphon.stores.live.base import Till
from antiphon.stores.live.redis_limits import RedisTill
from antiphon.stores.live.worker_limits import Drawer, ParentTill
from tests.support.services import Redis

pytestmark = pytest.mark.anyio

ACME = Principal(tenant="acme", key="one")
SECONDS = 30.0

Tills = Callable[[], Till]


class Replica(Struct, frozen=True):
    quotas: Quotas
    sharing: Sharing

    @property
    def account(self) -> Account:
        return self.quotas.account(ACME)

    async def admit(self, size: int = 4) -> Bill | None:
        """None: refused."""
        await self.sharing.fetch(self.account, size)
        try:
            return self.account.admit(size)
        except Busy:
            return None

    @property
    def left(self) -> list[int | None]:
        return [None if one is None else one.remaining for one in self.account.standing()]


class Parent:
    """As the parent of workers answers them, in a thread."""

    def __init__(self) -> None:
        self.drawer = Drawer()
        self.awake = threading.Event()
        self.awake.set()
        self._desks: list[connection.Connection] = []
        self._over, self._end = Pipe()
        self._thread = threading.Thread(target=self._serve)

    def till(self) -> Till:
        desk, till = Pipe()
        self._desks.append(desk)
        self._end.send_bytes(b"one more")
        return ParentTill(till)

    def _serve(self) -> None:
        while True:
            for one in connection.wait([self._over, *self._desks]):
                assert isinstance(one, connection.Connection)
                self.awake.wait()
                try:
                    body = one.recv_bytes()
                except EOFError:
                    if one is self._over:
                        return
                    self._desks.remove(one)
                    continue
                if one is not self._over:
                    one.send_bytes(self.drawer.answer(one.fileno(), body))

    @contextmanager
    def serving(self) -> Iterator["Parent"]:
        self._thread.start()
        try:
            yield self
        finally:
            self._end.close()
            self._thread.join(SECONDS)
            for one in (self._over, *self._desks):
                one.close()


@pytest.fixture(params=[pytest.param("redis", marks=pytest.mark.needs("redis")), "parent"])
def tills(request: pytest.FixtureRequest) -> Iterator[Tills]:
    if request.param == "redis":
        url: str = request.getfixturevalue("redis_url")
        yield lambda: RedisTill(url)
        return
    with Parent().serving() as parent:
        yield parent.till


@asynccontextmanager
async def replicas(tills: Tills, quota: Quota, count: int = 2) -> AsyncIterator[list[Replica]]:
    made, tasks = [], []
    for _ in range(count):
        sharing = Sharing(tills())
        quotas = Quotas(sharing.lease)
        quotas.renew(quota, {})
        made.append(Replica(quotas, sharing))
        tasks.append(asyncio.create_task(sharing.attend(quotas)))
    try:
        yield made
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not true():  # noqa: ASYNC110 - what happens in a round says nothing about itself
            await asyncio.sleep(0.01)


async def crowd(*servers: Replica, times: int = 100) -> tuple[int, float]:
    """How many of those who come to each are let in, and the seconds that took: of sixty a minute, one comes back in
    each of them."""
    began = monotonic()
    bills = await asyncio.gather(*[server.admit() for _ in range(times) for server in servers])
    return sum(bill is not None for bill in bills), monotonic() - began


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.shows("H.3")
async def test_together_they_let_in_as_many_as_one_would(tills: Tills, count: int) -> None:
    async with replicas(tills, Quota(requests_per_minute=60), count) as servers:
        let_in, seconds = await crowd(*servers)
    assert 57 <= let_in <= 61 + seconds  # a slice of three at each may be left over


async def test_what_one_server_spent_is_missing_at_the_other(tills: Tills) -> None:
    async with replicas(tills, Quota(tokens_per_minute=600)) as (first, second):
        bill = await first.admit()
        assert bill is not None
        bill.spend(590)
        await second.admit()
        await until(lambda: (second.left[1] or 0) < 150)
        assert await second.admit(4 * 140) is None


async def test_a_debt_keeps_everybody_out(tills: Tills) -> None:
    async with replicas(tills, Quota(tokens_per_minute=600)) as (first, second):
        bill = await first.admit()
        assert bill is not None
        bill.spend(5000)

        async with asyncio.timeout(SECONDS):
            while await second.admit() is not None:  # noqa: ASYNC110 - the other one tells Redis by itself
                await asyncio.sleep(0.01)
        assert second.left == [None, 0]


async def test_a_slice_that_nobody_uses_goes_back(tills: Tills) -> None:
    async with replicas(tills, Quota(requests_per_minute=100)) as (first, second):
        await first.admit()  # five are taken, one is used
        meter = first.account.purses[0].requests
        assert isinstance(meter, Leased)
        assert meter.held == 4
        await until(lambda: meter.held == 0)
        bills = [await second.admit() for _ in range(100)]
    assert sum(bill is not None for bill in bills) in (99, 100)


async def test_how_many_run_elsewhere_counts_too(tills: Tills) -> None:
    async with replicas(tills, Quota(concurrent_responses=3)) as (first, second):
        bills = [await first.admit() for _ in range(2)]
        await second.admit()
        await until(lambda: first.account.purses[0].elsewhere == 1 and second.account.purses[0].elsewhere == 2)
        assert await first.admit() is None
        assert await second.admit() is None
        for bill in bills:
            assert bill is not None
            bill.leave()
        await until(lambda: second.account.purses[0].elsewhere == 0)
        assert await second.admit() is not None
        assert first.account.purses[0].running == 0


async def test_who_runs_elsewhere_is_forgotten_with_redis(redis: Redis, redis_url: str) -> None:
    async with replicas(lambda: RedisTill(redis_url), Quota(concurrent_responses=2)) as (first, second):
        assert await first.admit() is not None
        assert await second.admit() is not None
        await until(lambda: second.account.purses[0].elsewhere == 1)
        redis.stop()
        try:
            await until(lambda: second.account.purses[0].elsewhere == 0)
            assert await second.admit() is not None
        finally:
            redis.start()


async def test_without_redis_each_counts_for_itself_says_so_and_comes_back(
    redis: Redis, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with replicas(lambda: RedisTill(redis_url), Quota(requests_per_minute=60)) as (first, second):
        assert await first.admit() is not None
        redis.stop()
        try:
            await until(lambda: not first.sharing.up)
            for server in (first, second):  # the second one notices when it needs it
                let_in, seconds = await crowd(server)
                assert 60 <= let_in <= 61 + seconds
            assert not second.sharing.up
            assert "counted by this process alone, until Redis answers" in caplog.text
        finally:
            redis.start()
        await until(lambda: first.sharing.up and second.sharing.up)
        assert "Quotas are shared again: Redis answers" in caplog.text
        let_in, seconds = await crowd(first, second, times=50)
        assert let_in <= 61 + seconds


async def test_a_parent_that_does_not_answer_is_asked_until_it_does(caplog: pytest.LogCaptureFixture) -> None:
    with Parent().serving() as parent:
        async with replicas(parent.till, Quota(requests_per_minute=60)) as (first, second):
            assert await first.admit() is not None
            parent.awake.clear()
            await until(lambda: not first.sharing.up)
            assert "until the parent process answers again" in caplog.text
            let_in, seconds = await crowd(first)
            assert 60 <= let_in <= 61 + seconds, "each for itself"
            parent.awake.set()
            await until(lambda: first.sharing.up and second.sharing.up)
            let_in, seconds = await crowd(first, second, times=50)
            assert let_in <= 61 + seconds


async def test_a_worker_that_is_gone_runs_nothing_any_more() -> None:
    drawer = Drawer()
    for worker in (1, 2):
        drawer._elsewhere(worker, ("acme", "one"), worker)
    assert drawer._elsewhere(3, ("acme", "one"), 1) == 3
    drawer.forget(2)
    assert drawer._elsewhere(3, ("acme", "one"), 1) == 1


async def test_a_refused_crowd_does_not_ask_redis_for_each(redis: Redis, redis_url: str) -> None:
    async with replicas(lambda: RedisTill(redis_url), Quota(requests_per_minute=60), 1) as (server,):
        while await server.admit() is not None:
            pass
        before = _commands(redis)
        for _ in range(500):
            await server.admit()
        assert _commands(redis) - before < 50


def _commands(redis: Redis) -> int:
    for line in redis.send("INFO stats").decode().splitlines():
        if line.startswith("total_commands_processed:"):
            return int(line.partition(":")[2])
    raise AssertionError("Redis tells nothing")

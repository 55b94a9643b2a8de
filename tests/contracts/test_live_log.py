"""What every live log keeps: to register is to be tested. Two logs stand for two processes, if it can be shared."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from time import time

import pytest
from msgspec import Struct

from antiphon.errors import Unavailable
from antiphon.ids import new_id
from antiphon.stores.base import Claim, End, Lost, NewResponse, Store
from antiphon.stores.live.base import LiveLog
from antiphon.stores.live.registry import BY_ADDRESS, WITH_STORE, live_log
from antiphon.stores.plugin_loading import load
from antiphon.stores.registry import STORES
from tests.stores.live.subscribers import Ear
from tests.support.services import Postgres, Redis

pytestmark = pytest.mark.anyio

KINDS = [*WITH_STORE, *(scheme for scheme in BY_ADDRESS if scheme != "rediss")]  # that is redis, encrypted
NEEDS = {"postgresql": [pytest.mark.needs("postgresql")], "redis": [pytest.mark.needs("redis")]}
TENANT = "tenant"


class Process(Struct, eq=False):
    store: Store
    log: LiveLog
    ear: Ear


class Desk(Struct, eq=False):
    """Two processes, or one that is both; and a way to cut all their connections."""

    one: Process
    other: Process
    cut: Callable[[], object]

    async def all_hear(self, response_id: str) -> None:
        for ear in {self.one.ear, self.other.ear}:
            await ear.hears(response_id)

    async def begun(self, tenant: str = TENANT) -> str:
        """A response that the first one runs, under fence 1."""
        new = NewResponse(
            id=new_id("resp"), status="in_progress", background=True, created=time(), request=b"{}", response=b"{}"
        )
        await self.one.store.begin(tenant, new, Claim("one", time() + 60))
        return new.id

    async def taken(self, response_id: str) -> int:
        """By the other one; gives its fence."""
        row = await self.other.store.take(TENANT, response_id, Claim("other", time() + 60))
        assert row
        await self.other.log.fence(TENANT, response_id, row.fence)
        return row.fence

    async def ended(self, response_id: str) -> None:
        end = End(id=response_id, fence=1, status="completed", response=b"{}", tape=b"", ended=time(), expires=None)
        await self.one.store.finish(TENANT, end)
        await self.one.log.drop(TENANT, response_id)


@pytest.fixture
def cuts(request: pytest.FixtureRequest) -> dict[str, Callable[[], object]]:
    """How each server throws everybody out."""

    def throw_out() -> None:
        postgres: Postgres = request.getfixturevalue("postgres")
        postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'antiphon'")

    def kill_clients() -> None:
        redis: Redis = request.getfixturevalue("redis")
        redis.send("CLIENT KILL TYPE pubsub")
        redis.send("CLIENT KILL TYPE normal SKIPME yes")

    return {"postgresql": throw_out, "redis": kill_clients, "local": lambda: None}


@pytest.fixture(params=[pytest.param(kind, marks=NEEDS.get(kind, ())) for kind in KINDS])
async def desk(request: pytest.FixtureRequest, cuts: dict[str, Callable[[], object]]) -> AsyncIterator[Desk]:
    kind: str = request.param
    stored = "postgresql" if kind == "postgresql" else "memory"
    place = request.getfixturevalue("postgres_url") if kind == "postgresql" else ":memory:"
    address = request.getfixturevalue("redis_url") if kind == "redis" else None

    async with AsyncExitStack() as stack:

        async def store() -> Store:
            opened: Store = load(STORES[stored])(place, 3600.0)
            await opened.open()
            stack.push_async_callback(opened.close)
            return opened

        async def process(of: Store) -> Process:
            log, ear = live_log(address, of, 60.0), Ear()
            await log.open(ear)
            stack.push_async_callback(log.close)
            return Process(of, log, ear)

        one = await process(await store())
        match kind:
            case "postgresql":
                other = await process(await store())
            case "redis":
                other = await process(one.store)
            case _:
                other = one
        yield Desk(one, other, cuts[kind])


async def test_batches_come_back_in_order_and_from_any_number_on(desk: Desk) -> None:
    response_id = await desk.begun()
    batches = [f"batch {number}".encode() * 10 for number in range(25)]
    for number, batch in enumerate(batches):
        await desk.one.log.append(TENANT, response_id, 1, number, batch)
    for after in (-1, 0, 7, 23, 24, 25, 1000):
        assert await desk.other.log.read(TENANT, response_id, after) == batches[after + 1 :]


async def test_a_batch_holds_any_bytes(desk: Desk) -> None:
    response_id = await desk.begun()
    batches = [b"", b"\0", bytes(range(256)), b"\xff" * 200_000]
    for number, batch in enumerate(batches):
        await desk.one.log.append(TENANT, response_id, 1, number, batch)
    assert await desk.other.log.read(TENANT, response_id, -1) == batches


async def test_a_batch_that_is_written_again_is_there_once(desk: Desk) -> None:
    response_id = await desk.begun()
    for number, batch in ((0, b"a"), (0, b"a"), (1, b"b"), (0, b"a"), (1, b"b"), (2, b"c")):
        await desk.one.log.append(TENANT, response_id, 1, number, batch)
    assert await desk.other.log.read(TENANT, response_id, -1) == [b"a", b"b", b"c"]


async def test_an_owner_that_was_fenced_off_is_refused_and_the_next_one_goes_on(desk: Desk) -> None:
    response_id = await desk.begun()
    await desk.one.log.append(TENANT, response_id, 1, 0, b"mine")
    fence = await desk.taken(response_id)
    with pytest.raises(Lost):
        await desk.one.log.append(TENANT, response_id, 1, 1, b"a zombie's")
    await desk.other.log.append(TENANT, response_id, fence, 1, b"his")
    with pytest.raises(Lost):
        await desk.one.log.append(TENANT, response_id, 1, 2, b"a zombie's")
    assert await desk.one.log.read(TENANT, response_id, -1) == [b"mine", b"his"]


async def test_an_owner_that_wrote_nothing_yet_can_be_fenced_off(desk: Desk) -> None:
    response_id = await desk.begun()
    await desk.taken(response_id)
    with pytest.raises(Lost):
        await desk.one.log.append(TENANT, response_id, 1, 0, b"a zombie's")
    assert await desk.one.log.read(TENANT, response_id, -1) == []


async def test_what_ended_is_gone_from_the_log_for_good(desk: Desk) -> None:
    response_id = await desk.begun()
    await desk.one.log.append(TENANT, response_id, 1, 0, b"a")
    await desk.ended(response_id)
    assert await desk.other.log.read(TENANT, response_id, -1) == []
    for number in (0, 1):
        with pytest.raises(Lost):
            await desk.one.log.append(TENANT, response_id, 1, number, b"late")
    assert await desk.other.log.read(TENANT, response_id, -1) == []


async def test_an_unknown_response_has_an_empty_log(desk: Desk) -> None:
    for unknown in (new_id("resp"), "", "resp_\0", "resp_\ud800", "*"):
        assert await desk.one.log.read(TENANT, unknown, -1) == []


async def test_a_tenant_reads_nothing_of_another(desk: Desk) -> None:
    response_id = await desk.begun()
    await desk.one.log.append(TENANT, response_id, 1, 0, b"a")
    assert await desk.other.log.read("somebody else", response_id, -1) == []


async def test_everybody_hears_of_every_batch_and_of_every_word(desk: Desk) -> None:
    response_id, another = await desk.begun(), new_id("resp")
    await desk.one.log.append(TENANT, response_id, 1, 0, b"a")
    await desk.all_hear(response_id)
    await desk.other.log.tell(another)
    await desk.all_hear(another)


async def test_a_batch_can_be_read_once_its_word_is_heard(desk: Desk) -> None:
    response_id = await desk.begun()
    for number in range(20):
        await desk.one.log.append(TENANT, response_id, 1, number, b"%d" % number)
        await desk.other.ear.hears(response_id)
        assert await desk.other.log.read(TENANT, response_id, number - 1) == [b"%d" % number]


async def test_many_responses_are_logged_at_once(desk: Desk) -> None:
    response_ids = [await desk.begun() for _ in range(30)]

    async def write(response_id: str) -> None:
        for number in range(10):
            await desk.one.log.append(TENANT, response_id, 1, number, f"{response_id} {number}".encode())

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for response_id in response_ids:
            group.create_task(write(response_id))
    await desk.other.ear.hears(*response_ids)
    for response_id in response_ids:
        expected = [f"{response_id} {number}".encode() for number in range(10)]
        assert await desk.other.log.read(TENANT, response_id, -1) == expected


async def test_a_lost_connection_heals_by_itself(desk: Desk) -> None:
    response_id = await desk.begun()
    await desk.one.log.append(TENANT, response_id, 1, 0, b"before")
    desk.cut()
    async with asyncio.timeout(60):
        await _written(desk, response_id)
        assert await desk.other.log.read(TENANT, response_id, -1) == [b"before", b"after"]
        await _heard(desk, response_id)


async def _written(desk: Desk, response_id: str) -> None:
    """As an owner does it: the same batch again while the log is not there."""
    while True:
        with suppress(Unavailable):
            return await desk.one.log.append(TENANT, response_id, 1, 1, b"after")


async def _heard(desk: Desk, response_id: str) -> None:
    """What is said while nobody listens is lost; so it is said until it is heard."""
    while True:
        await desk.one.log.tell(response_id)
        with suppress(TimeoutError):
            return await desk.other.ear.hears(response_id, seconds=0.1)

"""The store on PostgreSQL where it differs from others: starting, restarting, bad lines, and answers that get lost."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from functools import partial
from time import time
from typing import Protocol
from urllib.parse import urlsplit

import pytest

from antiphon.errors import StartupError, Unavailable
from antiphon.ids import new_id
from antiphon.stores import postgres_pool
from antiphon.stores.base import Claim, ConversationRow, End, ItemRow, Key, NewResponse
from antiphon.stores.postgres import PostgresStore
from antiphon.stores.postgres_pool import CONNECTIONS, Pool
from antiphon.stores.sql.operation import Operation, sql
from tests.stores.flaky_proxy import BadLine, bad_line
from tests.support.services import Postgres, postgres_server

pytestmark = [pytest.mark.anyio, pytest.mark.needs("postgresql")]

TENANT = "tenant"
SECRET = "sesame"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long it waits for its server is not for a busy machine to find out."""
    monkeypatch.setattr(postgres_pool, "DEADLINE", 60.0)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url, 3600.0)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    async with opened(postgres_url) as store:
        yield store


def begun(previous: str | None = None, conversation: str | None = None) -> NewResponse:
    return NewResponse(
        id=new_id("resp"), status="in_progress", created=time(), previous=previous, conversation=conversation,
        request=b"{}", response=b"{}",
    )  # fmt: skip


def claim() -> Claim:
    return Claim("owner", time() + 60)


def ended(response_id: str, conversation: str | None = None, *items: ItemRow) -> End:
    return End(
        id=response_id, fence=1, status="completed", response=b"{}", tape=b"", ended=time(), expires=None,
        conversation=conversation, items=items,
    )  # fmt: skip


def name_of(url: str) -> str:
    return urlsplit(url).path[1:]


# ---- starting


async def refusal(url: str) -> str:
    with pytest.raises(StartupError) as refused:
        async with asyncio.timeout(60), opened(url):
            pass
    return str(refused.value)


async def test_a_server_that_is_not_there_is_named() -> None:
    for url in (
        f"postgresql://user:{SECRET}@127.0.0.1:1/state",
        f"postgresql://127.0.0.1:1/{SECRET}@127.0.0.1:1/state",
    ):
        said = await refusal(url)
        assert "127.0.0.1:1/state does not answer" in said
        assert SECRET not in said


async def test_a_wrong_password_is_not_repeated(postgres: Postgres, postgres_url: str) -> None:
    postgres.sql("DROP ROLE IF EXISTS locked; CREATE ROLE locked LOGIN PASSWORD 'right'")
    said = await refusal(postgres.url(name_of(postgres_url), "locked", SECRET))
    assert "refuses the user or the password" in said
    assert SECRET not in said


async def test_a_database_that_is_missing_can_be_created_by_what_is_said(postgres: Postgres) -> None:
    assert "createdb nowhere" in await refusal(postgres.url("nowhere"))


@pytest.mark.parametrize("rest", [f"user:{SECRET}/@host:port/db", f"user:{SECRET}@[::1/db", "host/db?sslmode=maybe"])
async def test_an_address_that_is_none_is_refused(rest: str) -> None:
    said = await refusal(f"postgresql://{rest}")
    assert "--store" in said
    assert SECRET not in said


async def test_who_may_not_make_tables_is_told_so(postgres: Postgres, postgres_url: str) -> None:
    postgres.sql("DROP ROLE IF EXISTS reader; CREATE ROLE reader LOGIN")
    postgres.sql("REVOKE CREATE ON SCHEMA public FROM public", name_of(postgres_url))
    assert "may not create tables" in await refusal(postgres.url(name_of(postgres_url), "reader"))


async def test_a_newer_schema_is_left_alone(postgres: Postgres, postgres_url: str) -> None:
    async with opened(postgres_url):
        pass
    postgres.sql("INSERT INTO migrations (number, name) VALUES (9999, 'of tomorrow')", name_of(postgres_url))
    assert "newer" in await refusal(postgres_url)
    assert (await PostgresStore(postgres_url, 1.0).schema()).current == 9999


async def test_looking_at_the_schema_changes_nothing(postgres: Postgres, postgres_url: str) -> None:
    schema = await PostgresStore(postgres_url, 1.0).schema()
    assert (schema.current, len(schema.pending)) == (0, schema.newest)
    assert postgres.sql(r"SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", name_of(postgres_url)) == "0\n"
    async with opened(postgres_url) as store:
        schema = await store.schema()
    assert (schema.current, schema.pending) == (schema.newest, [])


@pytest.mark.shows("B.2")
async def test_several_that_start_at_once_make_the_tables_once(postgres_url: str) -> None:
    stores = [PostgresStore(postgres_url, 3600.0) for _ in range(4)]
    await asyncio.gather(*(store.open() for store in stores))
    new = begun()
    await stores[0].begin(TENANT, new, claim())
    assert [(await store.get(TENANT, new.id)) is not None for store in stores] == [True] * 4
    await asyncio.gather(*(store.close() for store in stores))


# ---- a server that goes away


async def test_a_server_that_restarts_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_pool, "PAUSES", (0.01, 0.05))
    with postgres_server() as server, server.database() as url:
        async with opened(url) as store:
            new = begun()
            await store.begin(TENANT, new, claim())
            await asyncio.to_thread(server.stop)
            async with asyncio.timeout(60):
                with pytest.raises(Unavailable) as refused:
                    await store.get(TENANT, new.id)
            assert refused.value.retry_after
            assert not store.healthy()
            await asyncio.to_thread(server.start)
            assert await store.get(TENANT, new.id)
            assert store.healthy()


async def test_a_restart_that_is_short_is_not_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_pool, "PAUSES", (0.05,) * 1000)
    with postgres_server() as server, server.database() as url:
        async with opened(url) as store:
            await asyncio.to_thread(server.stop)
            asking = asyncio.create_task(store.get(TENANT, new_id("resp")))
            await asyncio.to_thread(server.start)
            assert await asking is None


@pytest.fixture
async def line(postgres: Postgres, postgres_url: str) -> AsyncIterator[tuple[BadLine, PostgresStore]]:
    async with bad_line(postgres.socket, name_of(postgres_url)) as (line, url), opened(url) as store:
        yield line, store


async def test_a_silent_server_is_unavailable_within_the_deadline(
    line: tuple[BadLine, PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, store = line
    new = begun()
    await store.begin(TENANT, new, claim())
    bad.silent = True
    with monkeypatch.context() as hasty:
        hasty.setattr(postgres_pool, "DEADLINE", 0.5)
        for asked in (store.get(TENANT, new.id), store.start(TENANT, new.id, 1), store.begin(TENANT, begun(), claim())):
            async with asyncio.timeout(30):
                with pytest.raises(Unavailable):
                    await asked
    bad.silent = False
    assert await store.get(TENANT, new.id)


async def test_a_line_that_breaks_costs_nobody_an_answer(line: tuple[BadLine, PostgresStore]) -> None:
    bad, store = line
    news = [begun() for _ in range(60)]
    async with asyncio.timeout(60):
        for start in range(0, 60, 20):
            asked = [asyncio.create_task(store.begin(TENANT, new, claim())) for new in news[start : start + 20]]
            await bad.hang_up()
            await asyncio.gather(*asked)
    assert [(await store.get(TENANT, new.id)) is not None for new in news] == [True] * 60


async def test_a_goodbye_that_comes_before_the_line_is_closed_costs_nobody_an_answer(
    line: tuple[BadLine, PostgresStore],
) -> None:
    bad, store = line
    new = begun()
    await store.begin(TENANT, new, claim())
    async with asyncio.timeout(60):
        await bad.say_goodbye()
        assert await store.get(TENANT, new.id) is not None
        await bad.say_goodbye()
        await store.finish(TENANT, ended(new.id))
        await bad.say_goodbye()
        await asyncio.gather(*(store.begin(TENANT, begun(), claim()) for _ in range(CONNECTIONS)))
    assert store.healthy()


# ---- a commit whose answer gets lost: it is done again, and is there once


class Losing(Protocol):
    async def __call__(self, asked: Awaitable[object], at: str = "COMMIT") -> object:
        """The answer to what holds `at`: for a statement that commits by itself, something that it is given."""


@pytest.fixture
def lost(line: tuple[BadLine, PostgresStore]) -> Losing:
    async def lost(asked: Awaitable[object], at: str = "COMMIT") -> object:
        bad, _ = line
        bad.swallows = at.encode()
        async with asyncio.timeout(60):
            answer = await asked
        assert bad.swallows is None, "there was no such thing"
        return answer

    return lost


async def test_a_beginning_that_is_told_twice(line: tuple[BadLine, PostgresStore], lost: Losing) -> None:
    _, store = line
    new, key = begun(), Key("key", b"digest", time() + 60)
    assert await lost(store.begin(TENANT, new, claim(), key)) is None
    assert await store.begin(TENANT, begun(), claim(), key) == new.id
    assert (await store.tenants())[TENANT][0] == 1


async def test_an_end_that_is_told_twice(line: tuple[BadLine, PostgresStore], lost: Losing) -> None:
    _, store = line
    conversation, new = ConversationRow(new_id("conv"), time(), {}), begun()
    assert await lost(store.create_conversation(TENANT, conversation, [ItemRow("msg_1", b"{}")])) is None
    await store.begin(TENANT, new, claim())
    await lost(store.start(TENANT, new.id, 1), new.id)
    await lost(store.append(TENANT, new.id, 1, 0, b"batch"), new.id)
    assert await store.read(TENANT, new.id, -1) == [b"batch"]
    await lost(store.finish(TENANT, ended(new.id, conversation.id, ItemRow("msg_2", b"[2]"), ItemRow("msg_3", b"[3]"))))
    assert await store.all_items(TENANT, conversation.id) == [b"{}", b"[2]", b"[3]"]
    assert await lost(store.add_items(TENANT, conversation.id, [ItemRow("msg_4", b"[4]")], 100))
    assert await store.all_items(TENANT, conversation.id) == [b"{}", b"[2]", b"[3]", b"[4]"]
    row = await store.get(TENANT, new.id)
    assert row
    assert row.status == "completed"


async def test_beginning_and_end_at_once_that_are_told_twice(line: tuple[BadLine, PostgresStore], lost: Losing) -> None:
    _, store = line
    new = begun()
    end = End(
        id=new.id, fence=0, status="completed", response=b"{}", tape=b"", ended=time(), expires=None, new=new
    )  # fmt: skip
    await lost(store.finish(TENANT, end))
    assert await store.tenants() == {TENANT: (1, 4)}


async def test_a_takeover_that_is_told_twice_gives_the_fence_that_counts(
    line: tuple[BadLine, PostgresStore], lost: Losing
) -> None:
    _, store = line
    new = begun()
    await store.begin(TENANT, new, Claim("dead", time() - 1))
    row = await lost(store.take(TENANT, new.id, claim()), new.id)
    assert row == await store.get(TENANT, new.id)


# ---- many at once


async def test_a_caller_that_goes_away_breaks_nothing_off(store: PostgresStore, postgres: Postgres) -> None:
    connections = "SELECT pid FROM pg_stat_activity WHERE application_name = 'antiphon' ORDER BY pid"
    await asyncio.gather(*(store.get(TENANT, new_id("resp")) for _ in range(CONNECTIONS)))
    before = await asyncio.to_thread(postgres.sql, connections)
    news = [begun() for _ in range(CONNECTIONS * 2)]
    asked = [asyncio.create_task(store.begin(TENANT, new, claim())) for new in news]
    await asyncio.sleep(0)
    for task in asked:
        task.cancel()
    await asyncio.wait(asked)
    assert all(task.cancelled() for task in asked)
    async with asyncio.timeout(60):
        while not all([await store.get(TENANT, new.id) for new in news]):
            pass
    assert await asyncio.to_thread(postgres.sql, connections) == before
    assert len(before.split()) == CONNECTIONS


async def test_more_ask_at_once_than_there_are_connections(store: PostgresStore) -> None:
    news = [begun() for _ in range(CONNECTIONS * 10)]
    async with asyncio.timeout(60):
        await asyncio.gather(*(store.begin(TENANT, new, claim()) for new in news))
        rows = await asyncio.gather(*(store.get(TENANT, new.id) for new in news))
    assert [row.id for row in rows if row] == [new.id for new in news]


@pytest.mark.shows("B.2", "B.26")
async def test_turns_of_two_processes_on_one_conversation_stay_whole(store: PostgresStore, postgres_url: str) -> None:
    conversation = ConversationRow(new_id("conv"), time(), {})
    await store.create_conversation(TENANT, conversation, [])

    async def turn(of: PostgresStore, number: int) -> None:
        new = begun(conversation=conversation.id)
        await of.begin(TENANT, new, claim())
        items = [ItemRow(new_id("msg"), f"{number}.{part}".encode()) for part in range(3)]
        await of.finish(TENANT, ended(new.id, conversation.id, *items))

    async with opened(postgres_url) as another, asyncio.timeout(60):
        await asyncio.gather(*(turn((store, another)[number % 2], number) for number in range(50)))
    items = [item.decode() for item in await store.all_items(TENANT, conversation.id) or []]
    turns = [items[start : start + 3] for start in range(0, 150, 3)]
    assert sorted(turns, key=lambda turn: float(turn[0])) == [[f"{n}.{part}" for part in range(3)] for n in range(50)]


async def test_a_process_that_is_halted_does_not_hold_its_locks(postgres_url: str) -> None:
    def timeouts() -> Operation[tuple[str, str]]:
        shown = "current_setting('idle_in_transaction_session_timeout'), current_setting('statement_timeout')"
        idle, busy = (yield sql(f"SELECT {shown}"))[0]
        return idle, busy

    pool = Pool(postgres_url)
    await pool.open()
    assert await pool.run(timeouts, write=True) == ("5s", "5s")
    await pool.close()


async def test_two_that_wait_for_each_other_are_both_done(postgres: Postgres, postgres_url: str) -> None:
    postgres.sql(
        "CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 0), (2, 0)", name_of(postgres_url)
    )
    pool = Pool(postgres_url)
    await pool.open()
    attempts, have = 0, set()

    def both(first: int, second: int) -> Operation[None]:
        nonlocal attempts
        attempts += 1
        yield sql("UPDATE t SET n = n + 1 WHERE id = $1", first)
        have.add(first)
        while len(have) < 2:  # until the other one has its first
            yield sql("SELECT pg_sleep(0.01)")
        yield sql("UPDATE t SET n = n + 1 WHERE id = $1", second)

    async with asyncio.timeout(60):
        await asyncio.gather(*(pool.run(partial(both, *rows), write=True) for rows in ((1, 2), (2, 1))))
    await pool.close()
    assert postgres.sql("SELECT n FROM t ORDER BY id", name_of(postgres_url)) == "2\n2\n"
    assert attempts > 2


async def test_a_refused_operation_leaves_nothing_behind(store: PostgresStore) -> None:
    with pytest.raises(Exception, match="not found"):
        await store.begin(TENANT, begun(previous=new_id("resp")), claim(), Key("key", b"digest", time() + 60))
    assert await store.tenants() == {}
    assert await store.begin(TENANT, begun(), claim(), Key("key", b"other", time() + 60)) is None


async def test_a_closed_store_says_so(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        pass
    with pytest.raises(Unavailable, match="closed"):
        await store.get(TENANT, new_id("resp"))

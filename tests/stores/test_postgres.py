"""The PostgreSQL store where it differs from others: startup errors, restarts, broken connections and lost replies.

Covers `stores/postgres_pool.py`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from functools import partial
from time import time
from typing import Protocol
from urllib.parse import urlsplit

import pytest

from antiphon.errors import InvalidValue, StartupError, Unavailable
from antiphon.ids import new_id
from antiphon.stores import postgres_pool
from antiphon.stores.base import Claim, ConversationRow, IdempotencyKey, ItemRow, NewResponse, ResponseEnd
from antiphon.stores.postgres import PostgresStore
from antiphon.stores.postgres_pool import MAX_CONNECTIONS, PostgresPool
from antiphon.stores.sql.operation import Operation, sql
from tests.stores.flaky_proxy import FlakyProxy, run_flaky_proxy
from tests.support.services import Postgres, postgres_server

pytestmark = [pytest.mark.anyio, pytest.mark.needs("postgresql")]

TENANT = "tenant"
SECRET = "sesame"


@pytest.fixture(autouse=True)
def long_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a long deadline, so that a busy machine does not exceed it. The server's timeouts follow it."""
    monkeypatch.setattr(postgres_pool, "DEADLINE", 60.0)


@asynccontextmanager
async def open_store(url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url, 3600.0)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    async with open_store(postgres_url) as store:
        yield store


def make_response(previous: str | None = None, conversation: str | None = None) -> NewResponse:
    return NewResponse(
        id=new_id("resp"), status="in_progress", created=time(), previous=previous, conversation=conversation,
        request=b"{}", response=b"{}",
    )  # fmt: skip


def make_claim() -> Claim:
    return Claim("owner", time() + 60)


def make_end(response_id: str, conversation: str | None = None, *items: ItemRow) -> ResponseEnd:
    return ResponseEnd(
        id=response_id, fence=1, status="completed", response=b"{}", packed_log=b"", ended=time(), expires=None,
        conversation=conversation, items=items,
    )  # fmt: skip


def get_database_name(url: str) -> str:
    return urlsplit(url).path[1:]


# ---- startup


async def get_startup_error(url: str) -> str:
    with pytest.raises(StartupError) as refused:
        async with asyncio.timeout(60), open_store(url):
            pass
    return str(refused.value)


async def test_the_error_for_an_unreachable_server_names_its_address() -> None:
    for url in (
        f"postgresql://user:{SECRET}@127.0.0.1:1/state",
        f"postgresql://127.0.0.1:1/{SECRET}@127.0.0.1:1/state",
    ):
        message = await get_startup_error(url)
        assert "127.0.0.1:1/state does not answer" in message
        assert SECRET not in message


async def test_the_error_for_a_wrong_password_does_not_contain_it(postgres: Postgres, postgres_url: str) -> None:
    postgres.run_sql("DROP ROLE IF EXISTS locked; CREATE ROLE locked LOGIN PASSWORD 'right'")
    message = await get_startup_error(postgres.url(get_database_name(postgres_url), "locked", SECRET))
    assert "rejects the user or the password" in message
    assert SECRET not in message


async def test_the_error_for_a_missing_database_contains_the_createdb_command(postgres: Postgres) -> None:
    assert "createdb nowhere" in await get_startup_error(postgres.url("nowhere"))


@pytest.mark.parametrize("address", [f"user:{SECRET}/@host:port/db", f"user:{SECRET}@[::1/db", "host/db?sslmode=maybe"])
async def test_an_invalid_address_is_rejected(address: str) -> None:
    message = await get_startup_error(f"postgresql://{address}")
    assert "--store" in message
    assert SECRET not in message


async def test_a_role_that_may_not_create_tables_is_rejected(postgres: Postgres, postgres_url: str) -> None:
    postgres.run_sql("DROP ROLE IF EXISTS reader; CREATE ROLE reader LOGIN")
    postgres.run_sql("REVOKE CREATE ON SCHEMA public FROM public", get_database_name(postgres_url))
    assert "may not create tables" in await get_startup_error(postgres.url(get_database_name(postgres_url), "reader"))


async def test_a_newer_schema_is_rejected_unchanged(postgres: Postgres, postgres_url: str) -> None:
    async with open_store(postgres_url):
        pass
    postgres.run_sql(
        "INSERT INTO migrations (number, name) VALUES (9999, 'of tomorrow')", get_database_name(postgres_url)
    )
    assert "newer" in await get_startup_error(postgres_url)
    assert (await PostgresStore(postgres_url, 1.0).schema()).current == 9999


async def test_reading_the_schema_changes_nothing(postgres: Postgres, postgres_url: str) -> None:
    schema = await PostgresStore(postgres_url, 1.0).schema()
    assert (schema.current, len(schema.pending)) == (0, schema.newest)
    assert (
        postgres.run_sql(r"SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", get_database_name(postgres_url))
        == "0\n"
    )
    async with open_store(postgres_url) as store:
        schema = await store.schema()
    assert (schema.current, schema.pending) == (schema.newest, [])


@pytest.mark.shows("B.2")
async def test_concurrent_starts_create_the_tables_once(postgres_url: str) -> None:
    stores = [PostgresStore(postgres_url, 3600.0) for _ in range(4)]
    await asyncio.gather(*(store.open() for store in stores))
    new = make_response()
    await stores[0].begin(TENANT, new, make_claim())
    assert [(await store.get(TENANT, new.id)) is not None for store in stores] == [True] * 4
    await asyncio.gather(*(store.close() for store in stores))


# ---- a server that becomes unreachable


async def test_the_store_reconnects_after_a_server_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_pool, "PAUSES", (0.01, 0.05))
    with postgres_server() as server, server.temporary_database() as url:
        async with open_store(url) as store:
            new = make_response()
            await store.begin(TENANT, new, make_claim())
            await asyncio.to_thread(server.stop)
            async with asyncio.timeout(60):
                with pytest.raises(Unavailable) as refused:
                    await store.get(TENANT, new.id)
            assert refused.value.retry_after
            assert not store.is_healthy()
            await asyncio.to_thread(server.start)
            assert await store.get(TENANT, new.id)
            assert store.is_healthy()


async def test_a_short_restart_only_delays_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_pool, "PAUSES", (0.05,) * 1000)
    with postgres_server() as server, server.temporary_database() as url:
        async with open_store(url) as store:
            await asyncio.to_thread(server.stop)
            task = asyncio.create_task(store.get(TENANT, new_id("resp")))
            await asyncio.to_thread(server.start)
            assert await task is None


@pytest.fixture
async def proxied_store(postgres: Postgres, postgres_url: str) -> AsyncIterator[tuple[FlakyProxy, PostgresStore]]:
    async with (
        run_flaky_proxy(postgres.socket, get_database_name(postgres_url)) as (proxy, url),
        open_store(url) as store,
    ):
        yield proxy, store


async def test_a_silent_server_is_unavailable_within_the_deadline(
    proxied_store: tuple[FlakyProxy, PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, store = proxied_store
    new = make_response()
    await store.begin(TENANT, new, make_claim())
    proxy.silent = True
    with monkeypatch.context() as patch:
        patch.setattr(postgres_pool, "DEADLINE", 0.5)
        for call in (
            store.get(TENANT, new.id),
            store.start(TENANT, new.id, 1),
            store.begin(TENANT, make_response(), make_claim()),
        ):
            async with asyncio.timeout(30):
                with pytest.raises(Unavailable):
                    await call
    proxy.silent = False
    assert await store.get(TENANT, new.id)


async def test_a_broken_connection_fails_no_operation(proxied_store: tuple[FlakyProxy, PostgresStore]) -> None:
    proxy, store = proxied_store
    news = [make_response() for _ in range(60)]
    async with asyncio.timeout(60):
        for start in range(0, 60, 20):
            tasks = [asyncio.create_task(store.begin(TENANT, new, make_claim())) for new in news[start : start + 20]]
            await proxy.drop_connections()
            await asyncio.gather(*tasks)
    assert [(await store.get(TENANT, new.id)) is not None for new in news] == [True] * 60


async def test_a_shutdown_message_before_the_connection_closes_fails_no_operation(
    proxied_store: tuple[FlakyProxy, PostgresStore],
) -> None:
    proxy, store = proxied_store
    new = make_response()
    await store.begin(TENANT, new, make_claim())
    async with asyncio.timeout(60):
        await proxy.announce_shutdown()
        assert await store.get(TENANT, new.id) is not None
        await proxy.announce_shutdown()
        await store.finish(TENANT, make_end(new.id))
        await proxy.announce_shutdown()
        await asyncio.gather(*(store.begin(TENANT, make_response(), make_claim()) for _ in range(MAX_CONNECTIONS)))
    assert store.is_healthy()


# ---- commits whose reply is lost: they are retried and applied once


class ReplyDropper(Protocol):
    async def __call__(self, call: Awaitable[object], marker: str = "COMMIT") -> object:
        """Run `call` and lose the reply to the message that contains `marker`.

        For a statement that commits by itself, `marker` is one of its values.
        """


@pytest.fixture
def drop_reply(proxied_store: tuple[FlakyProxy, PostgresStore]) -> ReplyDropper:
    async def run_without_reply(call: Awaitable[object], marker: str = "COMMIT") -> object:
        proxy, _ = proxied_store
        proxy.drop_reply_to = marker.encode()
        async with asyncio.timeout(60):
            answer = await call
        assert proxy.drop_reply_to is None, "no message contained the marker"
        return answer

    return run_without_reply


async def test_a_begin_whose_reply_is_lost_is_applied_once(
    proxied_store: tuple[FlakyProxy, PostgresStore], drop_reply: ReplyDropper
) -> None:
    _, store = proxied_store
    new, key = make_response(), IdempotencyKey("key", b"digest", time() + 60)
    assert await drop_reply(store.begin(TENANT, new, make_claim(), key)) is None
    assert await store.begin(TENANT, make_response(), make_claim(), key) == new.id
    assert (await store.tenants())[TENANT][0] == 1


async def test_a_finish_whose_reply_is_lost_is_applied_once(
    proxied_store: tuple[FlakyProxy, PostgresStore], drop_reply: ReplyDropper
) -> None:
    _, store = proxied_store
    conversation, new = ConversationRow(new_id("conv"), time(), {}), make_response()
    assert await drop_reply(store.create_conversation(TENANT, conversation, [ItemRow("msg_1", b"{}")])) is None
    await store.begin(TENANT, new, make_claim())
    await drop_reply(store.start(TENANT, new.id, 1), new.id)
    await drop_reply(store.append(TENANT, new.id, 1, 0, b"batch"), new.id)
    assert await store.read(TENANT, new.id, -1) == [b"batch"]
    await drop_reply(
        store.finish(TENANT, make_end(new.id, conversation.id, ItemRow("msg_2", b"[2]"), ItemRow("msg_3", b"[3]")))
    )
    assert await store.all_items(TENANT, conversation.id) == [b"{}", b"[2]", b"[3]"]
    assert await drop_reply(store.add_items(TENANT, conversation.id, [ItemRow("msg_4", b"[4]")], 100))
    assert await store.all_items(TENANT, conversation.id) == [b"{}", b"[2]", b"[3]", b"[4]"]
    row = await store.get(TENANT, new.id)
    assert row
    assert row.status == "completed"


async def test_an_inserting_finish_whose_reply_is_lost_is_applied_once(
    proxied_store: tuple[FlakyProxy, PostgresStore], drop_reply: ReplyDropper
) -> None:
    _, store = proxied_store
    new = make_response()
    end = ResponseEnd(
        id=new.id, fence=0, status="completed", response=b"{}", packed_log=b"", ended=time(), expires=None, new=new
    )  # fmt: skip
    await drop_reply(store.finish(TENANT, end))
    assert await store.tenants() == {TENANT: (1, 4)}


async def test_a_takeover_whose_reply_is_lost_returns_the_valid_fence(
    proxied_store: tuple[FlakyProxy, PostgresStore], drop_reply: ReplyDropper
) -> None:
    _, store = proxied_store
    new = make_response()
    await store.begin(TENANT, new, Claim("dead", time() - 1))
    row = await drop_reply(store.take(TENANT, new.id, make_claim()), new.id)
    assert row == await store.get(TENANT, new.id)


# ---- concurrency


async def test_a_cancelled_caller_does_not_interrupt_its_operation(
    store: PostgresStore, postgres: Postgres, postgres_url: str
) -> None:
    own = f"datname = '{get_database_name(postgres_url)}' AND application_name = 'antiphon'"
    connections = f"SELECT pid FROM pg_stat_activity WHERE {own} ORDER BY pid"
    await asyncio.gather(*(store.get(TENANT, new_id("resp")) for _ in range(MAX_CONNECTIONS)))
    before = await asyncio.to_thread(postgres.run_sql, connections)
    news = [make_response() for _ in range(MAX_CONNECTIONS * 2)]
    tasks = [asyncio.create_task(store.begin(TENANT, new, make_claim())) for new in news]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)
    async with asyncio.timeout(60):
        while not all([await store.get(TENANT, new.id) for new in news]):
            pass
    assert await asyncio.to_thread(postgres.run_sql, connections) == before
    assert len(before.split()) == MAX_CONNECTIONS


async def test_there_may_be_more_concurrent_operations_than_connections(store: PostgresStore) -> None:
    news = [make_response() for _ in range(MAX_CONNECTIONS * 10)]
    async with asyncio.timeout(60):
        await asyncio.gather(*(store.begin(TENANT, new, make_claim()) for new in news))
        rows = await asyncio.gather(*(store.get(TENANT, new.id) for new in news))
    assert [row.id for row in rows if row] == [new.id for new in news]


@pytest.mark.shows("B.2", "B.26")
async def test_turns_of_two_stores_on_one_conversation_do_not_interleave(
    store: PostgresStore, postgres_url: str
) -> None:
    conversation = ConversationRow(new_id("conv"), time(), {})
    await store.create_conversation(TENANT, conversation, [])

    async def turn(target: PostgresStore, number: int) -> None:
        new = make_response(conversation=conversation.id)
        await target.begin(TENANT, new, make_claim())
        items = [ItemRow(new_id("msg"), f"{number}.{part}".encode()) for part in range(3)]
        await target.finish(TENANT, make_end(new.id, conversation.id, *items))

    async with open_store(postgres_url) as another, asyncio.timeout(60):
        await asyncio.gather(*(turn((store, another)[number % 2], number) for number in range(50)))
    items = [item.decode() for item in await store.all_items(TENANT, conversation.id) or []]
    turns = [items[start : start + 3] for start in range(0, 150, 3)]
    assert sorted(turns, key=lambda turn: float(turn[0])) == [[f"{n}.{part}" for part in range(3)] for n in range(50)]


async def test_timeouts_release_the_locks_of_a_suspended_process(postgres_url: str) -> None:
    def timeouts() -> Operation[tuple[str, str]]:
        shown = "current_setting('idle_in_transaction_session_timeout'), current_setting('statement_timeout')"
        idle, busy = (yield sql(f"SELECT {shown}"))[0]
        return idle, busy

    pool = PostgresPool(postgres_url)
    await pool.open()
    assert await pool.run(timeouts, write=True) == ("1min", "1min")
    await pool.close()


async def test_closing_a_pool_waits_for_running_operations(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_pool, "_CLOSE_SECONDS", 0.01)  # for the connections, once they are unused
    begun = asyncio.Event()

    def take_time() -> Operation[int]:
        yield sql("SELECT 1")
        begun.set()
        yield sql("SELECT pg_sleep(0.5)")
        return 1

    pool = PostgresPool(postgres_url)
    await pool.open()
    running = asyncio.ensure_future(pool.run(take_time, write=True))
    await begun.wait()
    await pool.close()
    assert await running == 1


async def test_deadlocked_operations_are_both_completed(postgres: Postgres, postgres_url: str) -> None:
    postgres.run_sql(
        "CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 0), (2, 0)",
        get_database_name(postgres_url),
    )
    pool = PostgresPool(postgres_url)
    await pool.open()
    attempts, locked = 0, set()

    def both(first: int, second: int) -> Operation[None]:
        nonlocal attempts
        attempts += 1
        yield sql("UPDATE t SET n = n + 1 WHERE id = $1", first)
        locked.add(first)
        while len(locked) < 2:  # until the other operation has locked its first row
            yield sql("SELECT pg_sleep(0.01)")
        yield sql("UPDATE t SET n = n + 1 WHERE id = $1", second)

    async with asyncio.timeout(60):
        await asyncio.gather(*(pool.run(partial(both, *rows), write=True) for rows in ((1, 2), (2, 1))))
    await pool.close()
    assert postgres.run_sql("SELECT n FROM t ORDER BY id", get_database_name(postgres_url)) == "2\n2\n"
    assert attempts > 2


async def test_a_rejected_operation_writes_nothing(store: PostgresStore) -> None:
    with pytest.raises(Exception, match="not found"):
        await store.begin(
            TENANT, make_response(previous=new_id("resp")), make_claim(), IdempotencyKey("key", b"digest", time() + 60)
        )
    assert await store.tenants() == {}
    assert (
        await store.begin(TENANT, make_response(), make_claim(), IdempotencyKey("key", b"other", time() + 60)) is None
    )


async def test_a_closed_store_is_unavailable(postgres_url: str) -> None:
    async with open_store(postgres_url) as store:
        pass
    with pytest.raises(Unavailable, match="closed"):
        await store.get(TENANT, new_id("resp"))


async def test_a_rejected_operation_leaves_its_connection_in_use(store: PostgresStore) -> None:
    def get_process() -> Operation[int]:
        (row,) = yield sql("SELECT pg_backend_pid()")
        process: int = row[0]
        return process

    def reject() -> Operation[None]:
        yield sql("SELECT 1")
        raise InvalidValue("rejected", param="x")

    pool = store._pool
    process = await pool.run(get_process, write=False)
    with pytest.raises(InvalidValue):
        await pool.run(reject, write=True)
    assert await pool.run(get_process, write=False) == process

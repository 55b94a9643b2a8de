"""The pool of PostgreSQL connections without a server; `test_postgres.py` has the tests with one."""

import asyncio
import gc
import logging
from typing import Any

import pytest

from antiphon.errors import Unavailable
from antiphon.stores.postgres_pool import PostgresPool, describe_address, to_startup_error
from antiphon.stores.sql.operation import Operation, sql

pytestmark = pytest.mark.anyio


async def test_each_change_of_health_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "antiphon.stores.postgres_pool")
    pool = PostgresPool("postgresql:///test")
    for healthy in (True, False, False, True, True):
        pool._set_health(healthy, f"healthy: {healthy}")
        assert pool.healthy == healthy
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("ERROR", "PostgreSQL: healthy: False"),
        ("INFO", "PostgreSQL: healthy: True"),
    ]


def read() -> Operation[None]:
    yield sql("SELECT 1")


async def test_the_error_of_an_operation_without_a_caller_is_not_reported() -> None:
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
    pool = PostgresPool("postgresql:///test")
    caller = asyncio.create_task(pool.run(read, write=False))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await pool.close()
    gc.collect()
    assert reports == []


async def test_a_pool_that_is_not_open_is_unavailable_and_stays_healthy() -> None:
    pool = PostgresPool("postgresql:///test")
    with pytest.raises(Unavailable):
        await pool.run(read, write=False)
    assert pool.healthy
    await pool.close()


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("postgresql://user:a@b@host:5433/data", "host:5433/data"),
        ("postgresql://user:secret@/data?host=/run/pg", "/run/pg/data"),
        ("postgresql://[", "the address of --store"),
    ],
)
def test_an_address_has_no_password(url: str, address: str) -> None:
    assert describe_address(url) == address


@pytest.mark.parametrize(("error", "reason"), [(OSError("refused"), "refused"), (TimeoutError(), "timed out")])
def test_the_error_of_a_server_that_does_not_answer_has_a_reason(error: Exception, reason: str) -> None:
    message = str(to_startup_error(error, "postgresql://host/data"))
    assert message == f"PostgreSQL at host/data does not answer: {reason}"

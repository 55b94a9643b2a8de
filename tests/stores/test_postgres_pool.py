"""The pool of PostgreSQL connections without a server; `test_postgres.py` has the tests with one."""

import logging

import pytest

from antiphon.errors import Unavailable
from antiphon.stores.postgres_pool import PostgresPool, describe_address
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


async def test_a_pool_that_is_not_open_is_unavailable_and_stays_healthy() -> None:
    def read() -> Operation[None]:
        yield sql("SELECT 1")

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

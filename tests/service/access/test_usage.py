"""Usage of keys per day: summed in memory, added to the store, and kept while the store does not respond."""

import asyncio
from typing import Any

import pytest

from antiphon.core.prompt import TokenCounts
from antiphon.errors import Unavailable
from antiphon.observe.logs import LOG_CONTEXT, LogContext
from antiphon.service.access import usage
from antiphon.service.access.usage import DAY_SECONDS, UsageMeter
from antiphon.stores.base import UsageRow
from antiphon.stores.sql.store import Store
from antiphon.testing.rows.response_rows import Clock

pytestmark = pytest.mark.anyio

COUNTS = TokenCounts(input_tokens=10, cached_tokens=4, output_tokens=3)


def record(meter: UsageMeter, tenant: str = "acme", key: str = "key_1") -> None:
    LOG_CONTEXT.set(LogContext(tenant=tenant, key=key))
    meter.record(COUNTS)


async def read_usage(store: Store) -> list[UsageRow]:
    return (await store.usage(0, None, 100)).rows


async def test_usage_is_added_per_day_and_key(store: Store, clock: Clock) -> None:
    meter, day = UsageMeter(store, clock), int(clock()) // DAY_SECONDS
    for _ in range(2):
        record(meter)
        record(meter, "other", "")
        await meter.flush()
    await meter.flush()
    clock.now += DAY_SECONDS
    record(meter)
    await meter.flush()
    assert await read_usage(store) == [
        UsageRow(day + 1, "acme", "key_1", 1, 10, 4, 3),
        UsageRow(day, "acme", "key_1", 2, 20, 8, 6),
        UsageRow(day, "other", "", 2, 20, 8, 6),
    ]


class UsageQueue:
    """A store that passes the usage on to the test."""

    def __init__(self) -> None:
        self.rows: asyncio.Queue[list[UsageRow]] = asyncio.Queue()

    async def add_usage(self, rows: list[UsageRow], oldest: int) -> None:
        await self.rows.put(rows)


async def test_usage_is_written_again_and_again(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "_FLUSH_SECONDS", 0.001)
    queue: Any = UsageQueue()
    meter = UsageMeter(queue, clock)
    writing = asyncio.ensure_future(meter.run_forever())
    async with asyncio.timeout(20):
        for _ in range(2):
            record(meter)
            (row,) = await queue.rows.get()
            assert row.responses == 1
    writing.cancel()


async def test_a_run_without_a_request_is_not_counted(store: Store, clock: Clock) -> None:
    meter = UsageMeter(store, clock)
    for context in (None, LogContext()):
        LOG_CONTEXT.set(context)
        meter.record(COUNTS)
    await meter.flush()
    assert await read_usage(store) == []


async def test_usage_waits_for_a_store_that_does_not_respond(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = UsageMeter(store, clock)
    monkeypatch.setattr(usage, "_MAX_PENDING", 1)

    async def fail(*arguments: Any) -> None:
        record(meter)  # while it is being written
        raise Unavailable("The store does not respond.")

    record(meter)
    with monkeypatch.context() as patch:
        patch.setattr(store, "add_usage", fail)
        await meter.flush()
    record(meter, key="key_2")  # above the limit
    await meter.flush()
    [row] = await read_usage(store)
    assert (row.key, row.responses, row.output_tokens) == ("key_1", 2, 6)


async def test_old_days_are_forgotten(store: Store, clock: Clock) -> None:
    meter = UsageMeter(store, clock)
    record(meter)
    await meter.flush()
    clock.now += 401 * DAY_SECONDS
    record(meter, "other")
    await meter.flush()
    assert [row.tenant for row in await read_usage(store)] == ["other"]

"""The SQLite store on a disk that is full, fails or disappears: its errors and its recovery."""

import asyncio
import os
import resource
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw
import pytest

from antiphon.errors import Unavailable
from antiphon.stores import sqlite, writer_thread
from antiphon.testing.rows.response_rows import (
    TENANT,
    Clock,
    make_claim,
    make_inserting_end,
    make_response,
    store_response,
)
from tests.stores.test_sqlite import open_store, wait_until

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@contextmanager
def limit_file_size(path: Path, spare: int) -> Iterator[None]:
    """Limit the files of this process to the size of the write-ahead log plus `spare` bytes, as on a full disk."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    log = path.with_name(f"{path.name}-wal")
    resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size + spare, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


@pytest.mark.parametrize("spare", [0, 100, 5_000, 20_000])
async def test_a_full_disk_is_reported_and_recovers_without_a_restart(path: Path, clock: Clock, spare: int) -> None:
    async with open_store(path, clock) as store:
        before = [await store_response(store, clock) for _ in range(3)]
        totals = await store.tenants()
        news = [make_response(clock) for _ in range(20)]
        with limit_file_size(path, spare):
            outcomes = await asyncio.gather(
                *(store.finish(TENANT, make_inserting_end(clock, new)) for new in news), return_exceptions=True
            )
            assert {type(outcome) for outcome in outcomes} == {Unavailable}
            assert not store.is_healthy()
            assert all([await store.get(TENANT, name) for name in before]), "reads still work"
        assert await store.tenants() == totals, "no write is applied in part"
        for new in news:
            await store.finish(TENANT, make_inserting_end(clock, new))
        assert store.is_healthy()
    async with open_store(path, clock) as store:
        assert (await store.tenants())[TENANT][0] == 23
    with closing(apsw.Connection(str(path))) as connection:
        assert connection.pragma("integrity_check") == "ok"


async def test_free_space_is_detected_without_a_write(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_thread, "IDLE", 0.05)
    async with open_store(path, clock) as store:
        await store_response(store, clock)
        with limit_file_size(path, 0):
            with pytest.raises(Unavailable):
                await store.finish(TENANT, make_inserting_end(clock, make_response(clock)))
            assert await store.claim(make_claim(clock), 1) == []
            assert not store.is_healthy(), "an operation without a write does not restore the health"
        await wait_until(store.is_healthy)


def break_descriptors(path: Path) -> None:
    """Point all open descriptors of the file to /dev/null, as if its disk had been detached and attached again."""
    descriptors = [(int(file.name), os.readlink(file)) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
    with open("/dev/null", "rb") as nothing:
        for number, name in descriptors:
            if name == str(path):
                os.dup2(nothing.fileno(), number)


async def test_the_store_is_reopened_after_its_disk_was_detached(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_thread, "IDLE", 0.05)
    monkeypatch.setattr(sqlite, "REOPEN_SECONDS", 0.05)
    async with open_store(path, clock) as store:
        names = [await store_response(store, clock) for _ in range(3)]
        break_descriptors(path.with_name("store.db-wal"))
        with pytest.raises(Unavailable, match="cannot be reached"):
            await store_response(store, clock)
        assert not store.is_healthy()
        await wait_until(store.is_healthy)
        names.append(await store_response(store, clock))
        assert all([await store.get(TENANT, name) for name in names])
    async with open_store(path, clock) as store:
        assert all([await store.get(TENANT, name) for name in names])


async def test_the_store_recovers_when_a_missing_file_is_back(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writer_thread, "IDLE", 0.05)
    monkeypatch.setattr(sqlite, "REOPEN_SECONDS", 0.05)
    disk, path = tmp_path / "disk", tmp_path / "disk" / "store.db"
    async with open_store(path, clock) as store:
        name = await store_response(store, clock)
        break_descriptors(path.with_name("store.db-wal"))
        disk.rename(tmp_path / "elsewhere")
        with pytest.raises(Unavailable):
            await store_response(store, clock)
        await wait_until(lambda: "cannot be opened" in caplog.text)
        for call in (store.get(TENANT, name), store_response(store, clock)):
            with pytest.raises(Unavailable, match="cannot be reached"):
                await call
        assert not disk.exists()
        (tmp_path / "elsewhere").rename(disk)
        await wait_until(store.is_healthy)
        assert await store.get(TENANT, name)
        await store_response(store, clock)


async def test_a_write_ahead_log_that_cannot_be_truncated_is_reported_and_reopened(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writer_thread, "IDLE", 0.05)
    monkeypatch.setattr(sqlite, "REOPEN_SECONDS", 0.05)
    async with open_store(path, clock) as store:
        names = [await store_response(store, clock)]
        break_descriptors(path)
        names.append(await store_response(store, clock))
        await wait_until(lambda: path.with_name("store.db-wal").stat().st_size == 0)
        assert "the write-ahead log cannot be truncated" in caplog.text
        assert store.is_healthy()
        assert all([await store.get(TENANT, name) for name in names])


async def test_a_memory_store_is_never_reopened(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_store(":memory:", clock) as store:
        name = await store_response(store, clock)
        store._reopen()
        assert await store.get(TENANT, name)


async def test_a_database_at_its_page_limit_is_reported_and_recovers_without_a_restart(
    path: Path, clock: Clock
) -> None:
    connections: list[apsw.Connection] = []
    apsw.connection_hooks.append(connections.append)
    try:
        async with open_store(path, clock) as store:
            writer = connections[0]
            pages = writer.pragma("page_count")
            writer.pragma("max_page_count", pages + 2)
            writes = [store_response(store, clock) for _ in range(300)]
            outcomes = await asyncio.gather(*writes, return_exceptions=True)
            full = [str(outcome) for outcome in outcomes if isinstance(outcome, Unavailable)]
            assert set(full) == {"The store's disk is full."}
            new = make_response(clock, text="x" * 100_000)
            with pytest.raises(Unavailable):  # a small batch after a large one may have fitted, restoring the health
                await store.finish(TENANT, make_inserting_end(clock, new))
            assert not store.is_healthy()
            entries, _ = (await store.tenants()).get(TENANT, (0, 0))
            assert entries == 300 - len(full), "no write is applied in part"
            writer.pragma("max_page_count", 1_000_000)
            await store_response(store, clock)
            assert store.is_healthy()
    finally:
        apsw.connection_hooks.remove(connections.append)

"""The store in a file on a disk that is full, fails, or goes away: what it says, and how it gets well again."""

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
from tests.stores.rows import TENANT, Clock, kept, owner, response, whole
from tests.stores.test_sqlite import opened, until

pytestmark = pytest.mark.anyio


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@contextmanager
def no_room(path: Path, spare: int) -> Iterator[None]:
    """No file of this process grows beyond the size of the log of changes and a little: as on a full disk."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    log = path.with_name(f"{path.name}-wal")
    resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size + spare, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


@pytest.mark.parametrize("spare", [0, 100, 5_000, 20_000])
async def test_a_full_disk_is_told_and_healed_by_itself(path: Path, clock: Clock, spare: int) -> None:
    async with opened(path, clock) as store:
        before = [await kept(store, clock) for _ in range(3)]
        totals = await store.tenants()
        news = [response(clock) for _ in range(20)]
        with no_room(path, spare):
            outcomes = await asyncio.gather(
                *(store.finish(TENANT, whole(clock, new)) for new in news), return_exceptions=True
            )
            assert {type(outcome) for outcome in outcomes} == {Unavailable}
            assert not store.healthy()
            assert all([await store.get(TENANT, name) for name in before]), "reading goes on"
        assert await store.tenants() == totals, "nothing is half done"
        for new in news:
            await store.finish(TENANT, whole(clock, new))
        assert store.healthy()
    async with opened(path, clock) as store:
        assert (await store.tenants())[TENANT][0] == 23
    with closing(apsw.Connection(str(path))) as connection:
        assert connection.pragma("integrity_check") == "ok"


async def test_that_there_is_room_again_is_found_out_though_nobody_writes(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_thread, "IDLE", 0.05)
    async with opened(path, clock) as store:
        await kept(store, clock)
        with no_room(path, 0):
            with pytest.raises(Unavailable):
                await store.finish(TENANT, whole(clock, response(clock)))
            assert await store.claim(owner(clock), 1) == []
            assert not store.healthy(), "what writes nothing shows nothing"
        await until(store.healthy)


def take_away(path: Path) -> None:
    """For good, for those who have it open: as if its disk had been taken away, and put back."""
    found = [(int(file.name), os.readlink(file)) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
    with open("/dev/null", "rb") as nothing:
        for number, name in found:
            if name == str(path):
                os.dup2(nothing.fileno(), number)


async def test_a_disk_that_was_away_is_opened_anew(path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_thread, "IDLE", 0.05)
    monkeypatch.setattr(sqlite, "AGAIN", 0.05)
    async with opened(path, clock) as store:
        names = [await kept(store, clock) for _ in range(3)]
        take_away(path.with_name("store.db-wal"))
        with pytest.raises(Unavailable, match="cannot be reached"):
            await kept(store, clock)
        assert not store.healthy()
        await until(store.healthy)
        names.append(await kept(store, clock))
        assert all([await store.get(TENANT, name) for name in names])
    async with opened(path, clock) as store:
        assert all([await store.get(TENANT, name) for name in names])


async def test_a_file_that_is_gone_is_waited_for(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writer_thread, "IDLE", 0.05)
    monkeypatch.setattr(sqlite, "AGAIN", 0.05)
    disk, path = tmp_path / "disk", tmp_path / "disk" / "store.db"
    async with opened(path, clock) as store:
        name = await kept(store, clock)
        take_away(path.with_name("store.db-wal"))
        disk.rename(tmp_path / "elsewhere")
        with pytest.raises(Unavailable):
            await kept(store, clock)
        await until(lambda: "cannot be opened" in caplog.text)
        for refused in (store.get(TENANT, name), kept(store, clock)):
            with pytest.raises(Unavailable, match="cannot be reached"):
                await refused
        assert not disk.exists()
        (tmp_path / "elsewhere").rename(disk)
        await until(store.healthy)
        assert await store.get(TENANT, name)
        await kept(store, clock)


async def test_a_log_of_changes_that_cannot_be_cleared_is_told_and_opened_anew(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writer_thread, "IDLE", 0.05)
    monkeypatch.setattr(sqlite, "AGAIN", 0.05)
    async with opened(path, clock) as store:
        names = [await kept(store, clock)]
        take_away(path)
        names.append(await kept(store, clock))
        await until(lambda: path.with_name("store.db-wal").stat().st_size == 0)
        assert "the log of changes cannot be cleared" in caplog.text
        assert store.healthy()
        assert all([await store.get(TENANT, name) for name in names])


async def test_memory_is_never_opened_anew(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(":memory:", clock) as store:
        name = await kept(store, clock)
        store._reopen()
        assert await store.get(TENANT, name)


async def test_a_database_that_may_not_grow_is_told_and_healed_by_itself(path: Path, clock: Clock) -> None:
    connections: list[apsw.Connection] = []
    apsw.connection_hooks.append(connections.append)
    try:
        async with opened(path, clock) as store:
            writer = connections[0]
            pages = writer.pragma("page_count")
            writer.pragma("max_page_count", pages + 2)
            writes = [kept(store, clock) for _ in range(300)]
            outcomes = await asyncio.gather(*writes, return_exceptions=True)
            full = [str(outcome) for outcome in outcomes if isinstance(outcome, Unavailable)]
            assert set(full) == {"The store's disk is full."}
            new = response(clock, text="x" * 100_000)
            with pytest.raises(Unavailable):  # a batch of few may have found room after one of many, and healed it
                await store.finish(TENANT, whole(clock, new))
            assert not store.healthy()
            entries, _ = (await store.tenants()).get(TENANT, (0, 0))
            assert entries == 300 - len(full), "nothing is half done"
            writer.pragma("max_page_count", 1_000_000)
            await kept(store, clock)
            assert store.healthy()
    finally:
        apsw.connection_hooks.remove(connections.append)

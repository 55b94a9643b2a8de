"""The store in a file: what it survives, what it leaves behind, and what it says when it cannot go on."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import apsw
import pytest

from antiphon.errors import StartupError, Unavailable
from antiphon.stores import sqlite_file, writer_thread
from antiphon.stores.schema import migrations
from antiphon.stores.sqlite import SqliteStore
from tests.stores.rows import TENANT, TTL, Clock, end, item, kept, owner, response, running, talk, whole
from tests.support.paths import ROOT

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def opened(path: Path | str, clock: Clock) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(str(path), TTL, clock)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not done():  # noqa: ASYNC110  # another thread does it
            await asyncio.sleep(0.005)


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def bytes_of(path: Path) -> bytes:
    """All that is on the disk."""
    return b"".join(file.read_bytes() for file in path.parent.glob(f"{path.name}*"))


@pytest.mark.shows("B.1")
async def test_a_file_and_its_folders_are_made_for_the_owner_alone(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "some" / "where" / "store.db"
    async with opened(path, clock) as store:
        await kept(store, clock)
        for file in path.parent.iterdir():
            assert file.stat().st_mode & 0o777 == 0o600, file
    assert path.parent.stat().st_mode & 0o777 == path.parent.parent.stat().st_mode & 0o777 == 0o700
    assert [file.name for file in path.parent.iterdir()] == ["store.db"]


async def test_what_was_written_is_there_after_reopening(path: Path, clock: Clock) -> None:
    async with opened(path, clock) as store:
        ended, begun = await kept(store, clock), await running(store, clock)
        conversation = await talk(store, clock, item("one"))
        totals = await store.tenants()
    async with opened(path, clock) as store:
        assert await store.get(TENANT, ended)
        assert await store.all_items(TENANT, conversation) == [b"one"]
        assert await store.tenants() == totals
        await store.finish(TENANT, end(clock, begun))


async def test_memory_leaves_nothing(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with opened(":memory:", clock) as store:
        name = await kept(store, clock)
        assert store.name == "memory"
    async with opened(":memory:", clock) as store:
        assert await store.get(TENANT, name) is None
    assert os.listdir(tmp_path) == []


def said_before_it_was_killed(path: Path) -> list[list[str]]:
    command = [sys.executable, "-m", "tests.stores.writer_process", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as writer:
        assert writer.stdout
        said = [writer.stdout.readline() for _ in range(300)]
        writer.kill()
        said += writer.stdout.readlines()
    return [line.split() for line in said if line.endswith("\n")]


@pytest.mark.shows("B.3")
async def test_what_was_acknowledged_survives_a_kill(path: Path, clock: Clock) -> None:
    for _ in range(2):
        words = await asyncio.to_thread(said_before_it_was_killed, path)
        async with opened(path, Clock()) as store:
            for what, name in words:
                row = await store.get(TENANT, name)
                assert row, f"{what} {name} is lost"
                if ["ended", name] in words:
                    assert row.status == "completed"
                elif what == "appended" and row.status == "in_progress":
                    assert await store.read(TENANT, name, -1) == [b"batch"]


async def test_a_folder_is_no_store(tmp_path: Path, clock: Clock) -> None:
    with pytest.raises(StartupError, match="is a folder"):
        await SqliteStore(str(tmp_path), TTL, clock).open()


async def test_a_file_that_is_no_database_is_left_alone(path: Path, clock: Clock) -> None:
    written(path, "dear diary, " * 1000)
    with pytest.raises(StartupError, match="not a SQLite database"):
        await SqliteStore(str(path), TTL, clock).open()
    with pytest.raises(StartupError, match="not a SQLite database"):
        await SqliteStore(str(path), TTL, clock).schema()
    assert bytes_of(path) == b"dear diary, " * 1000


async def test_a_place_that_cannot_be_is_explained(path: Path, clock: Clock) -> None:
    place = written(path, "") / "below" / "store.db"
    with pytest.raises(StartupError, match="a file is where its folder should be"):
        await SqliteStore(str(place), TTL, clock).open()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_a_file_that_may_not_be_written_is_explained(path: Path, clock: Clock) -> None:
    os.chmod(written(path, ""), 0o400)
    with pytest.raises(StartupError, match="may not be written"):
        await SqliteStore(str(path), TTL, clock).open()


async def test_a_newer_schema_is_refused_and_left_alone(path: Path, clock: Clock) -> None:
    async with opened(path, clock) as store:
        await kept(store, clock)
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("INSERT INTO migrations (number, name) VALUES (9999, 'from the future')")
    before = bytes_of(path)
    store = SqliteStore(str(path), TTL, clock)
    with pytest.raises(StartupError, match="newer Antiphon"):
        await store.open()
    assert (await store.schema()).current == 9999
    assert bytes_of(path) == before


async def test_the_schema_is_looked_at_without_touching_anything(path: Path, clock: Clock) -> None:
    newest = migrations("sqlite")[-1].number
    store = SqliteStore(str(path), TTL, clock)
    schema = await store.schema()
    assert (schema.current, schema.newest) == (0, newest)
    assert schema.pending == [migration.name for migration in migrations("sqlite")]
    assert os.listdir(path.parent) == []
    await store.open()
    schema = await store.schema()
    assert (schema.current, schema.newest, schema.pending) == (newest, newest, [])
    await store.close()


async def test_two_processes_may_use_one_file(path: Path, clock: Clock) -> None:
    async with opened(path, clock) as one, opened(path, clock) as other:
        names = await asyncio.gather(*(kept((one, other)[n % 2], clock) for n in range(40)))
        for name in names:
            assert await one.get(TENANT, name)
            assert await other.get(TENANT, name)
        assert (await one.tenants())[TENANT][0] == 40


async def test_who_finds_the_file_taken_waits_and_gives_up(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "BUSY_MS", 50)
    async with opened(path, clock) as store:
        name = await kept(store, clock)
        with closing(apsw.Connection(str(path))) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(Unavailable, match="another process") as refused:
                await kept(store, clock)
            assert refused.value.retry_after
            assert not store.healthy()
            assert await store.get(TENANT, name), "reading goes on"
            assert not store.healthy()
            other.execute("ROLLBACK")
        await kept(store, clock)
        assert store.healthy()


@pytest.mark.parametrize("closes", [False, True])
async def test_what_is_deleted_leaves_no_byte_behind(
    path: Path, clock: Clock, closes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_thread, "IDLE", 0.05)
    secret = "confidential"
    async with opened(path, clock) as store:
        parent = response(clock, text=secret * 1000)
        await store.begin(TENANT, parent, owner(clock))
        await store.append(TENANT, parent.id, 1, 0, secret.encode() * 100)
        await store.finish(TENANT, end(clock, parent, text=secret * 1000))
        conversation = await talk(store, clock, item(secret), item("harmless"))
        page = await store.page_items(TENANT, conversation, None, 1, False)
        assert page
        assert secret.encode() in bytes_of(path)
        await store.delete(TENANT, parent.id)
        await store.delete_item(TENANT, conversation, page.rows[0].id)
        if not closes:
            await until(lambda: secret.encode() not in bytes_of(path))
    assert secret.encode() not in bytes_of(path)
    assert b"harmless" in bytes_of(path)


async def test_what_a_hidden_response_need_not_keep_leaves_no_byte_behind(path: Path, clock: Clock) -> None:
    async with opened(path, clock) as store:
        parent = await kept(store, clock)
        child = await kept(store, clock, parent)
        await store.delete(TENANT, parent)
    assert bytes_of(path).count(b"secret") == 2, "the child's prompt and metadata"
    async with opened(path, clock) as store:
        await store.delete(TENANT, child)
    assert b"secret" not in bytes_of(path)
    assert b"hello" not in bytes_of(path)


async def test_what_was_written_does_not_stay_in_memory(path: Path, clock: Clock) -> None:
    async with opened(path, clock) as store:
        before, _ = apsw.status(apsw.SQLITE_STATUS_MEMORY_USED)
        for count in range(1, 9):
            large = (whole(clock, response(clock, text="x" * 1_000_000)) for _ in range(count))
            await asyncio.gather(*(store.finish(TENANT, ended) for ended in large))
        held, _ = apsw.status(apsw.SQLITE_STATUS_MEMORY_USED)
        assert held - before < 12_000_000, "the cache, and one response"


async def test_a_closed_store_says_so(path: Path, clock: Clock) -> None:
    store = SqliteStore(str(path), TTL, clock)
    with pytest.raises(Unavailable):
        await store.get(TENANT, "resp_1")
    await store.close()
    await store.open()
    await store.close()
    with pytest.raises(Unavailable):
        await store.get(TENANT, "resp_1")


async def test_what_was_asked_before_closing_is_carried_out(path: Path, clock: Clock) -> None:
    store = SqliteStore(str(path), TTL, clock)
    await store.open()
    news = [response(clock) for _ in range(50)]
    tasks = [asyncio.ensure_future(store.finish(TENANT, whole(clock, new))) for new in news]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*tasks)
    async with opened(path, clock) as store:
        assert (await store.tenants())[TENANT][0] == 50

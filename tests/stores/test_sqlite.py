"""The SQLite store: durability, erased content, and the errors for files that cannot be used.

Covers `stores/sqlite_file.py`.
"""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from glob import glob
from pathlib import Path
from tempfile import TemporaryDirectory

import apsw
import pytest

from antiphon.errors import StartupError, Unavailable
from antiphon.stores import sqlite_connection, writer_thread
from antiphon.stores.schema import load_migrations
from antiphon.stores.sql.operation import Operation, Statement
from antiphon.stores.sqlite import SqliteStore
from antiphon.stores.sqlite_file import back_up
from antiphon.testing.rows.response_rows import (
    TENANT,
    TTL,
    Clock,
    begin_response,
    make_claim,
    make_end,
    make_inserting_end,
    make_item,
    make_response,
    store_conversation,
    store_response,
)
from tests.support.paths import ROOT

pytestmark = pytest.mark.anyio

NOBODY = 65534  # a user id without privileges


@asynccontextmanager
async def open_store(path: Path | str, clock: Clock) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(str(path), TTL, clock)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  # another thread changes the condition
            await asyncio.sleep(0.005)


def write_file(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def read_files(path: Path) -> bytes:
    """Return the bytes of the database and of all its companion files."""
    return b"".join(file.read_bytes() for file in path.parent.glob(f"{path.name}*"))


class SyncCounter(apsw.VFS):
    """The default file system of SQLite while it is used; counts the syncs of write-ahead logs."""

    def __init__(self) -> None:
        super().__init__("counts-syncs", "unix", makedefault=True)
        self.syncs = 0

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - of apsw
        return _CountedFile(self, name, flags)


class _CountedFile(apsw.VFSFile):
    def __init__(self, counter: SyncCounter, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        super().__init__("unix", name, flags)
        self._counter = counter
        self._is_log = bool(flags[0] & apsw.SQLITE_OPEN_WAL)

    def xSync(self, flags: int) -> None:  # noqa: N802 - of apsw
        self._counter.syncs += self._is_log
        super().xSync(flags)


@pytest.mark.shows("B.1")
async def test_a_write_is_synced_to_the_disk_before_it_is_acknowledged(path: Path, clock: Clock) -> None:
    counter = SyncCounter()
    try:
        async with open_store(path, clock) as store:
            for end in (make_inserting_end(clock, make_response(clock)) for _ in range(3)):
                before = counter.syncs
                await store.finish(TENANT, end)
                assert counter.syncs > before
    finally:
        counter.unregister()


@pytest.mark.shows("B.1")
async def test_the_file_and_its_folders_are_private_to_the_owner(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "some" / "where" / "store.db"
    async with open_store(path, clock) as store:
        await store_response(store, clock)
        for file in path.parent.iterdir():
            assert file.stat().st_mode & 0o777 == 0o600, file
    assert path.parent.stat().st_mode & 0o777 == path.parent.parent.stat().st_mode & 0o777 == 0o700
    assert [file.name for file in path.parent.iterdir()] == ["store.db"]


async def test_written_rows_are_there_after_reopening(path: Path, clock: Clock) -> None:
    async with open_store(path, clock) as store:
        ended, begun = await store_response(store, clock), await begin_response(store, clock)
        conversation = await store_conversation(store, clock, make_item("one"))
        totals = await store.tenants()
    async with open_store(path, clock) as store:
        assert await store.get(TENANT, ended)
        assert await store.all_items(TENANT, conversation) == [b"one"]
        assert await store.tenants() == totals
        await store.finish(TENANT, make_end(clock, begun))


async def test_a_memory_store_leaves_no_files_and_no_rows(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with open_store(":memory:", clock) as store:
        name = await store_response(store, clock)
        assert store.name == "memory"
    async with open_store(":memory:", clock) as store:
        assert await store.get(TENANT, name) is None
    assert os.listdir(tmp_path) == []


def run_writer_until_killed(path: Path) -> list[list[str]]:
    command = [sys.executable, "-m", "tests.stores.writer_process", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as writer:
        assert writer.stdout
        lines = [writer.stdout.readline() for _ in range(300)]
        writer.kill()
        lines += writer.stdout.readlines()
    return [line.split() for line in lines if line.endswith("\n")]


@pytest.mark.shows("B.3")
async def test_acknowledged_writes_survive_a_kill(path: Path, clock: Clock) -> None:
    for _ in range(2):
        reports = await asyncio.to_thread(run_writer_until_killed, path)
        async with open_store(path, Clock()) as store:
            for step, name in reports:
                row = await store.get(TENANT, name)
                assert row, f"{step} {name} is lost"
                if ["ended", name] in reports:
                    assert row.status == "completed"
                elif step == "appended" and row.status == "in_progress":
                    assert await store.read(TENANT, name, -1) == [b"batch"]


async def test_a_folder_is_rejected_as_a_store(tmp_path: Path, clock: Clock) -> None:
    with pytest.raises(StartupError, match="is a folder"):
        await SqliteStore(str(tmp_path), TTL, clock).open()


async def test_a_file_that_is_not_a_database_is_rejected_unchanged(path: Path, clock: Clock) -> None:
    write_file(path, "dear diary, " * 1000)
    with pytest.raises(StartupError, match="not a SQLite database"):
        await SqliteStore(str(path), TTL, clock).open()
    with pytest.raises(StartupError, match="not a SQLite database"):
        await SqliteStore(str(path), TTL, clock).schema()
    assert read_files(path) == b"dear diary, " * 1000


async def test_a_path_below_a_file_is_rejected_with_the_reason(path: Path, clock: Clock) -> None:
    location = write_file(path, "") / "below" / "store.db"
    with pytest.raises(StartupError, match="one of its parent folders is a file"):
        await SqliteStore(str(location), TTL, clock).open()


@contextmanager
def drop_privileges() -> Iterator[None]:
    """Continue as a user whose access depends on file modes, unlike that of root."""
    user = os.geteuid()
    os.seteuid(user or NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)


async def test_a_read_only_file_is_rejected_with_the_reason(clock: Clock) -> None:
    with TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        os.chmod(path := write_file(Path(folder) / "store.db", ""), 0o444)
        with drop_privileges(), pytest.raises(StartupError, match="is not writable"):
            await SqliteStore(str(path), TTL, clock).open()


async def test_a_newer_schema_is_rejected_unchanged(path: Path, clock: Clock) -> None:
    async with open_store(path, clock) as store:
        await store_response(store, clock)
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("INSERT INTO migrations (number, name) VALUES (9999, 'from the future')")
    before = read_files(path)
    store = SqliteStore(str(path), TTL, clock)
    with pytest.raises(StartupError, match="newer Antiphon"):
        await store.open()
    assert (await store.schema()).current == 9999
    assert read_files(path) == before


async def test_reading_the_schema_changes_nothing(path: Path, clock: Clock) -> None:
    newest = load_migrations("sqlite")[-1].number
    store = SqliteStore(str(path), TTL, clock)
    schema = await store.schema()
    assert (schema.current, schema.newest) == (0, newest)
    assert schema.pending == [migration.name for migration in load_migrations("sqlite")]
    assert os.listdir(path.parent) == []
    await store.open()
    schema = await store.schema()
    assert (schema.current, schema.newest, schema.pending) == (newest, newest, [])
    await store.close()


async def test_two_stores_can_share_a_file(path: Path, clock: Clock) -> None:
    async with open_store(path, clock) as one, open_store(path, clock) as other:
        names = await asyncio.gather(*(store_response((one, other)[n % 2], clock) for n in range(40)))
        for name in names:
            assert await one.get(TENANT, name)
            assert await other.get(TENANT, name)
        assert (await one.tenants())[TENANT][0] == 40


async def test_a_write_to_a_locked_file_fails_after_the_busy_timeout(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_connection, "BUSY_MS", 50)
    async with open_store(path, clock) as store:
        name = await store_response(store, clock)
        with closing(apsw.Connection(str(path))) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(Unavailable, match="another process") as refused:
                await store_response(store, clock)
            assert refused.value.retry_after
            assert not store.is_healthy()
            assert await store.get(TENANT, name), "reads still work"
            assert not store.is_healthy()
            other.execute("ROLLBACK")
        await store_response(store, clock)
        assert store.is_healthy()


@pytest.mark.parametrize("write", [False, True])
async def test_an_operation_that_fails_leaves_no_open_transaction(path: Path, clock: Clock, write: bool) -> None:
    def select_from_missing() -> Operation[None]:
        yield Statement("SELECT * FROM missing", ())

    async with open_store(path, clock) as store:
        with pytest.raises((Unavailable, apsw.SQLError)):
            await store._run(select_from_missing, write=write)  # no operation of the store is wrong
        name = await store_response(store, clock)
        assert await store.get(TENANT, name)


@pytest.mark.parametrize("closes", [False, True])
async def test_deleted_content_is_erased_from_the_files(
    path: Path, clock: Clock, closes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_thread, "IDLE", 0.05)
    secret = "confidential"
    async with open_store(path, clock) as store:
        parent = make_response(clock, text=secret * 1000)
        await store.begin(TENANT, parent, make_claim(clock))
        await store.append(TENANT, parent.id, 1, 0, secret.encode() * 100)
        await store.finish(TENANT, make_end(clock, parent, text=secret * 1000))
        conversation = await store_conversation(store, clock, make_item(secret), make_item("harmless"))
        page = await store.page_items(TENANT, conversation, None, 1, False)
        assert page
        assert secret.encode() in read_files(path)
        await store.delete(TENANT, parent.id)
        await store.delete_item(TENANT, conversation, page.rows[0].id)
        if not closes:
            await wait_until(lambda: secret.encode() not in read_files(path))
    assert secret.encode() not in read_files(path)
    assert b"harmless" in read_files(path)


async def test_content_that_a_hidden_response_does_not_need_is_erased_from_the_files(path: Path, clock: Clock) -> None:
    async with open_store(path, clock) as store:
        parent = await store_response(store, clock)
        child = await store_response(store, clock, parent)
        await store.delete(TENANT, parent)
    assert read_files(path).count(b"secret") == 2, "the child's prompt and metadata"
    async with open_store(path, clock) as store:
        await store.delete(TENANT, child)
    assert b"secret" not in read_files(path)
    assert b"hello" not in read_files(path)


async def test_written_rows_do_not_stay_in_memory(path: Path, clock: Clock) -> None:
    async with open_store(path, clock) as store:
        before, _ = apsw.status(apsw.SQLITE_STATUS_MEMORY_USED)
        for count in range(1, 9):
            large = (make_inserting_end(clock, make_response(clock, text="x" * 1_000_000)) for _ in range(count))
            await asyncio.gather(*(store.finish(TENANT, ended) for ended in large))
        held, _ = apsw.status(apsw.SQLITE_STATUS_MEMORY_USED)
        assert held - before < 12_000_000, "the page cache and one response"


async def test_a_closed_store_is_unavailable(path: Path, clock: Clock) -> None:
    store = SqliteStore(str(path), TTL, clock)
    with pytest.raises(Unavailable):
        await store.get(TENANT, "resp_1")
    await store.close()
    await store.open()
    await store.close()
    with pytest.raises(Unavailable):
        await store.get(TENANT, "resp_1")


async def test_operations_submitted_before_closing_are_completed(path: Path, clock: Clock) -> None:
    store = SqliteStore(str(path), TTL, clock)
    await store.open()
    news = [make_response(clock) for _ in range(50)]
    tasks = [asyncio.ensure_future(store.finish(TENANT, make_inserting_end(clock, new))) for new in news]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*tasks)
    async with open_store(path, clock) as store:
        assert (await store.tenants())[TENANT][0] == 50


async def test_a_backup_waits_for_a_locked_store(path: Path, clock: Clock) -> None:
    async with open_store(path, clock):
        pass
    with closing(apsw.Connection(str(path))) as other:
        other.pragma("locking_mode", "EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE; CREATE TABLE t (a)")
        unlocking = threading.Timer(0.2, other.close, (True,))
        unlocking.start()
        assert back_up(path, path.with_suffix(".copy")) > 0
        unlocking.join()


def list_open_files(folder: Path) -> list[str]:
    opened = [os.path.realpath(entry) for entry in glob("/proc/self/fd/*")]
    return [name for name in opened if name.startswith(str(folder))]


async def test_a_backup_leaves_no_file_open(path: Path, clock: Clock) -> None:
    async with open_store(path, clock):
        pass
    back_up(path, path.with_suffix(".copy"))
    assert list_open_files(path.parent) == []

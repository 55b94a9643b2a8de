"""One SQLite file with several users: a process or a store that closes it must not remove data of the others."""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from antiphon.ids import new_id
from antiphon.stores.base import NewResponse, ResponseEnd
from antiphon.stores.sqlite import SqliteStore

pytestmark = pytest.mark.anyio

TENANT = "default"
# Opens the file in a process with its own SQLite library, reads, and closes it.
READ_SCRIPT = (
    "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT count(*) FROM responses'); c.close()"
)


@asynccontextmanager
async def _open_store(file: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(str(file), ttl=60.0)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def _store_response(store: SqliteStore) -> str:
    response_id, now = new_id("resp"), time.time()
    new = NewResponse(id=response_id, status="in_progress", created=now, request=b"{}", response=b"{}")
    end = ResponseEnd(
        id=response_id,
        fence=0,
        status="completed",
        response=b"{}",
        packed_log=b"",
        ended=now,
        expires=now + 60,
        new=new,
    )
    await store.finish(TENANT, end)
    return response_id


async def _read_in_another_process(file: Path) -> None:
    command = [sys.executable, "-c", READ_SCRIPT, str(file)]
    await asyncio.to_thread(subprocess.run, command, check=True, timeout=120)


async def test_another_process_that_closes_the_file_keeps_the_wal(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    async with _open_store(file) as store:
        stored = [await _store_response(store)]
        await _read_in_another_process(file)
        assert file.with_name("store.db-wal").exists()
        stored.append(await _store_response(store))
    async with _open_store(file) as store:
        assert [await store.get(TENANT, response_id) is not None for response_id in stored] == [True, True]


async def test_closing_one_of_two_stores_keeps_the_wal_of_the_other(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    async with _open_store(file) as first:
        async with _open_store(file):
            pass
        stored = await _store_response(first)
        await _read_in_another_process(file)
        assert file.with_name("store.db-wal").exists()
        assert await first.get(TENANT, stored) is not None

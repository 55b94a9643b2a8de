"""One SQLite file and several who use it: nobody who leaves takes anything away from those who stay."""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from antiphon.ids import new_id
from antiphon.stores.base import End, NewResponse
from antiphon.stores.sqlite import SqliteStore

pytestmark = pytest.mark.anyio

TENANT = "default"
# Another process with a SQLite of its own, which comes, reads and goes.
VISIT = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT count(*) FROM responses'); c.close()"


@asynccontextmanager
async def _store(file: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(str(file), ttl=60.0)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def _keep(store: SqliteStore) -> str:
    response_id, now = new_id("resp"), time.time()
    new = NewResponse(id=response_id, status="in_progress", created=now, request=b"{}", response=b"{}")
    end = End(
        id=response_id, fence=0, status="completed", response=b"{}", tape=b"", ended=now, expires=now + 60, new=new
    )
    await store.finish(TENANT, end)
    return response_id


async def _visit(file: Path) -> None:
    command = [sys.executable, "-c", VISIT, str(file)]
    await asyncio.to_thread(subprocess.run, command, check=True, timeout=120)


async def test_a_process_that_leaves_takes_no_log_with_it(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    async with _store(file) as store:
        kept = [await _keep(store)]
        await _visit(file)
        assert file.with_name("store.db-wal").exists()
        kept.append(await _keep(store))
    async with _store(file) as store:
        assert [await store.get(TENANT, response_id) is not None for response_id in kept] == [True, True]


async def test_two_stores_of_one_process_do_not_let_go_of_each_others_file(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    async with _store(file) as first:
        async with _store(file):
            pass
        kept = await _keep(first)
        await _visit(file)
        assert file.with_name("store.db-wal").exists()
        assert await first.get(TENANT, kept) is not None

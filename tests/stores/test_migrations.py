"""A store of an earlier version is migrated when it is opened and retains its rows."""

from pathlib import Path

import apsw
import pytest

from antiphon.stores import schema
from antiphon.stores.schema import load_migrations
from antiphon.stores.sqlite import SqliteStore
from antiphon.testing.rows.response_rows import TTL, Clock

pytestmark = pytest.mark.anyio
RESPONSE = """
INSERT INTO responses (tenant, id, status, background, hidden, created, ended, fence, attempts, bytes, request,
    response, tape)
VALUES ('t', 'resp_1', 'completed', 0, 0, 1, 2, 1, 1, 19, CAST('request' AS BLOB), CAST('response' AS BLOB),
    CAST('tape' AS BLOB))
"""


@pytest.mark.parametrize("applied", range(1, len(load_migrations("sqlite"))))
async def test_a_store_of_any_earlier_version_is_migrated(applied: int, tmp_path: Path) -> None:
    path = str(tmp_path / "store.db")
    with apsw.Connection(path) as earlier:
        earlier.execute(schema.MIGRATIONS_TABLE)
        for migration in load_migrations("sqlite")[:applied]:
            earlier.execute(migration.text)
            earlier.execute("INSERT INTO migrations VALUES (?, ?)", (migration.number, migration.name))
        earlier.execute("INSERT INTO conversations VALUES ('t', 'conv_1', 1, 1, NULL, 1, 0, 0, '{}')")
        earlier.execute(RESPONSE)
    earlier.close()
    store = SqliteStore(path, TTL, Clock())
    assert (await store.schema()).pending == [migration.name for migration in load_migrations("sqlite")[applied:]]
    await store.open()
    try:
        assert (await store.schema()).pending == []
        assert await store.conversation("t", "conv_1") is not None
        row = await store.get("t", "resp_1")
        assert row is not None
        assert (row.request, row.response, row.packed_log, row.waited) == (b"request", b"response", b"tape", False)
        assert await store.shared("key", b"value") == b"value"
    finally:
        await store.close()

"""A store of an earlier version is migrated when it is opened and retains its rows."""

from pathlib import Path

import apsw
import pytest
from msgspec.structs import replace

from antiphon.stores import schema
from antiphon.stores.schema import load_migrations
from antiphon.stores.sqlite import SqliteStore
from antiphon.testing.rows.response_rows import PACKED_LOG, TTL, Clock, make_end, make_response

pytestmark = pytest.mark.anyio
RESPONSE = """
INSERT INTO responses (tenant, id, status, background, hidden, created, ended, fence, attempts, bytes, request,
    response, tape)
VALUES ('t', 'resp_1', 'completed', 0, 0, 1, 2, 1, 1, 19, CAST('request' AS BLOB), CAST('response' AS BLOB),
    CAST('tape' AS BLOB)),
    ('t', 'resp_2', 'in_progress', 0, 0, 1, NULL, 1, 1, 1000008, ZEROBLOB(1000000), CAST('response' AS BLOB), NULL)
"""
LARGE_REQUESTS = 15  # the migration that moves them
MOVED_REQUEST = """
UPDATE responses SET request = CAST('' AS BLOB) WHERE id = 'resp_2';
INSERT INTO large_requests VALUES ('t', 'resp_2', ZEROBLOB(1000000));
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
        if applied >= LARGE_REQUESTS:
            earlier.execute(MOVED_REQUEST)
    earlier.close()
    clock = Clock()
    store = SqliteStore(path, TTL, clock)
    assert (await store.schema()).pending == [migration.name for migration in load_migrations("sqlite")[applied:]]
    await store.open()
    try:
        assert (await store.schema()).pending == []
        assert await store.conversation("t", "conv_1") is not None
        row = await store.get("t", "resp_1")
        assert row is not None
        assert (row.request, row.response, row.packed_log, row.waited) == (b"request", b"response", b"tape", False)
        await store.finish("t", replace(make_end(clock, make_response(clock)), id="resp_2"))
        row = await store.get("t", "resp_2")
        assert row is not None
        assert (row.request, row.packed_log) == (bytes(1_000_000), PACKED_LOG)
        assert await store.delete("t", "resp_2")
        assert await store.shared("key", b"value") == b"value"
    finally:
        await store.close()

"""Fills a SQLite store with copies of one stored response, each with its own id.

It uses the store's own code in a separate process: `python -m bench.harness.store_filler STORE ID COUNT` prints the
ids.
"""

import asyncio
import sys
import time

from antiphon.ids import new_id
from antiphon.stores.base import NewResponse, ResponseEnd, StoredResponse
from antiphon.stores.sqlite import SqliteStore

TENANT = "default"
_CONCURRENCY = 64  # concurrent writes share a commit
_TTL = 2_592_000.0


async def fill(file: str, response_id: str, count: int) -> list[str]:
    store = SqliteStore(file, _TTL)
    await store.open()
    try:
        original = await store.get(TENANT, response_id)
        assert original is not None
        ids: list[str] = []
        while len(ids) < count:
            ids += await asyncio.gather(*(_copy(store, original) for _ in range(_CONCURRENCY)))
        return ids
    finally:
        await store.close()


async def _copy(store: SqliteStore, original: StoredResponse) -> str:
    response_id, now = new_id("resp"), time.time()
    old, new = (one.rpartition("_")[2].encode() for one in (original.id, response_id))
    request, response = (content.replace(old, new) for content in (original.request, original.response))
    row = NewResponse(id=response_id, status="in_progress", created=now, request=request, response=response)
    assert original.packed_log is not None
    await store.finish(
        TENANT,
        ResponseEnd(
            id=response_id,
            fence=0,
            status="completed",
            response=response,
            packed_log=original.packed_log,
            ended=now,
            expires=now + _TTL,
            new=row,
        ),
    )
    return response_id


if __name__ == "__main__":
    sys.stdout.write("\n".join(asyncio.run(fill(sys.argv[1], sys.argv[2], int(sys.argv[3])))) + "\n")

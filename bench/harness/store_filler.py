"""Fills a SQLite store with copies of one response that is in it, each under an id of its own.

Through the store itself, in a process of its own: `python -m bench.harness.store_filler STORE ID COUNT` prints the ids.
"""

import asyncio
import sys
import time

from antiphon.ids import new_id
from antiphon.stores.base import End, NewResponse, StoredResponse
from antiphon.stores.sqlite import SqliteStore

TENANT = "default"
_AT_ONCE = 64  # so that they share commits
_TTL = 2_592_000.0


async def fill(file: str, response_id: str, count: int) -> list[str]:
    store = SqliteStore(file, _TTL)
    await store.open()
    try:
        model = await store.get(TENANT, response_id)
        assert model is not None
        made: list[str] = []
        while len(made) < count:
            made += await asyncio.gather(*(_copy(store, model) for _ in range(_AT_ONCE)))
        return made
    finally:
        await store.close()


async def _copy(store: SqliteStore, model: StoredResponse) -> str:
    response_id, now = new_id("resp"), time.time()
    old, new = (one.rpartition("_")[2].encode() for one in (model.id, response_id))
    request, response = (content.replace(old, new) for content in (model.request, model.response))
    row = NewResponse(id=response_id, status="in_progress", created=now, request=request, response=response)
    assert model.tape is not None
    await store.finish(
        TENANT,
        End(
            id=response_id,
            fence=0,
            status="completed",
            response=response,
            tape=model.tape,
            ended=now,
            expires=now + _TTL,
            new=row,
        ),
    )
    return response_id


if __name__ == "__main__":
    sys.stdout.write("\n".join(asyncio.run(fill(sys.argv[1], sys.argv[2], int(sys.argv[3])))) + "\n")

"""A process that writes responses to a SQLite file and reports each acknowledged write. The test kills it."""

import asyncio
import sys
from time import time

from antiphon.stores.base import Claim
from antiphon.stores.sqlite import SqliteStore
from antiphon.testing.rows.response_rows import TENANT, Clock, make_end, make_inserting_end, make_response

WRITERS = 8


async def main(path: str) -> None:
    store = SqliteStore(path, 3600.0)
    await store.open()
    clock = Clock()
    clock.now = time()

    async def write() -> None:
        while True:
            short, long = make_response(clock), make_response(clock)
            await store.finish(TENANT, make_inserting_end(clock, short))
            report("ended", short.id)
            await store.begin(TENANT, long, Claim("writer", time() + 60))
            report("begun", long.id)
            await store.append(TENANT, long.id, 1, 0, b"batch")
            report("appended", long.id)
            await store.finish(TENANT, make_end(clock, long))
            report("ended", long.id)

    await asyncio.gather(*(write() for _ in range(WRITERS)))


def report(step: str, name: str) -> None:
    sys.stdout.write(f"{step} {name}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))

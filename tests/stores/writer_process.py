"""A process that writes responses into a file and says which of them are safe. It is there to be killed."""

import asyncio
import sys
from time import time

from antiphon.stores.base import Claim
from antiphon.stores.sqlite import SqliteStore
from tests.stores.rows import TENANT, Clock, end, response, whole

AT_ONCE = 8


async def main(path: str) -> None:
    store = SqliteStore(path, 3600.0)
    await store.open()
    clock = Clock()
    clock.now = time()

    async def write() -> None:
        while True:
            short, long = response(clock), response(clock)
            await store.finish(TENANT, whole(clock, short))
            say("ended", short.id)
            await store.begin(TENANT, long, Claim("writer", time() + 60))
            say("begun", long.id)
            await store.append(TENANT, long.id, 1, 0, b"batch")
            say("appended", long.id)
            await store.finish(TENANT, end(clock, long))
            say("ended", long.id)

    await asyncio.gather(*(write() for _ in range(AT_ONCE)))


def say(what: str, name: str) -> None:
    sys.stdout.write(f"{what} {name}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))

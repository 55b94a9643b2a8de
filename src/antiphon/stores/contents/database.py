"""Content in the database of the store, in blocks. For replicas without a shared file system, and in memory."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack

from antiphon.errors import Unavailable
from antiphon.stores.contents.base import MAX_KEYS, regroup
from antiphon.stores.sql.store import Store

BLOCK_BYTES = 256 * 1024


class DatabaseContents:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def open(self) -> None:
        """The store is opened by its owner."""

    async def write(self, key: str, pieces: AsyncIterator[bytes]) -> None:
        number = 0
        async with AsyncExitStack() as cleanup:
            cleanup.push_async_callback(self.delete, [key])
            async for block in regroup(pieces, BLOCK_BYTES):
                await self._store.add_block(key, number, block)
                number += 1
            cleanup.pop_all()

    async def read(self, key: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        while start < end:
            number, offset = divmod(start, BLOCK_BYTES)
            block = await self._store.block(key, number)
            piece = (block or b"")[offset : offset + end - start]
            if not piece:
                raise Unavailable("The content of the file is missing in the store.", retry_after=5.0)
            start += len(piece)
            yield piece

    async def delete(self, keys: Sequence[str]) -> None:
        await self._store.delete_contents(keys)

    async def list_keys(self, before: float) -> AsyncIterator[list[str]]:
        after = ""
        while page := await self._store.page_contents(before, after, MAX_KEYS):
            yield page
            after = page[-1]

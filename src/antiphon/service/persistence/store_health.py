"""Asks the store every second whether it is there, and every minute how much it has. Who wants to know reads the last
answer: nobody waits for a store that hangs, and it is asked once at a time.
"""

import asyncio

from antiphon.errors import AntiphonError
from antiphon.stores.base import Store

_EVERY = 1.0  # seconds between an answer and the next question
_PATIENCE = 2.0  # seconds without an answer
_SIZE_EVERY = 60


class StoreProbe:
    def __init__(self, store: Store, every: float = _EVERY, patience: float = _PATIENCE) -> None:
        self._store = store
        self._every = every
        self._patience = patience
        self._answers = True
        self.name = store.name
        self.size = (0, 0)  # bytes and responses

    def healthy(self) -> bool:
        """Does it answer, and did the last operation get through?"""
        return self._answers and self._store.healthy()

    async def attend(self) -> None:
        """Until cancelled."""
        rounds = 0
        while True:
            asked = asyncio.ensure_future(self._ask(rounds % _SIZE_EVERY == 0))
            rounds += 1
            try:
                if not (await asyncio.wait({asked}, timeout=self._patience))[0]:
                    self._answers = False
                self._answers = await asked
            finally:
                asked.cancel()
            await asyncio.sleep(self._every)

    async def _ask(self, measures: bool) -> bool:
        try:
            await self._store.has_api_keys()
            if measures:
                sizes = (await self._store.tenants()).values()
                self.size = sum(size for _, size in sizes), sum(entries for entries, _ in sizes)
        except AntiphonError:
            return False
        return True

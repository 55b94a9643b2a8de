"""Cancelling a background response, wherever it runs: it ends once, and every caller is told how.

One that runs here is stopped here. One that waits, or whose owner is elsewhere or dead, is taken over and ended; its
former owner hears of it, asks the store and stops.
"""

import asyncio
from collections.abc import Callable
from weakref import WeakValueDictionary

from antiphon.core.emitter.fold import Ending
from antiphon.errors import Busy, NotCancellable, ServerRestarted
from antiphon.service.persistence.live_writer import left_behind
from antiphon.service.persistence.response_writer import Keeper
from antiphon.service.persistence.stored_responses import unknown
from antiphon.service.runs.detached_run import Session
from antiphon.service.runs.detached_runs import Sessions
from antiphon.service.runs.orphans import end_remains
from antiphon.stores.base import RUNNING, StoredResponse

_TRIES = 10  # at a response that others end or cancel in the same moment


class Cancelling:
    def __init__(self, keeper: Keeper, sessions: Sessions, clock: Callable[[], float]) -> None:
        self._keeper = keeper
        self._sessions = sessions
        self._clock = clock
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def cancel(self, tenant: str, response_id: str) -> bytes:
        # Whoever takes over an id fences off who did so before: one at a time.
        async with self._locks.setdefault(response_id, asyncio.Lock()):
            running = self._sessions.find(tenant, response_id)
            if isinstance(running, Session) and running.opening.background:
                running.cancel()
                await running.finished()
            for _ in range(_TRIES):
                row = await self._row(tenant, response_id)
                if row.status not in RUNNING:
                    return row.response
                try:
                    if (body := await self._ended(tenant, response_id)) is not None:
                        return body
                except ServerRestarted:
                    continue  # somebody else was faster
        raise Busy("This response is being ended by others. Try again.", retry_after=1.0)

    async def _row(self, tenant: str, response_id: str) -> StoredResponse:
        row = await self._keeper.store.get(tenant, response_id)
        if row is None:
            raise unknown(response_id)
        if not row.background:
            raise NotCancellable("Only a response that was created with `background: true` can be cancelled.")
        return row

    async def _ended(self, tenant: str, response_id: str) -> bytes | None:
        """None if it has ended by itself."""
        keeper = self._keeper
        row = await keeper.store.take(tenant, response_id, keeper.claim())
        if row is None:
            return None
        kept = await keeper.adopt(tenant, row)
        try:
            left = await left_behind(keeper.live, tenant, response_id)
            return await end_remains(kept, row, left, Ending(status="cancelled"), self._clock())
        finally:
            kept.forget()

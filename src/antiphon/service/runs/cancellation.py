"""Cancels background responses wherever they run: each ends once, and every caller gets the final state.

A response that runs here is stopped here. One that is queued, or whose owner is another or a dead process, is taken
over and ended; its former owner is notified, reads the store and stops.
"""

import asyncio
from collections.abc import Callable
from weakref import WeakValueDictionary

from antiphon.core.emitter.fold import ResponseEnding
from antiphon.errors import Busy, NotCancellable, ServerRestarted
from antiphon.service.persistence.live_writer import read_prior_log
from antiphon.service.persistence.response_writer import ResponseWriter
from antiphon.service.persistence.stored_responses import unknown_response_error
from antiphon.service.runs.detached_run import DetachedRun
from antiphon.service.runs.detached_runs import DetachedRuns
from antiphon.service.runs.orphans import end_orphan
from antiphon.stores.base import RUNNING_STATUSES, StoredResponse

_MAX_ATTEMPTS = 10  # attempts while other processes end or cancel the same response


class Cancellation:
    """Cancels one response at a time per id."""

    def __init__(self, writer: ResponseWriter, detached_runs: DetachedRuns, clock: Callable[[], float]) -> None:
        self._writer = writer
        self._detached_runs = detached_runs
        self._clock = clock
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def cancel(self, tenant: str, response_id: str) -> bytes:
        # Taking over an id fences off earlier takeovers, so serialise them.
        async with self._locks.setdefault(response_id, asyncio.Lock()):
            active = self._detached_runs.find(tenant, response_id)
            if isinstance(active, DetachedRun) and active.opening.background:
                active.cancel()
                await active.wait_finished()
            for _ in range(_MAX_ATTEMPTS):
                row = await self._load_row(tenant, response_id)
                if row.status not in RUNNING_STATUSES:
                    return row.response
                try:
                    if (body := await self._take_over_and_end(tenant, response_id)) is not None:
                        return body
                except ServerRestarted:
                    continue  # another process was faster
        raise Busy("Other requests are ending this response. Try again.", retry_after=1.0)

    async def _load_row(self, tenant: str, response_id: str) -> StoredResponse:
        row = await self._writer.store.get(tenant, response_id)
        if row is None:
            raise unknown_response_error(response_id)
        if not row.background:
            raise NotCancellable("Only a response that was created with `background: true` can be cancelled.")
        return row

    async def _take_over_and_end(self, tenant: str, response_id: str) -> bytes | None:
        """Take the response over and end it. Returns None if it has ended by itself."""
        writer = self._writer
        row = await writer.store.take(tenant, response_id, writer.leases.make_claim())
        if row is None:
            return None
        owned_row = await writer.adopt(tenant, row)
        try:
            previous = await read_prior_log(writer.live, tenant, response_id)
            return await end_orphan(owned_row, row, previous, ResponseEnding(status="cancelled"), self._clock())
        finally:
            owned_row.forget()

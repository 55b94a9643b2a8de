"""Rows of the responses that this process runs: written at the start, taken over from other processes, or written once.

begin ──▶ OwnedRow (owned_row.py), whose lease is renewed (row_leases.py)
adopt ──▶    │
defer ──▶    └── end, release, or lost
"""

import asyncio
from time import time

from msgspec.structs import replace

from antiphon.errors import NotFound
from antiphon.protocol.decoding.codec import DecodedRequest, encode
from antiphon.protocol.types.response import Response
from antiphon.service.persistence.background_tasks import BackgroundTasks
from antiphon.service.persistence.owned_row import OnStored, OwnedRow, RowStorage
from antiphon.service.persistence.retention import RetentionSettings, RetentionSweeper
from antiphon.service.persistence.row_leases import RowLeases
from antiphon.service.persistence.rows import is_slow_to_encode, make_row
from antiphon.service.persistence.stored_request import encode_request, render_response
from antiphon.stores.base import IdempotencyKey, Store, StoredResponse
from antiphon.stores.live.base import LiveLog


class ResponseWriter:
    """Writes and leases the rows of this process.

    `on_stored` is called after each end that was written, to fill the history cache (`HistoryLoader.remember`).
    """

    def __init__(
        self, store: Store, live: LiveLog, settings: RetentionSettings, on_stored: OnStored | None = None
    ) -> None:
        self.store = store
        self.live = live
        self.settings = settings
        self.leases = RowLeases(store, settings.lease)
        self.sweeper = RetentionSweeper(store, settings.bounds, settings.sweep_seconds, settings.tenant_bytes)
        self._tasks = BackgroundTasks()
        self._storage = RowStorage(
            store=store,
            live=live,
            leases=self.leases,
            sweeper=self.sweeper,
            tasks=self._tasks,
            ttl=settings.ttl,
            on_stored=on_stored,
        )

    async def begin(
        self,
        tenant: str,
        decoded: DecodedRequest,
        response: Response,
        key: IdempotencyKey | None = None,
        is_chain_root: bool = False,
    ) -> OwnedRow | str:
        """Write the row with its current status. Returns the id of the response that already uses the key, if any.

        `is_chain_root`: the previous response is not in the store. A background response counts against the tenant's
        limit and gets a deadline. Raises what `Store.begin` raises.
        """
        settings = self.settings
        request = (
            await asyncio.to_thread(encode_request, decoded) if is_slow_to_encode(decoded) else encode_request(decoded)
        )
        new = make_row(response, encode(response), request, time(), settings.background_timeout)
        if is_chain_root:
            new = replace(new, previous=None)
        limit = settings.get_background_limit(tenant) if response.background else None
        other = await self.store.begin(tenant, new, self.leases.make_claim(), key, limit)
        if other is not None:
            return other
        owned_row = OwnedRow(self._storage, tenant, response.id, 1, decoded, len(request), new.created)
        self.leases.track(owned_row)
        return owned_row

    async def find_by_key(self, tenant: str, key: IdempotencyKey) -> str | None:
        """Return the id of the response with this idempotency key."""
        return await self.store.keyed(tenant, key)

    async def load_body(self, tenant: str, response_id: str) -> bytes:
        """Return the JSON of a response, finished or not."""
        row = await self.store.get(tenant, response_id)
        if row is None:
            raise NotFound(f"There is no response {response_id!r}.")
        return render_response(row)

    def defer(self, tenant: str, decoded: DecodedRequest, response: Response) -> OwnedRow:
        """Return a row that is written once, at its end, for a response that cannot be observed before."""
        return OwnedRow(self._storage, tenant, response.id, 0, decoded, 0, time())

    async def adopt(self, tenant: str, row: StoredResponse) -> OwnedRow:
        """Take over a row that was claimed or taken, and fence off its former owner from the live log."""
        await self.live.fence(tenant, row.id, row.fence)
        owned_row = OwnedRow(
            self._storage, tenant, row.id, row.fence, row.request, len(row.request), row.created, row.charged_key
        )
        self.leases.track(owned_row)
        return owned_row

    async def run_forever(self) -> None:
        """Send heartbeats and sweep the store until cancelled. Store failures are logged and retried."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.leases.run_forever())
            group.create_task(self.sweeper.run_forever())

    async def drain(self, seconds: float) -> None:
        """Wait for pending writes. Writes that take longer are cancelled, and the next scan ends their rows."""
        await self._tasks.close(seconds)

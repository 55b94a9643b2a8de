"""Leases of the rows that this process owns. A heartbeat renews them, so that no other process takes the rows over.

Only tracked rows are renewed. A row whose start or end failed is untracked: its lease expires, and the next scan ends
it.
"""

import asyncio
import logging
from time import time
from typing import Protocol

from antiphon.errors import AntiphonError
from antiphon.ids import new_id
from antiphon.stores.base import Claim, Store

log = logging.getLogger(__name__)


class LeasedRow(Protocol):
    """A row whose lease is renewed."""

    @property
    def id(self) -> str: ...

    def mark_lost(self) -> None:
        """Called when another process owns the row, or when it was deleted."""


class RowLeases:
    """Tracks the rows of this process and renews their leases of so many seconds."""

    def __init__(self, store: Store, seconds: float) -> None:
        self.owner = new_id("item")
        self._store = store
        self._seconds = seconds
        self._rows: dict[str, LeasedRow] = {}
        self.lost_count = 0  # rows taken over by other processes, or deleted

    @property
    def held_count(self) -> int:
        """Number of rows with a lease of this process."""
        return len(self._rows)

    def make_claim(self) -> Claim:
        """Return a claim of this process for the length of a lease, for `Store.claim` and `Store.take`."""
        return Claim(self.owner, time() + self._seconds)

    def track(self, row: LeasedRow) -> None:
        """Start renewing the row."""
        self._rows[row.id] = row

    def untrack(self, row: LeasedRow) -> None:
        """Stop renewing the row."""
        if self._rows.get(row.id) is row:
            del self._rows[row.id]

    async def run_forever(self) -> None:
        """Send heartbeats until cancelled. Store failures are logged and retried."""
        while True:
            await asyncio.sleep(self._seconds / 3)
            try:
                await self.renew()
            except AntiphonError as error:
                log.warning("lease renewal failed: %s", error)

    async def renew(self, force: bool = False) -> None:
        """Send one heartbeat and mark rows that were lost. `force`: also if no row is tracked."""
        tracked = dict(self._rows)
        if not tracked and not force:
            return
        alive = await self._store.renew(self.make_claim(), tracked.keys())
        for response_id, row in tracked.items():
            if response_id not in alive and self._rows.get(response_id) is row:
                row.mark_lost()

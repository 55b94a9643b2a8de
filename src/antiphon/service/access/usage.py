"""The usage of each API key, per day: counted in memory, and added to the store every few seconds.

A crash loses what was not added yet, and a write whose reply was lost may be added twice: these are figures for
operators, not for bills.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import time

from antiphon.core.prompt import TokenCounts
from antiphon.errors import AntiphonError
from antiphon.observe.logs import LOG_CONTEXT
from antiphon.stores.base import UsageRow
from antiphon.stores.sql.store import Store

log = logging.getLogger(__name__)

DAY_SECONDS = 86_400
_FLUSH_SECONDS = 10.0
_KEPT_DAYS = 400
_MAX_PENDING = 10_000  # keys and days that wait for the store; the usage of more is lost


class UsageMeter:
    def __init__(self, store: Store, clock: Callable[[], float] = time) -> None:
        self._store = store
        self._clock = clock
        self._pending: dict[tuple[int, str, str], list[int]] = {}

    def record(self, counts: TokenCounts) -> None:
        """Count an ended run for the key of the current task."""
        context = LOG_CONTEXT.get()
        if context is not None and context.tenant:
            name = (int(self._clock()) // DAY_SECONDS, context.tenant, context.key)
            self._add(name, (1, counts.input_tokens, counts.cached_tokens, counts.output_tokens))

    async def run_forever(self) -> None:
        """Write until cancelled. Failures are logged, and what was not written waits for the next time."""
        while True:
            await asyncio.sleep(_FLUSH_SECONDS)
            await self.flush()

    async def flush(self) -> None:
        pending, self._pending = self._pending, {}
        if not pending:
            return
        rows = [UsageRow(*name, *amounts) for name, amounts in sorted(pending.items())]
        try:
            await self._store.add_usage(rows, int(self._clock()) // DAY_SECONDS - _KEPT_DAYS)
        except AntiphonError as error:
            log.warning("usage could not be written: %s", error)
            for name, amounts in pending.items():
                self._add(name, amounts)

    def _add(self, name: tuple[int, str, str], amounts: Sequence[int]) -> None:
        if name in self._pending or len(self._pending) < _MAX_PENDING:
            sums = self._pending.setdefault(name, [0] * len(amounts))
            sums[:] = [total + amount for total, amount in zip(sums, amounts, strict=True)]

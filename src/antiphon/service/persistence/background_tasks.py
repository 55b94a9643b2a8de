"""Tasks that somebody holds: none is forgotten, all are waited for, and a defect in one is told to the log."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger(__name__)


class Tasks:
    def __init__(self) -> None:
        self._held: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._held)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._held.add(task)
        task.add_done_callback(self._done)
        return task

    async def settled(self) -> None:
        """Wait until there is none; nothing is cancelled, not even with who waits."""
        while self._held:
            await asyncio.wait(self._held)

    async def close(self, grace: float = 0.0) -> None:
        """Cancel what takes longer, and wait for it."""
        if self._held and grace:
            await asyncio.wait(self._held, timeout=grace)
        for task in self._held:
            task.cancel()
        await self.settled()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._held.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task failed by a defect", exc_info=error)

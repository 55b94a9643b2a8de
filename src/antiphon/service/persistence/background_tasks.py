"""Background tasks: references are held until they end, shutdown waits for them, and unexpected errors are logged."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger(__name__)


class BackgroundTasks:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    async def wait_all(self) -> None:
        """Wait until no task remains. Cancelling the waiter does not cancel the tasks."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self, grace: float = 0.0) -> None:
        """Wait for up to `grace` seconds, then cancel the remaining tasks and wait for them."""
        if self._tasks and grace:
            await asyncio.wait(self._tasks, timeout=grace)
        for task in self._tasks:
            task.cancel()
        await self.wait_all()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background task failed", exc_info=error)

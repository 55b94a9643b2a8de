"""Known models that are fetched when somebody first asks for them: once, whoever asks, and on if they leave.

How far it has come is told in the log, since nobody sits before a bar by then.
"""

import asyncio
import logging
from collections.abc import Callable
from time import monotonic
from typing import Generic, TypeVar

from antiphon.errors import StartupError, Unavailable

T = TypeVar("T")

log = logging.getLogger(__name__)

TOLD_EVERY = 5.0  # seconds
AGAIN_AFTER = 30.0  # seconds until it may be tried once more


class Logged:
    """Progress, as lines of the log."""

    def __init__(self) -> None:
        self._task = ""
        self._ended = False
        self._next = 0.0

    def __call__(self, task: str, done: int, whole: int) -> None:
        ended, now = done >= whole, monotonic()
        if task == self._task and (self._ended or (now < self._next and not ended)):
            return
        self._task, self._ended, self._next = task, ended, now + TOLD_EVERY
        log.info("%s: %d %%", task, 100 * done // max(whole, 1))


class Fetching(Generic[T]):
    """`get` blocks until a model is there, and runs in a thread; what it gives is handed to `got` before anybody."""

    def __init__(self, get: Callable[[str], T], got: Callable[[str, T], None]) -> None:
        self._get = get
        self._got = got
        self._tasks: dict[str, asyncio.Task[T]] = {}

    async def wait(self, name: str, seconds: float) -> T:
        """Unavailable if it cannot be had, or takes longer than that."""
        task = self._tasks.get(name)
        if task is None:
            task = self._tasks[name] = asyncio.create_task(self._fetch(name), name=f"fetch of {name}")
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(task)
        except TimeoutError:
            raise Unavailable(f"The model {name} is still being fetched.", retry_after=AGAIN_AFTER) from None
        except StartupError as error:
            raise Unavailable(str(error), retry_after=AGAIN_AFTER) from None

    async def close(self) -> None:
        """`get` must have been told to stop by other means: a thread cannot be cancelled."""
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _fetch(self, name: str) -> T:
        try:
            model = await asyncio.to_thread(self._get, name)
            self._got(name, model)
            return model
        except StartupError as error:
            log.warning("%s could not be fetched: %s", name, error)
            raise
        finally:
            del self._tasks[name]

"""A store that records its operations, and fails or blocks where a test requires it."""

import asyncio
from collections.abc import Callable, Coroutine
from time import time
from typing import Any, cast

from antiphon.errors import Unavailable
from antiphon.stores.sql.store import Store
from antiphon.stores.sqlite import SqliteStore

_UNCOUNTED = frozenset({"open", "close", "is_healthy", "name"})


class InstrumentedStore:
    """Wraps a store in memory. `calls` are the names of all operations so far in order, `results` their results.

    `fail_at`: numbers of the operations, from 0, that fail; with `fail_after_call` they are executed, and only their
    result is lost. `gates`: an operation of that name waits until its event is set. `clock_offset`: seconds by which
    the clock of the store is fast.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.results: list[tuple[str, Any]] = []
        self.fail_at = range(0)
        self.fail_all = False
        self.fail_after_call = False
        self.gates: dict[str, asyncio.Event] = {}
        self._called = asyncio.Event()
        self.clock_offset = 0.0
        self._store = SqliteStore(":memory:", 3600.0, clock=lambda: time() + self.clock_offset)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name in _UNCOUNTED:
            return found

        async def operation(*args: Any, **kwargs: Any) -> Any:
            return await self._call(name, lambda: found(*args, **kwargs))

        return operation

    async def _call(self, name: str, operation: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        number = len(self.calls)
        self.calls.append(name)
        self._called.set()
        if name in self.gates:
            await self.gates[name].wait()
        fails = self.fail_all or number in self.fail_at
        if fails and not self.fail_after_call:
            raise Unavailable("The store does not answer.", retry_after=1.0)
        result = await operation()
        self.results.append((name, result))
        if fails:
            raise Unavailable("The store does not answer.", retry_after=1.0)
        return result

    async def wait_for_call(self, name: str, times: int = 1) -> None:
        """Wait until the operation was called this many times."""
        async with asyncio.timeout(30):
            while self.calls.count(name) < times:
                self._called.clear()
                await self._called.wait()

    def as_store(self) -> Store:
        return cast(Store, self)

"""A store that counts what it is asked, and fails or lies in wait where a test wants it to."""

import asyncio
from collections.abc import Callable, Coroutine
from time import time
from typing import Any, cast

from antiphon.errors import Unavailable
from antiphon.stores.base import Store
from antiphon.stores.sqlite import SqliteStore

_PLAIN = frozenset({"open", "close", "healthy", "name"})


class Watched:
    """Over a store in memory. `calls` are the names of all operations so far, in their order, `answers` what they gave.

    `fail_at`: the numbers of the operations, from 0, that do not get through; with `late` they are done, and yet nobody
    hears of it. `gates`: an operation of that name waits until its event is set. `ahead`: how far, in seconds, its
    clock is.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.answers: list[tuple[str, Any]] = []
        self.fail_at = range(0)
        self.fail_all = False
        self.late = False
        self.gates: dict[str, asyncio.Event] = {}
        self._called = asyncio.Event()
        self.ahead = 0.0
        self._store = SqliteStore(":memory:", 3600.0, clock=lambda: time() + self.ahead)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name in _PLAIN:
            return found

        async def operation(*given: Any, **more: Any) -> Any:
            return await self._carry_out(name, lambda: found(*given, **more))

        return operation

    async def _carry_out(self, name: str, operation: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        number = len(self.calls)
        self.calls.append(name)
        self._called.set()
        if name in self.gates:
            await self.gates[name].wait()
        fails = self.fail_all or number in self.fail_at
        if fails and not self.late:
            raise Unavailable("The store does not answer.", retry_after=1.0)
        given = await operation()
        self.answers.append((name, given))
        if fails:
            raise Unavailable("The store does not answer.", retry_after=1.0)
        return given

    async def until(self, name: str, times: int = 1) -> None:
        """It was asked for this as often as that."""
        async with asyncio.timeout(30):
            while self.calls.count(name) < times:
                self._called.clear()
                await self._called.wait()

    def as_store(self) -> Store:
        return cast(Store, self)

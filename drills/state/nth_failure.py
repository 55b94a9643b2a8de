"""One scenario with the n-th operation of the store failing, for every n until it passes untouched.

Whichever it is: an answer or an error of the right shape, never a hang; whoever was told an id finds it; everything
ends once, and the engine is left with nothing to do.
"""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, cast

from antiphon.engines.fake import FakeEngine
from antiphon.errors import Unavailable
from antiphon.stores.base import Store
from antiphon.wiring import build_app, build_engine, build_store
from drills.harness.findings import Findings
from drills.harness.in_process import LocalClient
from drills.harness.kill_points import OPERATIONS
from drills.harness.scenario import Scenario
from drills.harness.server import configured

LEASE = 0.3
_SCENARIO_SECONDS = 60.0
_IDLE_SECONDS = 5.0
_SCRIPT = Path(__file__).with_name("replays.toml")
_CONFIG = {
    "store": "memory",
    "lease_seconds": LEASE,
    "fake_script": str(_SCRIPT),
    "idle_timeout": 2.0,  # who falls silent, and whom nobody cancels, ends by this
    "ping_interval": 0.0,
    "shutdown_grace": 0.1,
}

Way = Literal["instead", "afterwards", "for a while"]
WAYS: tuple[Way, ...] = ("instead", "afterwards", "for a while")
_WHILE = 6  # operations


class Failing:
    """Stands before a store; from its n-th operation on, one or a few of them fail, before or after they are done."""

    def __init__(self, inner: Any, nth: int | None, way: Way) -> None:
        self._inner = inner
        self._way = way
        self._planned = set() if nth is None else set(range(nth, nth + (_WHILE if way == "for a while" else 1)))
        self._due: set[int] = set()
        self._numbers = itertools.count(1)
        self.calls = 0
        self.failed: list[str] = []
        self.begun: list[str] = []

    def arm(self) -> None:
        """From here on it counts: a server whose store fails while it opens does not start."""
        self._due, self._numbers = self._planned, itertools.count(1)

    def heal(self) -> None:
        self._due = set()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in OPERATIONS:
            return found

        async def call(*given: Any, **named: Any) -> Any:
            self.calls = number = next(self._numbers)
            if name == "begin":
                self.begun.append(given[1].id)
            return await self._call(number in self._due, name, lambda: found(*given, **named))

        return call

    async def _call(self, due: bool, name: str, work: Callable[[], Awaitable[Any]]) -> Any:
        if not due:
            return await work()
        self.failed.append(name)
        if self._way == "afterwards":
            await work()
        raise Unavailable("The store does not answer.", retry_after=1.0)


@asynccontextmanager
async def served(nth: int | None, way: Way) -> AsyncIterator[tuple[LocalClient, Failing, FakeEngine]]:
    """An application whose store fails at the n-th operation; None: never."""
    config = configured(_CONFIG)
    engine = cast(FakeEngine, build_engine(config))
    store = Failing(build_store(config), nth, way)
    app = build_app(config, engine, store=cast(Store, store))
    await app.lifecycle.open()
    store.arm()
    try:
        yield LocalClient(app), store, engine
    finally:
        store.heal()
        await app.lifecycle.close()


async def nth_failure(step: int, findings: Findings) -> None:
    """Every `step`-th n, in every way."""
    logging.getLogger("antiphon").setLevel(logging.CRITICAL)
    for way in WAYS:
        for nth in itertools.count(1, step):
            failed = await trial(nth, way, findings)
            findings.tried()
            if not failed:
                findings.say(f"{way}: untouched at {nth}")
                break


async def trial(nth: int | None, way: Way, findings: Findings) -> list[str]:
    """Gives the operations that failed."""
    failed: list[str] = []
    try:
        async with asyncio.timeout(_SCENARIO_SECONDS), served(nth, way) as (client, store, engine):
            scenario = Scenario(client)
            await scenario.play()
            failed = store.failed
            store.heal()
            wrong = [*scenario.wrong, *await scenario.judge(store.begun), *await _idle(engine)]
    except TimeoutError:
        wrong = ["it hangs"]
    findings.all_violated(f"operation {nth} ({', '.join(failed)}) failed {way}: {sentence}" for sentence in wrong)
    return failed


async def _idle(engine: FakeEngine) -> list[str]:
    for _ in range(int(_IDLE_SECONDS / 0.01)):
        if not engine.running:
            return []
        await asyncio.sleep(0.01)
    return [f"the engine still works on {engine.running} requests"]

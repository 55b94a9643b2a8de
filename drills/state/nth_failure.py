"""One scenario in which the n-th store operation fails, for every n until the scenario ends before it.

In every case each request gets an answer or a well-formed error in time, reported ids can be retrieved, every response
ends once, and the engine has no work left.
"""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, cast

from antiphon.engines.factory import build_engine
from antiphon.engines.fake import FakeEngine
from antiphon.errors import Unavailable
from antiphon.stores.registry import make_store
from antiphon.stores.sql.store import Store
from antiphon.wiring import build_app
from drills.harness.findings import Findings
from drills.harness.in_process import LocalClient
from drills.harness.kill_points import OPERATIONS
from drills.harness.scenario import Scenario
from drills.harness.server import build_config

LEASE = 0.3
_SCENARIO_SECONDS = 60.0
_IDLE_SECONDS = 5.0
_SCRIPT = Path(__file__).with_name("replays.toml")
_CONFIG = {
    "store": "memory",
    "lease_seconds": LEASE,
    "fake_script": str(_SCRIPT),
    "idle_timeout": 2.0,  # ends replies that stay silent and are not cancelled
    "ping_interval": 0.0,
    "shutdown_grace": 0.1,
}

FailureMode = Literal["instead", "afterwards", "for a while"]
FAILURE_MODES: tuple[FailureMode, ...] = ("instead", "afterwards", "for a while")
_FAILURES_IN_A_ROW = 6  # number of operations that fail in the mode "for a while"


class FailingStore:
    """Wraps a store; from its n-th operation on, one or several operations fail, before or after they are executed."""

    def __init__(self, inner: Any, nth: int | None, mode: FailureMode) -> None:
        self._inner = inner
        self._mode = mode
        self._planned = (
            set() if nth is None else set(range(nth, nth + (_FAILURES_IN_A_ROW if mode == "for a while" else 1)))
        )
        self._due: set[int] = set()
        self._numbers = itertools.count(1)
        self.calls = 0
        self.failed: list[str] = []
        self.begun_ids: list[str] = []

    def arm(self) -> None:
        """Start counting here: a server whose store fails during `open` does not start."""
        self._due, self._numbers = self._planned, itertools.count(1)

    def heal(self) -> None:
        self._due = set()

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        if name not in OPERATIONS:
            return attribute

        async def call(*args: Any, **kwargs: Any) -> Any:
            self.calls = number = next(self._numbers)
            if name == "begin":
                self.begun_ids.append(args[1].id)
            return await self._call(number in self._due, name, lambda: attribute(*args, **kwargs))

        return call

    async def _call(self, due: bool, name: str, operation: Callable[[], Awaitable[Any]]) -> Any:
        if not due:
            return await operation()
        self.failed.append(name)
        if self._mode == "afterwards":
            await operation()
        raise Unavailable("The store does not answer.", retry_after=1.0)


@asynccontextmanager
async def open_server(
    nth: int | None, mode: FailureMode
) -> AsyncIterator[tuple[LocalClient, FailingStore, FakeEngine]]:
    """Open an application whose store fails at the n-th operation; None: never."""
    config = build_config(_CONFIG)
    engine = cast(FakeEngine, build_engine(config))
    store = FailingStore(make_store(config.storage.store_location, config.storage.store_ttl), nth, mode)
    app = build_app(config, engine, store=cast(Store, store))
    await app.lifecycle.open()
    store.arm()
    try:
        yield LocalClient(app), store, engine
    finally:
        store.heal()
        await app.lifecycle.close()


async def nth_failure(step: int, findings: Findings) -> None:
    """Run every `step`-th n in every failure mode."""
    logging.getLogger("antiphon").setLevel(logging.CRITICAL)
    for mode in FAILURE_MODES:
        for nth in itertools.count(1, step):
            failed = await run_trial(nth, mode, findings)
            findings.add_trials()
            if not failed:
                findings.print_line(f"{mode}: no failure at n = {nth}")
                break


async def run_trial(nth: int | None, mode: FailureMode, findings: Findings) -> list[str]:
    """Run one scenario and return the names of the operations that failed."""
    failed: list[str] = []
    try:
        async with asyncio.timeout(_SCENARIO_SECONDS), open_server(nth, mode) as (client, store, engine):
            scenario = Scenario(client)
            await scenario.play()
            failed = store.failed
            store.heal()
            violations = [
                *scenario.violations,
                *await scenario.verify(store.begun_ids),
                *await _wait_until_idle(engine),
            ]
    except TimeoutError:
        violations = ["the scenario timed out"]
    findings.add_violations(
        f"operation {nth} ({', '.join(failed)}), mode '{mode}': {sentence}" for sentence in violations
    )
    return failed


async def _wait_until_idle(engine: FakeEngine) -> list[str]:
    for _ in range(int(_IDLE_SECONDS / 0.01)):
        if not engine.running:
            return []
        await asyncio.sleep(0.01)
    return [f"the engine still runs {engine.running} requests"]

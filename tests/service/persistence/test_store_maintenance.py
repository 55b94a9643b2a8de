"""Store health is probed in the background: /health and /ready respond at once even while the store hangs."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import pytest

from antiphon.engines.fake import FakeEngine
from antiphon.engines.fake.engine import FakeSettings
from antiphon.errors import Unavailable
from antiphon.service.persistence.store_maintenance import StoreProbe
from antiphon.stores.sql.operation import Operation
from antiphon.stores.sqlite import SqliteStore
from tests.api.app import ApiServer, run_api
from tests.support.asgi_client import call

pytestmark = pytest.mark.anyio
T = TypeVar("T")


class UnreliableStore(SqliteStore):
    """An in-memory store whose operations hang while `unblocked` is cleared and fail while `fails` is set."""

    def __init__(self) -> None:
        super().__init__(":memory:", 3600.0)
        self.unblocked = asyncio.Event()
        self.unblocked.set()
        self.fails = False
        self.operations = 0

    async def _run(self, make: Callable[[], Operation[T]], *, write: bool) -> T:
        self.operations += 1
        await self.unblocked.wait()
        if self.fails:
            raise Unavailable("The store is unavailable.", retry_after=1.0)
        return await super()._run(make, write=write)


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - the probe has no event for its state
            await asyncio.sleep(0.005)


async def test_the_probe_detects_a_hanging_or_failing_store_and_its_recovery() -> None:
    store = UnreliableStore()
    await store.open()
    probe = StoreProbe(store, interval=0.01, timeout=0.05)
    probing = asyncio.ensure_future(probe.run_forever())
    try:
        await wait_until(lambda: store.operations > 3 and probe.healthy())
        store.unblocked.clear()
        await wait_until(lambda: not probe.healthy())
        operations_before = store.operations
        await asyncio.sleep(0.2)
        assert store.operations <= operations_before + 1  # a hanging store is not probed again
        store.unblocked.set()
        await wait_until(probe.healthy)
        store.fails = True
        await wait_until(lambda: not probe.healthy())
        store.fails = False
        await wait_until(probe.healthy)
    finally:
        probing.cancel()
        with suppress(asyncio.CancelledError):
            await probing
        await store.close()


async def test_the_probe_measures_the_size_of_the_store() -> None:
    async with run_api() as server:
        await server.create()
        probe = server.app.lifecycle.components.probe  # type: ignore[attr-defined]  # set by build_app
        assert await probe._probe(True)
        size, responses = probe.size
        assert size > 100
        assert responses == 1


async def stream_forever(server: ApiServer) -> None:
    """Request streams in an endless loop, to load the event loop."""
    while True:
        await server.post("responses", {"model": "fake", "input": "hi", "stream": True, "store": False})


async def count_loop_turns(server: ApiServer, path: str) -> tuple[int, int]:
    """Return the turns of the event loop until the reply, and its status.

    Turns, unlike seconds, do not depend on how busy the machine is.
    """
    request, count = asyncio.ensure_future(call(server.app, "GET", path)), 0
    while not request.done():
        await asyncio.sleep(0)
        count += 1
    return count, (await request).status


@pytest.mark.shows("H.8")
async def test_health_and_ready_respond_immediately_while_the_loop_is_loaded_and_the_store_hangs() -> None:
    engine, store = FakeEngine(FakeSettings(tokens=300)), UnreliableStore()
    async with run_api(store, engine) as server:
        probe = server.app.lifecycle.components.probe  # type: ignore[attr-defined]  # set by build_app
        probe._patience = probe._every = 0.05
        load = [asyncio.ensure_future(stream_forever(server)) for _ in range(20)]
        stuck = asyncio.ensure_future(server.create())  # blocked by the store
        await wait_until(lambda: store.operations > 3)
        store.unblocked.clear()
        await wait_until(lambda: not probe.healthy())
        try:
            found = []
            for number in range(60):
                found.append(await count_loop_turns(server, "/health" if number % 2 else "/ready"))
                await asyncio.sleep(0.01)
        finally:
            store.unblocked.set()
            for task in (*load, stuck):
                task.cancel()
            await asyncio.wait([*load, stuck])
        assert {status for _, status in found[1::2]} == {200}
        assert {status for _, status in found[::2]} == {503}
        assert max(count for count, _ in found) <= 3

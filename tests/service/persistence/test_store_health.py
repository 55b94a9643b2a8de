"""Whether the store is there is known without asking it: /health and /ready answer whatever hangs."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import pytest

from antiphon.engines.fake import FakeEngine
from antiphon.engines.fake.engine import FakeSettings
from antiphon.errors import Unavailable
from antiphon.service.persistence.store_health import StoreProbe
from antiphon.stores.sql.operation import Operation
from antiphon.stores.sqlite import SqliteStore
from tests.api.app import Api, api
from tests.support.asgi_client import call

pytestmark = pytest.mark.anyio
T = TypeVar("T")


class Moody(SqliteStore):
    """A store in memory that hangs, or fails, as long as it is told to."""

    def __init__(self) -> None:
        super().__init__(":memory:", 3600.0)
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.fails = False
        self.asked = 0

    async def _do(self, make: Callable[[], Operation[T]], *, write: bool) -> T:
        self.asked += 1
        await self.goes_on.wait()
        if self.fails:
            raise Unavailable("The store is away.", retry_after=1.0)
        return await super()._do(make, write=write)


async def until(wanted: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not wanted():  # noqa: ASYNC110 - a probe says nothing about itself
            await asyncio.sleep(0.005)


async def test_one_that_hangs_or_fails_is_known_and_so_is_its_return() -> None:
    store = Moody()
    await store.open()
    probe = StoreProbe(store, every=0.01, patience=0.05)
    attending = asyncio.ensure_future(probe.attend())
    try:
        await until(lambda: store.asked > 3 and probe.healthy())
        store.goes_on.clear()
        await until(lambda: not probe.healthy())
        asked = store.asked
        await asyncio.sleep(0.2)
        assert store.asked <= asked + 1  # what hangs is not asked again and again
        store.goes_on.set()
        await until(probe.healthy)
        store.fails = True
        await until(lambda: not probe.healthy())
        store.fails = False
        await until(probe.healthy)
    finally:
        attending.cancel()
        with suppress(asyncio.CancelledError):
            await attending
        await store.close()


async def test_it_knows_how_much_there_is() -> None:
    async with api() as server:
        await server.create()
        probe = server.app.lifecycle.parts.probe  # type: ignore[attr-defined]  # as build_app makes it
        assert await probe._ask(True)
        size, responses = probe.size
        assert size > 100
        assert responses == 1


async def streaming(server: Api) -> None:
    """Somebody who is streamed to, again and again, as fast as can be."""
    while True:
        await server.post("responses", {"model": "fake", "input": "hi", "stream": True, "store": False})


async def turns(server: Api, path: str) -> tuple[int, int]:
    """Of the loop until there is an answer, however long each takes on a busy machine, and its status."""
    asked, count = asyncio.ensure_future(call(server.app, "GET", path)), 0
    while not asked.done():
        await asyncio.sleep(0)
        count += 1
    return count, (await asked).status


@pytest.mark.shows("H.8")
async def test_health_and_ready_answer_at_once_while_the_loop_is_loaded_and_the_store_hangs() -> None:
    engine, store = FakeEngine(FakeSettings(tokens=300)), Moody()
    async with api(store, engine) as server:
        probe = server.app.lifecycle.parts.probe  # type: ignore[attr-defined]  # as build_app makes it
        probe._patience = probe._every = 0.05
        load = [asyncio.ensure_future(streaming(server)) for _ in range(20)]
        stuck = asyncio.ensure_future(server.create())  # it waits for the store
        await until(lambda: store.asked > 3)
        store.goes_on.clear()
        await until(lambda: not probe.healthy())
        try:
            found = []
            for number in range(60):
                found.append(await turns(server, "/health" if number % 2 else "/ready"))
                await asyncio.sleep(0.01)
        finally:
            store.goes_on.set()
            for task in (*load, stuck):
                task.cancel()
            await asyncio.wait([*load, stuck])
        assert {status for _, status in found[1::2]} == {200}
        assert {status for _, status in found[::2]} == {503}
        assert max(count for count, _ in found) <= 3

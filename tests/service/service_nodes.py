"""Servers without a transport: everything that keeps, runs and follows responses, several of them on one store."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from time import time
from typing import Any, TypeVar

import msgspec
import pytest
from msgspec import Struct

from antiphon.agent.timeouts import Deadlines
from antiphon.agent.tool_loop import Bounds
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import Unavailable
from antiphon.limits import Limits
from antiphon.observe import Metrics
from antiphon.protocol.decoding.codec import decode_create
from antiphon.protocol.types.events import Created, Event
from antiphon.protocol.types.response import Response
from antiphon.service.encryption.keyring import Keyring, new_key
from antiphon.service.model_io.models import Models
from antiphon.service.persistence.history_loader import Past
from antiphon.service.persistence.response_writer import Keeper, Keeping
from antiphon.service.planning.planner import Planner, Terms
from antiphon.service.responses import Accepted, Responses
from antiphon.service.runs.accounting import Tally
from antiphon.service.runs.background import Jobs, JobSettings
from antiphon.service.runs.detached_runs import Sessions, SessionSettings
from antiphon.service.runs.follow import Following
from antiphon.service.runs.source import Source
from antiphon.service.tool_loop.approvals import Approvals
from antiphon.service.tool_loop.tool_outputs import ToolOutputs, ToolOutputSettings
from antiphon.service.tool_loop.toolkit import Toolkit
from antiphon.stores.base import Claim, Claimed, Key, Store
from antiphon.stores.live.base import Hear, LiveLog
from antiphon.stores.live.local import LocalLive
from antiphon.stores.live.postgres import PostgresLive
from antiphon.stores.live.redis import RedisLive
from antiphon.stores.postgres import PostgresStore
from antiphon.stores.sql.operation import Operation
from antiphon.stores.sql.store import SqlStore
from antiphon.stores.sqlite import SqliteStore
from antiphon.transport.streaming.sse import frames
from tests.service.example_tool import Shelf

T = TypeVar("T")
TENANT = "default"
_KEYS = Keyring([new_key()])  # servers that have one store share them
_decoder = msgspec.json.Decoder(Response)


class Wire(LocalLive):
    """A live log whose words reach every server of the test that is `connected`."""

    def __init__(self, store: Store, connected: list[Hear]) -> None:
        super().__init__(store)
        self._connected = connected
        self._own: Hear | None = None
        self._hear = self._all

    async def open(self, hear: Hear) -> None:
        self._own = hear
        self._connected.append(hear)

    async def close(self) -> None:
        self.cut()

    def cut(self) -> None:
        """No word reaches this server any more."""
        if self._own in self._connected:
            self._connected.remove(self._own)

    def _all(self, response_id: str) -> None:
        for hear in [*self._connected]:
            hear(response_id)


class Shaky(SqlStore):
    """A store that does not answer where a test says so: by the name of an operation, or the n-th of all."""

    def __init__(self, place: str, clock: Callable[[], float]) -> None:
        super().__init__(place, 1000.0, clock)  # type: ignore[arg-type, call-arg]  # of whom it is mixed with
        self.down: set[str] = set()
        self.done = 0
        self.fails_at: int | None = None
        self.started = asyncio.Event()  # something is in progress
        self.looked = asyncio.Event()  # for something to claim
        self.expects = asyncio.Event()  # somebody waits for what a client's tools give
        self.refused = asyncio.Event()  # something was not answered

    def __getattribute__(self, name: str) -> Any:
        if name != "down" and name in getattr(self, "down", ()):
            return self._refuse
        return super().__getattribute__(name)

    async def claim(self, claim: Claim, background: int, released: bool = False) -> list[Claimed]:
        claimed = await super().claim(claim, background, released)
        self.looked.set()
        return claimed

    async def start(self, tenant: str, response_id: str, fence: int) -> None:
        await super().start(tenant, response_id, fence)
        self.started.set()

    async def expect_outputs(self, tenant: str, response_id: str, fence: int, call_ids: Collection[str]) -> None:
        await super().expect_outputs(tenant, response_id, fence, call_ids)
        self.expects.set()

    async def _do(self, make: Callable[[], Operation[T]], *, write: bool) -> T:
        self.done += 1
        if self.done == self.fails_at:
            await self._refuse()
        return await super()._do(make, write=write)  # type: ignore[safe-super]  # as above

    async def _refuse(self, *values: object, **named: object) -> Any:
        self.refused.set()
        raise Unavailable("The store does not answer.", retry_after=1.0)


class ShakySqlite(Shaky, SqliteStore):
    pass


class ShakyPostgres(Shaky, PostgresStore):
    pass


class Ground(Struct, frozen=True):
    """What servers stand on: a store in memory or a PostgreSQL, and that store or a Redis for the live log."""

    postgres: str | None = None
    redis: str | None = None


class Options(Struct, frozen=True, kw_only=True):
    most: int = 2000
    keep_streams: float = 0.0
    lease: float = 15.0
    slots: int = 16
    attempts: int = 5
    timeout: float = 86_400.0
    room: int = 1000
    turns: int = 32
    seconds: float = 3600.0  # for all of a run


class House:
    """One server. `engine` is its own, so that a test sees who does the work."""

    def __init__(self, store: Shaky, live: LiveLog, options: Options, clock: Callable[[], float]) -> None:
        self.store, self.live = store, live
        self.engine = FakeEngine(FakeSettings(burst=1))
        lease = options.lease
        self.models = Models([self.engine], (), accept_any=False, queue=4)
        past = Past(store)
        keeping = Keeping(lease=lease, background_room=options.room, background_timeout=options.timeout)
        self.keeper = Keeper(store, live, keeping, past.remember)
        tally = Tally(Metrics("test"))
        settings = SessionSettings(most=options.most, keep_streams=options.keep_streams, lease=lease)
        self.sessions = Sessions(store, live, settings, tally.ended)
        self.shelf = Shelf()
        outputs = ToolOutputs(store, live, self.sessions.words, ToolOutputSettings())
        toolkit = Toolkit(None, [self.shelf], Approvals(store, 1000.0), outputs)
        terms = Terms(bounds=Bounds(turns=options.turns), deadlines=Deadlines(total=options.seconds))
        self.planner = Planner(self.models, past, terms, keyring=_KEYS, toolkit=toolkit)
        self.outputs = outputs
        self.following = Following(store, live, self.sessions)
        jobs = JobSettings(slots=options.slots, attempts=options.attempts, lease=lease)
        self.jobs = Jobs(self.keeper, self.planner, self.sessions, self.following, jobs, clock)
        self.responses = Responses(self.planner, self.keeper, self.sessions, self.following, self.jobs, tally)

    async def close(self) -> None:
        await self.jobs._tasks.close()
        await self.sessions.close()
        await self.keeper.drain(5.0)
        await self.live.close()

    def cut(self) -> None:
        """No word reaches it any more."""
        assert isinstance(self.live, Wire)
        self.live.cut()

    def die(self) -> None:
        """Like a server that was killed: it does nothing any more, and gives no sign of life."""
        for task in [*self.sessions._tasks._held, *self.jobs._tasks._held]:
            task.cancel()

    async def settled(self) -> None:
        """All that was taken up here has come to its end."""
        async with asyncio.timeout(30):
            await self.jobs._tasks.settled()
            await self.sessions.drained()

    async def create(self, key: Key | None = None, **body: Any) -> Accepted:
        body = {"model": "fake", "input": "hi", **body}
        return await self.responses.create(TENANT, decode_create(msgspec.json.encode(body), Limits()), key)

    async def background(self, **body: Any) -> str:
        """The id of a new one, without a stream."""
        accepted = await self.create(background=True, **body)
        assert accepted.given is not None
        return _decoder.decode(accepted.given).id

    async def streaming(self, **body: Any) -> "Listener":
        """Somebody who listens to a new one, and has heard that it was created."""
        accepted = await self.create(stream=True, **body)
        assert accepted.source is not None
        listener = Listener(accepted.source).start()
        await listener.until("response.created")
        return listener

    async def get(self, response_id: str) -> Response:
        row = await self.store.get(TENANT, response_id)
        assert row is not None
        response = _decoder.decode(row.response)
        response.status = row.status
        return response

    async def ended(self, response_id: str) -> Response:
        """Wait for it."""
        source = await self.following.replay(TENANT, response_id)
        await source.drive(lambda events: None)
        source.leave()
        return await self.get(response_id)

    async def heard(self, response_id: str, after: int = -1) -> list[Event]:
        return await heard(await self.following.replay(TENANT, response_id, after))


async def heard(source: Source) -> list[Event]:
    """All events, to the last."""
    listener = Listener(source)
    async with asyncio.timeout(30):
        await listener.drive()
    source.leave()
    return listener.events


class Listener:
    """Drives a source and can be waited for until it has heard something."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.events: list[Event] = []
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> "Listener":
        self._task = asyncio.get_running_loop().create_task(self.drive())
        return self

    async def drive(self) -> None:
        await self.source.drive(self._told)

    @property
    def id(self) -> str:
        first = self.events[0]
        assert isinstance(first, Created)
        return first.response.id

    async def until(self, kind: str) -> None:
        async with asyncio.timeout(30):
            while not any(event.type == kind for event in self.events):
                self._news.clear()
                await self._news.wait()

    async def all(self) -> list[Event]:
        assert self._task is not None
        async with asyncio.timeout(30):
            await self._task
        self.source.leave()
        return self.events

    async def go_away(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])
        self.source.leave()

    def _told(self, events: list[Event]) -> None:
        self.events += events
        self._news.set()


def types(events: Iterable[Event]) -> list[str]:
    return [event.type for event in events]


def wire(events: list[Event]) -> bytes:
    """As they go over the wire."""
    return frames(events) if events else b""


class Clock:
    """The time of all servers of a test; it can be put forward."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def __call__(self) -> float:
        return time() + self._ahead

    def jump(self, seconds: float) -> None:
        self._ahead += seconds


@asynccontextmanager
async def houses(
    count: int = 1, clock: Clock | None = None, ground: Ground | None = None, **options: Any
) -> AsyncIterator[list[House]]:
    """So many servers on one store; at the end every task of theirs is gone."""
    before, clock, ground = asyncio.all_tasks(), clock or Clock(), ground or Ground()
    connected: list[Hear] = []
    shared = ShakySqlite(":memory:", clock)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("antiphon.service.persistence.response_writer.time", clock)
        patch.setattr("antiphon.service.runs.remote_run._LOOK", 0.02)  # who waits for a lost word need not wait long
        async with AsyncExitStack() as stack:
            stores: list[Shaky] = [shared]
            if ground.postgres is not None:
                stores = [ShakyPostgres(ground.postgres, clock) for _ in range(count)]
            for store in stores:
                stack.push_async_callback(store.close)
                await store.open()
            servers = []
            for number in range(count):
                store = stores[number % len(stores)]
                live = _live(ground, store, connected)
                servers.append(House(store, live, Options(**options), clock))
                await live.open(servers[-1].sessions.hear)
                stack.push_async_callback(servers[-1].close)
            yield servers
    left = {task for task in asyncio.all_tasks() - before if not task.done()}
    assert not left, left


def _live(ground: Ground, store: Shaky, connected: list[Hear]) -> LiveLog:
    if ground.redis is not None:
        return RedisLive(ground.redis, 1000.0)
    return PostgresLive(store) if isinstance(store, PostgresStore) else Wire(store, connected)

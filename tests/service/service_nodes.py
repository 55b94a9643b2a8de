"""Service nodes without a transport: all components that store, run and follow responses, several nodes on one
store.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from time import time
from typing import Any, TypeVar

import msgspec
import pytest
from msgspec import Struct

from antiphon.agent.timeouts import Timeouts
from antiphon.agent.tool_loop import ToolLoopLimits
from antiphon.config.areas import StorageSettings, ToolSettings
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import Unavailable
from antiphon.limits import Limits
from antiphon.observe import Metrics
from antiphon.protocol.decoding.codec import decode_create
from antiphon.protocol.types.events import Created, Event
from antiphon.protocol.types.response import Response
from antiphon.service.access.usage import UsageMeter
from antiphon.service.keyring import Keyring, new_key
from antiphon.service.model_io.models import Models
from antiphon.service.persistence.history_loader import HistoryLoader
from antiphon.service.persistence.response_writer import ResponseWriter
from antiphon.service.planning.planner import Planner, PlannerSettings
from antiphon.service.responses import AcceptedResponse, Responses, ResponseSource
from antiphon.service.runs.active_runs import record_run
from antiphon.service.runs.background import BackgroundRuns
from antiphon.service.runs.detached_runs import DetachedRuns
from antiphon.service.runs.follow import replay
from antiphon.service.tool_loop.approvals import Approvals
from antiphon.service.tool_loop.tool_outputs import ToolOutputs
from antiphon.service.tool_loop.toolkit import Toolkit
from antiphon.stores.base import Claim, ClaimedResponse, IdempotencyKey
from antiphon.stores.live.base import LiveLog, LocalLiveLog, NotifyCallback
from antiphon.stores.live.postgres import PostgresLiveLog
from antiphon.stores.live.redis import RedisLiveLog
from antiphon.stores.postgres import PostgresStore
from antiphon.stores.sql.operation import Operation
from antiphon.stores.sql.store import Store
from antiphon.stores.sqlite import SqliteStore
from antiphon.tools.base import BuiltInTool
from antiphon.transport.streaming.sse import encode_events
from tests.service.example_tool import ExampleTool

T = TypeVar("T")
TENANT = "default"
_KEYRING = Keyring([new_key()])  # shared by all nodes, as by servers with one store
_decoder = msgspec.json.Decoder(Response)


class SharedLiveLog(LocalLiveLog):
    """A live log that notifies all connected nodes of the test."""

    def __init__(self, store: Store, callbacks: list[NotifyCallback]) -> None:
        super().__init__(store)
        self._callbacks = callbacks
        self._callback: NotifyCallback | None = None
        self._notify = self._notify_all

    async def open(self, notify: NotifyCallback) -> None:
        self._callback = notify
        self._callbacks.append(notify)

    async def close(self) -> None:
        self.disconnect()

    def disconnect(self) -> None:
        """Stop notifications to this node."""
        if self._callback in self._callbacks:
            self._callbacks.remove(self._callback)

    def _notify_all(self, response_id: str) -> None:
        for notify in [*self._callbacks]:
            notify(response_id)


class FailingStore(Store):
    """A store whose operations fail on demand: those named in `down`, or the one with the number `fail_at`."""

    def __init__(self, location: str, clock: Callable[[], float]) -> None:
        super().__init__(location, 1000.0, clock)  # type: ignore[arg-type, call-arg]  # signature of the concrete store
        self.down: set[str] = set()
        self.operation_count = 0
        self.fail_at: int | None = None
        self.started = asyncio.Event()  # a response is in progress
        self.claim_polled = asyncio.Event()  # the store was polled for claims
        self.outputs_expected = asyncio.Event()  # a run waits for the outputs of client tools
        self.failed = asyncio.Event()  # an operation failed

    def __getattribute__(self, name: str) -> Any:
        if name != "down" and name in getattr(self, "down", ()):
            return self._fail
        return super().__getattribute__(name)

    async def claim(self, claim: Claim, background: int, released: bool = False) -> list[ClaimedResponse]:
        claimed = await super().claim(claim, background, released)
        self.claim_polled.set()
        return claimed

    async def start(self, tenant: str, response_id: str, fence: int) -> None:
        await super().start(tenant, response_id, fence)
        self.started.set()

    async def expect_outputs(self, tenant: str, response_id: str, fence: int, call_ids: Collection[str]) -> None:
        await super().expect_outputs(tenant, response_id, fence, call_ids)
        self.outputs_expected.set()

    async def _run(self, make: Callable[[], Operation[T]], *, write: bool) -> T:
        self.operation_count += 1
        if self.operation_count == self.fail_at:
            await self._fail()
        return await super()._run(make, write=write)  # type: ignore[safe-super]  # implemented by the concrete store

    async def _fail(self, *values: object, **named: object) -> Any:
        self.failed.set()
        raise Unavailable("The store does not answer.", retry_after=1.0)


class FailingSqliteStore(FailingStore, SqliteStore):
    pass


class FailingPostgresStore(FailingStore, PostgresStore):
    pass


class Backends(Struct, frozen=True):
    """URLs of the backends of the nodes. Default: a store in memory; without Redis the store also serves the live
    log.
    """

    postgres: str | None = None
    redis: str | None = None


class NodeOptions(Struct, frozen=True, kw_only=True):
    max_runs: int = 2000
    keep_streams: float = 0.0
    lease: float = 15.0
    slots: int = 16
    attempts: int = 5
    timeout: float = 86_400.0
    room: int = 1000
    turns: int = 32
    seconds: float = 3600.0  # limit for a whole run
    built_in: tuple[BuiltInTool, ...] = ()  # instead of the example tool


class ServiceNode:
    """One node. It has its own engine, so that a test sees which node generates."""

    def __init__(self, store: FailingStore, live: LiveLog, options: NodeOptions, clock: Callable[[], float]) -> None:
        self.store, self.live = store, live
        self.engine = FakeEngine(FakeSettings(burst=1))
        settings = StorageSettings(
            lease_seconds=options.lease,
            background_queue=options.room,
            background_timeout=options.timeout,
            max_active_sessions=options.max_runs,
            keep_streams=options.keep_streams,
            background_slots=options.slots,
            background_attempts=options.attempts,
        )
        self.models = Models(self.engine, queue=4)
        history_loader = HistoryLoader(store)
        self.writer = ResponseWriter(store, live, settings, history_loader.remember)
        self.detached_runs = DetachedRuns(
            store, live, settings, partial(record_run, Metrics("test"), UsageMeter(store))
        )
        self.example_tool = ExampleTool()
        outputs = ToolOutputs(store, live, self.detached_runs.notifications, ToolSettings())
        toolkit = Toolkit(None, options.built_in or [self.example_tool], Approvals(store, 1000.0), outputs)
        planner_settings = PlannerSettings(
            loop_limits=ToolLoopLimits(max_turns=options.turns), timeouts=Timeouts(total=options.seconds)
        )
        self.planner = Planner(self.models, history_loader, planner_settings, keyring=_KEYRING, toolkit=toolkit)
        self.tool_outputs = outputs
        self.background_runs = BackgroundRuns(self.writer, self.planner, self.detached_runs, clock)
        self.responses = Responses(self.planner, self.writer, self.detached_runs, self.background_runs)

    async def close(self) -> None:
        await self.background_runs._tasks.close()
        await self.detached_runs.close()
        await self.writer.drain(5.0)
        await self.live.close()

    def stop_notifications(self) -> None:
        """Stop notifications to this node."""
        assert isinstance(self.live, SharedLiveLog)
        self.live.disconnect()

    def crash(self) -> None:
        """Stop all work and heartbeats, as if the process was killed."""
        for row in self.writer.leases._rows.values():
            row.lost = True  # its end is not written here any more
        for task in [*self.detached_runs.tasks._tasks, *self.background_runs._tasks._tasks]:
            task.cancel()

    async def wait_settled(self) -> None:
        """Wait until all runs of this node have ended."""
        async with asyncio.timeout(30):
            await self.background_runs._tasks.wait_all()
            await self.detached_runs.tasks.wait_all()

    async def create(self, key: IdempotencyKey | None = None, **body: Any) -> AcceptedResponse:
        body = {"model": "fake", "input": "hi", **body}
        return await self.responses.create(TENANT, decode_create(msgspec.json.encode(body), Limits()), key)

    async def create_background(self, **body: Any) -> str:
        """Create a background response without a stream and return its id."""
        accepted = await self.create(background=True, **body)
        assert accepted.body is not None
        return _decoder.decode(accepted.body).id

    async def create_stream(self, **body: Any) -> "EventCollector":
        """Create a streamed response and return a collector that has received `response.created`."""
        accepted = await self.create(stream=True, **body)
        assert accepted.source is not None
        collector = EventCollector(accepted.source).start()
        await collector.wait_for("response.created")
        return collector

    async def load_response(self, response_id: str) -> Response:
        row = await self.store.get(TENANT, response_id)
        assert row is not None
        response = _decoder.decode(row.response)
        response.status = row.status
        return response

    async def wait_ended(self, response_id: str) -> Response:
        """Wait until the response has ended and return it."""
        source = await replay(self.detached_runs, TENANT, response_id)
        await source.drive(lambda events: None)
        source.close()
        return await self.load_response(response_id)

    async def replay_events(self, response_id: str, after: int = -1) -> list[Event]:
        """Return the replayed events of a response."""
        return await read_all_events(await replay(self.detached_runs, TENANT, response_id, after))


async def read_all_events(source: ResponseSource) -> list[Event]:
    """Return all events of a source up to its end."""
    collector = EventCollector(source)
    async with asyncio.timeout(30):
        await collector.drive()
    source.close()
    return collector.events


class EventCollector:
    """Drives a source, collects its events, and lets a test wait for one of them."""

    def __init__(self, source: ResponseSource) -> None:
        self.source = source
        self.events: list[Event] = []
        self._received = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> "EventCollector":
        self._task = asyncio.get_running_loop().create_task(self.drive())
        return self

    async def drive(self) -> None:
        await self.source.drive(self._collect)

    @property
    def id(self) -> str:
        first = self.events[0]
        assert isinstance(first, Created)
        return first.response.id

    async def wait_for(self, kind: str) -> None:
        async with asyncio.timeout(30):
            while not any(event.type == kind for event in self.events):
                self._received.clear()
                await self._received.wait()

    async def read_all(self) -> list[Event]:
        assert self._task is not None
        async with asyncio.timeout(30):
            await asyncio.wait([self._task])
        if not self.was_cancelled:
            self._task.result()
        self.source.close()
        return self.events

    @property
    def was_cancelled(self) -> bool:
        """Whether the client disconnected, or the server was killed."""
        return self._task is not None and self._task.cancelled()

    async def disconnect(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])
        self.source.close()

    def _collect(self, events: list[Event]) -> None:
        self.events += events
        self._received.set()


def list_types(events: Iterable[Event]) -> list[str]:
    return [event.type for event in events]


def to_sse_bytes(events: list[Event]) -> bytes:
    """Encode events as on the wire."""
    return encode_events(events) if events else b""


class Clock:
    """The clock of all nodes of a test; it can be advanced."""

    def __init__(self) -> None:
        self._offset = 0.0

    def __call__(self) -> float:
        return time() + self._offset

    def advance(self, seconds: float) -> None:
        self._offset += seconds


@asynccontextmanager
async def start_nodes(
    count: int = 1, clock: Clock | None = None, backends: Backends | None = None, **options: Any
) -> AsyncIterator[list[ServiceNode]]:
    """Start `count` nodes on one store; at the end none of their tasks may remain."""
    before, clock, backends = asyncio.all_tasks(), clock or Clock(), backends or Backends()
    callbacks: list[NotifyCallback] = []
    shared = FailingSqliteStore(":memory:", clock)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("antiphon.service.persistence.response_writer.time", clock)
        patch.setattr("antiphon.service.runs.follow._POLL_SECONDS", 0.02)  # keeps polls after a lost notification short
        async with AsyncExitStack() as stack:
            stores: list[FailingStore] = [shared]
            if backends.postgres is not None:
                stores = [FailingPostgresStore(backends.postgres, clock) for _ in range(count)]
            for store in stores:
                stack.push_async_callback(store.close)
                await store.open()
            nodes = []
            for number in range(count):
                store = stores[number % len(stores)]
                live = _make_live_log(backends, store, callbacks)
                nodes.append(ServiceNode(store, live, NodeOptions(**options), clock))
                await live.open(nodes[-1].detached_runs.on_notification)
                stack.push_async_callback(nodes[-1].close)
            yield nodes
    leaked = {task for task in asyncio.all_tasks() - before if not task.done()}
    assert not leaked, leaked


def _make_live_log(backends: Backends, store: FailingStore, callbacks: list[NotifyCallback]) -> LiveLog:
    if backends.redis is not None:
        return RedisLiveLog(backends.redis, 1000.0)
    return PostgresLiveLog(store) if isinstance(store, PostgresStore) else SharedLiveLog(store, callbacks)

"""Chaos test: servers die, stall, stop and lose their store for a moment, in an order given by a seed.

In the end every acknowledged response has ended exactly once, no two observers saw different final statuses, and every
follower received the same bytes from its starting event on.
"""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import msgspec
import pytest

from antiphon.engines.fake.playback import Gate
from antiphon.errors import AntiphonError
from antiphon.protocol.types.events import Event, Failed
from antiphon.protocol.types.response import Response
from antiphon.service.runs.follow import replay
from antiphon.stores.base import RUNNING_STATUSES
from tests.service.service_nodes import (
    TENANT,
    Backends,
    Clock,
    EventCollector,
    ServiceNode,
    list_types,
    start_nodes,
    to_sse_bytes,
)

pytestmark = pytest.mark.anyio
STEPS = 80


class ChaosSimulation:
    """Several servers on one store, the clients that follow responses, and random actions on both."""

    def __init__(self, seed: int, servers: list[ServiceNode], clock: Clock) -> None:
        self.random = Random(seed)
        self.clock = clock
        self.store = servers[0].store
        self.active_servers = [*servers]
        self.acknowledged: dict[str, bool] = {}  # acknowledged response ids, and whether each runs in the background
        self.deleted: set[str] = set()
        # response id, sequence number of the event before the first one, and the collector
        self.collectors: list[tuple[str, int, EventCollector]] = []
        self.disconnected: set[EventCollector] = set()
        self.final_statuses: dict[str, str] = {}  # final status that was observed, by response id
        self.cancels: list[asyncio.Future[None]] = []
        self.gates: list[Gate] = []

    def pick_server(self) -> ServiceNode:
        return self.random.choice(self.active_servers)

    def record_end(self, response_id: str, status: str) -> None:
        assert status not in RUNNING_STATUSES
        assert self.final_statuses.setdefault(response_id, status) == status

    # ---- actions

    async def create(self) -> None:
        background, streams = self.random.random() < 0.8, self.random.random() < 0.6
        text = "word " * self.random.randint(1, 12)
        accepted = await self.pick_server().create(input=text, background=background, stream=streams or not background)
        if accepted.body is not None:
            self.acknowledged[msgspec.json.decode(accepted.body, type=Response).id] = True
            return
        assert accepted.source is not None
        collector = EventCollector(accepted.source).start()
        await collector.wait_for("response.created")
        self.acknowledged[collector.id] = background
        self.collectors.append((collector.id, -1, collector))

    async def follow(self) -> None:
        response_id, after = self._pick_response(), self.random.choice([-1, -1, 0, 2, 3, 5, 9, 40])
        source = await replay(self.pick_server().detached_runs, TENANT, response_id, after)
        self.collectors.append((response_id, after, EventCollector(source).start()))

    async def disconnect(self) -> None:
        response_id, _, collector = self.random.choice(self.collectors)
        if self.acknowledged[response_id] and collector not in self.disconnected:
            self.disconnected.add(collector)
            await collector.disconnect()

    async def cancel(self) -> None:
        self.cancels.append(asyncio.ensure_future(self._cancel(self.pick_server(), self._pick_response())))

    async def delete(self) -> None:
        response_id = self._pick_response()
        if self.random.random() < 0.3:
            await self.store.delete(TENANT, response_id)
            self.deleted.add(response_id)
            await self.pick_server().detached_runs.notify_servers(response_id)

    async def get(self) -> None:
        row = await self.store.get(TENANT, self._pick_response())
        if row is not None and row.status not in RUNNING_STATUSES:
            self.record_end(row.id, row.status)

    async def scan(self) -> None:
        await self.pick_server().background_runs.scan()

    async def renew_leases(self) -> None:
        await self.pick_server().writer.leases.renew()

    async def stall(self) -> None:
        self.clock.advance(self.random.choice([1.0, 6.0, 16.0]))

    async def kill(self) -> None:
        if len(self.active_servers) > 1:
            node = self.active_servers.pop(self.random.randrange(len(self.active_servers)))
            node.crash()
            node.detached_runs.closed = True

    async def stop(self) -> None:
        if len(self.active_servers) > 1:
            await self.active_servers.pop(self.random.randrange(len(self.active_servers))).detached_runs.close()

    async def fail_store_operation(self) -> None:
        self.store.fail_at = self.store.operation_count + self.random.randint(1, 6)

    async def hold_engines(self) -> None:
        for node in self.active_servers:
            if self.random.random() < 0.7:
                node.engine.answers()
                self.gates.append(node.engine.holds(after=self.random.choice([0, 0, 1, 2, 4, 8])))

    async def release_engines(self) -> None:
        for gate in self.gates[: self.random.randint(0, 2)]:
            gate.open()
            self.gates.remove(gate)

    async def wait(self) -> None:
        for _ in range(self.random.randint(1, 60)):
            await asyncio.sleep(0)

    async def run_actions(self) -> None:
        """Run random actions, weighted by frequency."""
        actions: dict[Callable[[], Awaitable[None]], float] = {
            self.hold_engines: 6,
            self.release_engines: 3,
            self.create: 5,
            self.follow: 5,
            self.disconnect: 1,
            self.cancel: 2,
            self.delete: 1,
            self.get: 3,
            self.scan: 4,
            self.renew_leases: 2,
            self.stall: 1,
            self.kill: 0.3,
            self.stop: 0.2,
            self.fail_store_operation: 1,
            self.wait: 14,
        }
        for action in self.random.choices([*actions], [*actions.values()], k=STEPS):
            try:
                await action()
            except (AntiphonError, IndexError):  # rejected, or there is no target yet
                continue

    # ---- recovery and checks

    async def recover(self) -> None:
        """Restore the store, release the engines, and let the active servers scan while time passes until all responses
        ended.
        """
        self.store.fail_at = None
        for gate in self.gates:
            gate.open()
        await asyncio.gather(*self.cancels)
        while not await self._all_ended():
            for node in self.active_servers:
                await node.writer.leases.renew()
                await node.background_runs.scan()
                await node.wait_settled()
            self.clock.advance(4.0)

    async def check(self) -> None:
        for response_id, background in self.acknowledged.items():
            row = await self.store.get(TENANT, response_id)
            if row is None:
                assert response_id in self.deleted
                continue
            self.record_end(response_id, row.status)
            events = await self.active_servers[0].replay_events(response_id)
            assert [event.sequence_number for event in events] == list(range(len(events)))
            last = events[-1]
            died = isinstance(last, Failed) and last.response.error and last.response.error.code == "server_restarted"
            for followed, after, collector in self.collectors:
                if followed == response_id and (background or not died):  # a dead foreground run leaves no log
                    self._compare(collector, events[after + 1 :])

    def _compare(self, collector: EventCollector, expected: list[Event]) -> None:
        is_broken_off = list_types(collector.events)[-1:] == ["error"]  # its server stopped, but not the response
        received = collector.events[: len(collector.events) - is_broken_off]
        assert to_sse_bytes(received) == to_sse_bytes(expected[: len(received)])
        assert is_broken_off or collector.was_cancelled or len(received) == len(expected)

    async def _cancel(self, node: ServiceNode, response_id: str) -> None:
        try:
            body = await node.background_runs.cancel(TENANT, response_id)
        except AntiphonError:
            return
        self.record_end(response_id, msgspec.json.decode(body, type=Response).status)

    def _pick_response(self) -> str:
        return self.random.choice([*self.acknowledged])

    async def _all_ended(self) -> bool:
        rows = [await self.store.get(TENANT, response_id) for response_id in self.acknowledged]
        return all(row is None or row.status not in RUNNING_STATUSES for row in rows)


async def run_simulation(seed: int, backends: Backends) -> None:
    clock = Clock()
    async with start_nodes(4, clock, backends, keep_streams=600.0, slots=3) as servers, asyncio.timeout(200):
        simulation = ChaosSimulation(seed, servers, clock)
        await simulation.run_actions()
        await simulation.recover()
        for _, _, collector in simulation.collectors:
            if collector not in simulation.disconnected:
                await collector.read_all()
        await simulation.check()
        assert [node.engine.running for node in simulation.active_servers] == [0] * len(simulation.active_servers)


@pytest.mark.seeds(12)
@pytest.mark.shows("B.5", "B.7", "B.8")
async def test_under_random_faults_every_response_ends_once_and_all_followers_agree(seed: int) -> None:
    await run_simulation(seed, Backends())


@pytest.mark.seeds(3, first=100)
@pytest.mark.shows("B.2")
async def test_servers_that_share_postgresql_survive_random_faults(seed: int, postgres_url: str) -> None:
    await run_simulation(seed, Backends(postgres=postgres_url))


@pytest.mark.seeds(3, first=200)
async def test_servers_connected_by_redis_survive_random_faults(seed: int, redis_url: str) -> None:
    await run_simulation(seed, Backends(redis=redis_url))

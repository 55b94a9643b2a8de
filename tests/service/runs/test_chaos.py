"""Servers that die, stall, stop and lose their store for a moment, in an order that a seed decides.

Whatever happened: every response that was acknowledged ends once, nobody saw it end in two ways, and everybody who
followed it heard the same bytes, from the event that he asked for on.
"""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import msgspec
import pytest

from antiphon.engines.fake.reply import Gate
from antiphon.errors import AntiphonError
from antiphon.protocol.types.events import Event, Failed
from antiphon.protocol.types.response import Response
from antiphon.stores.base import RUNNING
from tests.service.service_nodes import TENANT, Clock, Ground, House, Listener, houses, types, wire

pytestmark = pytest.mark.anyio
STEPS = 80


class World:
    def __init__(self, seed: int, servers: list[House], clock: Clock) -> None:
        self.random = Random(seed)
        self.clock = clock
        self.store = servers[0].store
        self.up = [*servers]
        self.background: dict[str, bool] = {}  # every id that was acknowledged
        self.deleted: set[str] = set()
        self.listeners: list[tuple[str, int, Listener]] = []  # to what, behind which event
        self.gone: set[Listener] = set()
        self.told: dict[str, str] = {}  # how somebody saw it end
        self.cancels: list[asyncio.Future[None]] = []
        self.gates: list[Gate] = []

    def one(self) -> House:
        return self.random.choice(self.up)

    def saw(self, response_id: str, status: str) -> None:
        assert status not in RUNNING
        assert self.told.setdefault(response_id, status) == status

    # ---- what may happen

    async def create(self) -> None:
        background, streams = self.random.random() < 0.8, self.random.random() < 0.6
        said = "word " * self.random.randint(1, 12)
        accepted = await self.one().create(input=said, background=background, stream=streams or not background)
        if accepted.given is not None:
            self.background[msgspec.json.decode(accepted.given, type=Response).id] = True
            return
        assert accepted.source is not None
        listener = Listener(accepted.source).start()
        await listener.until("response.created")
        self.background[listener.id] = background
        self.listeners.append((listener.id, -1, listener))

    async def follow(self) -> None:
        response_id, after = self._any(), self.random.choice([-1, -1, 0, 2, 3, 5, 9, 40])
        source = await self.one().following.replay(TENANT, response_id, after)
        self.listeners.append((response_id, after, Listener(source).start()))

    async def leave(self) -> None:
        response_id, _, listener = self.random.choice(self.listeners)
        if self.background[response_id] and listener not in self.gone:
            self.gone.add(listener)
            await listener.go_away()

    async def cancel(self) -> None:
        self.cancels.append(asyncio.ensure_future(self._cancel(self.one(), self._any())))

    async def delete(self) -> None:
        response_id = self._any()
        if self.random.random() < 0.3:
            await self.store.delete(TENANT, response_id)
            self.deleted.add(response_id)
            await self.one().sessions.deleted(TENANT, response_id)

    async def get(self) -> None:
        row = await self.store.get(TENANT, self._any())
        if row is not None and row.status not in RUNNING:
            self.saw(row.id, row.status)

    async def scan(self) -> None:
        await self.one().jobs.scan()

    async def beat(self) -> None:
        await self.one().keeper.renew()

    async def stall(self) -> None:
        self.clock.jump(self.random.choice([1.0, 6.0, 16.0]))

    async def kill(self) -> None:
        if len(self.up) > 1:
            house = self.up.pop(self.random.randrange(len(self.up)))
            house.die()
            house.sessions.closed = True

    async def stop(self) -> None:
        if len(self.up) > 1:
            await self.up.pop(self.random.randrange(len(self.up))).sessions.close()

    async def stumble(self) -> None:
        self.store.fails_at = self.store.done + self.random.randint(1, 6)

    async def hold(self) -> None:
        for house in self.up:
            if self.random.random() < 0.7:
                house.engine.answers()
                self.gates.append(house.engine.holds(after=self.random.choice([0, 0, 1, 2, 4, 8])))

    async def go_on(self) -> None:
        for gate in self.gates[: self.random.randint(0, 2)]:
            gate.open()
            self.gates.remove(gate)

    async def wait(self) -> None:
        for _ in range(self.random.randint(1, 60)):
            await asyncio.sleep(0)

    async def live(self) -> None:
        """In proportion to how often they happen."""
        acts: dict[Callable[[], Awaitable[None]], float] = {
            self.hold: 6, self.go_on: 3, self.create: 5, self.follow: 5, self.leave: 1, self.cancel: 2, self.delete: 1,
            self.get: 3, self.scan: 4, self.beat: 2, self.stall: 1, self.kill: 0.3, self.stop: 0.2, self.stumble: 1,
            self.wait: 14,
        }  # fmt: skip
        for act in self.random.choices([*acts], [*acts.values()], k=STEPS):
            try:
                await act()
            except (AntiphonError, IndexError):  # it was refused, or there is nothing yet to do it to
                continue

    # ---- and what must have become of it

    async def heal(self) -> None:
        """The store answers, engines go on, time passes, and those servers that are up do what they do."""
        self.store.fails_at = None
        for gate in self.gates:
            gate.open()
        await asyncio.gather(*self.cancels)
        while not await self._all_ended():
            for house in self.up:
                await house.keeper.renew()
                await house.jobs.scan()
                await house.settled()
            self.clock.jump(4.0)

    async def check(self) -> None:
        for response_id, background in self.background.items():
            row = await self.store.get(TENANT, response_id)
            if row is None:
                assert response_id in self.deleted
                continue
            self.saw(response_id, row.status)
            events = await self.up[0].heard(response_id)
            assert [event.sequence_number for event in events] == list(range(len(events)))
            last = events[-1]
            died = isinstance(last, Failed) and last.response.error and last.response.error.code == "server_restarted"
            for followed, after, listener in self.listeners:
                if followed == response_id and (background or not died):  # who died in the foreground left nothing
                    self._compare(listener, events[after + 1 :])

    def _compare(self, listener: Listener, expected: list[Event]) -> None:
        broken_off = types(listener.events)[-1:] == ["error"]  # its server stopped, but not the response
        heard = listener.events[: len(listener.events) - broken_off]
        assert wire(heard) == wire(expected[: len(heard)])
        assert broken_off or listener in self.gone or len(heard) == len(expected)

    async def _cancel(self, house: House, response_id: str) -> None:
        try:
            body = await house.jobs.cancel(TENANT, response_id)
        except AntiphonError:
            return
        self.saw(response_id, msgspec.json.decode(body, type=Response).status)

    def _any(self) -> str:
        return self.random.choice([*self.background])

    async def _all_ended(self) -> bool:
        rows = [await self.store.get(TENANT, response_id) for response_id in self.background]
        return all(row is None or row.status not in RUNNING for row in rows)


async def live_through(seed: int, ground: Ground) -> None:
    clock = Clock()
    async with houses(4, clock, ground, keep_streams=600.0, slots=3) as servers, asyncio.timeout(200):
        world = World(seed, servers, clock)
        await world.live()
        await world.heal()
        for _, _, listener in world.listeners:
            if listener not in world.gone:
                await listener.all()
        await world.check()
        assert [house.engine.running for house in world.up] == [0] * len(world.up)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.shows("B.5", "B.7", "B.8")
async def test_whatever_happens_everything_ends_once_and_everybody_hears_the_same(seed: int) -> None:
    await live_through(seed, Ground())


@pytest.mark.parametrize("seed", range(100, 103))
@pytest.mark.shows("B.2")
async def test_so_it_is_with_servers_that_share_a_postgresql(seed: int, postgres_url: str) -> None:
    await live_through(seed, Ground(postgres=postgres_url))


@pytest.mark.parametrize("seed", range(200, 203))
async def test_so_it_is_with_servers_that_follow_each_other_over_redis(seed: int, redis_url: str) -> None:
    await live_through(seed, Ground(redis=redis_url))

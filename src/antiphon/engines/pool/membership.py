"""Who belongs to a pool: members come and go while it works.

    joined ──▶ member ──▶ not configured any more: leaving ── all it did has ended, or the grace is over ──▶ closed

Nothing changes if one of the new ones cannot be opened.
"""

import asyncio
import logging
from collections.abc import Sequence

from msgspec import Struct

from antiphon.engines.pool.member import Member, Seat

log = logging.getLogger(__name__)


class Change(Struct, frozen=True):
    """Names of those that came and went."""

    joined: list[str]
    left: list[str]


class Roster:
    def __init__(self, seats: Sequence[Seat], grace: float) -> None:
        self._grace = grace
        self._put([Member(seat, seat.build()) for seat in seats])
        self._farewells: dict[Member, asyncio.Task[None]] = {}
        self._renewing = asyncio.Lock()

    @property
    def leaving(self) -> Sequence[Member]:
        return [*self._farewells]

    async def open(self) -> None:
        await _opened(self.members)
        if len(self.members) > 1:
            _introduce(self.members)

    async def close(self) -> None:
        farewells = [*self._farewells.values()]
        for task in farewells:
            task.cancel()
        if farewells:
            await asyncio.wait(farewells)
        await asyncio.gather(*(member.engine.close() for member in self.members))

    async def renew(self, seats: Sequence[Seat]) -> Change:
        """StartupError if one of the new ones cannot be had."""
        async with self._renewing:
            wanted = self._matched(seats)
            fresh = [Member(seat, seat.build()) for seat, known in wanted if known is None]
            await self._admit(fresh)
            joining = iter(fresh)
            left = [member for member in self.members if not any(known is member for _, known in wanted)]
            self._put([known or next(joining) for _, known in wanted])
            for (seat, _), member in zip(wanted, self.members, strict=True):
                member.bind(seat, member.told)
            for member in left:
                self._see_off(member)
            _introduce(fresh)
            return Change([member.name for member in fresh], [member.name for member in left])

    def _put(self, members: Sequence[Member]) -> None:
        self.members = members
        self.alone = members[0] if len(members) == 1 else None  # the only one: who else is a work meant for?

    async def _admit(self, fresh: Sequence[Member]) -> None:
        well = False
        try:
            await _opened(fresh)
            well = True
        finally:
            if not well:
                await asyncio.gather(*(member.engine.close() for member in fresh))

    def _matched(self, seats: Sequence[Seat]) -> list[tuple[Seat, Member | None]]:
        """Each with the member that it is already."""
        left = [*self.members]
        found: list[tuple[Seat, Member | None]] = []
        for seat in seats:
            known = next((member for member in left if member.is_like(seat)), None)
            if known is not None:
                left.remove(known)
            found.append((seat, known))
        return found

    def _see_off(self, member: Member) -> None:
        member.leaving = True
        task = asyncio.get_running_loop().create_task(self._farewell(member), name=f"farewell of {member.name}")
        self._farewells[member] = task
        task.add_done_callback(lambda _: self._farewells.pop(member, None))

    async def _farewell(self, member: Member) -> None:
        try:
            async with asyncio.timeout(self._grace):
                if member.running:
                    await member.idle.wait()
        except TimeoutError:
            log.warning("%s still had %d to do when its time was over", member.name, member.running)
        finally:
            await member.engine.close()
        log.info("%s is closed", member.name)


async def _opened(members: Sequence[Member]) -> None:
    """All at once, since some take long. The first failure is raised when all have come to their end."""
    outcomes = await asyncio.gather(*(member.engine.open() for member in members), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


def _introduce(members: Sequence[Member]) -> None:
    """The log says who is meant by the names that metrics and others use."""
    for member in members:
        log.info("The engine %s is %s", member.name, member.seat.place)

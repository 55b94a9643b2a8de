"""Members of a pool, which may change while it runs.

    joining ──▶ member ──no longer configured──▶ leaving ──its requests ended, or the grace period is over──▶ closed

If a new member cannot be opened, nothing changes.
"""

import asyncio
import logging
from collections.abc import Sequence

from msgspec import Struct

from antiphon.engines.pool.member import MemberSpec, PoolMember

log = logging.getLogger(__name__)


class MembershipChange(Struct, frozen=True):
    """Names of the members that joined and that were removed."""

    joined: list[str]
    removed: list[str]


class Membership:
    """The current and the leaving members. `grace`: seconds that a leaving member has for its running requests."""

    def __init__(self, specs: Sequence[MemberSpec], grace: float) -> None:
        self._grace = grace
        self._set_members([PoolMember(spec, spec.build()) for spec in specs])
        self._closing_tasks: dict[PoolMember, asyncio.Task[None]] = {}
        self._update_lock = asyncio.Lock()

    @property
    def leaving(self) -> Sequence[PoolMember]:
        return [*self._closing_tasks]

    async def open(self) -> None:
        await _open_all(self.members)
        if len(self.members) > 1:
            _log_locations(self.members)

    async def close(self) -> None:
        tasks = [*self._closing_tasks.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await asyncio.gather(*(member.engine.close() for member in self.members))

    async def update_members(self, specs: Sequence[MemberSpec]) -> MembershipChange:
        """Replace the members by those of the specs; raise StartupError if a new one cannot be opened."""
        async with self._update_lock:
            matched = self._match_specs(specs)
            joined = [PoolMember(spec, spec.build()) for spec, existing in matched if existing is None]
            await self._open_new(joined)
            joining = iter(joined)
            removed = [member for member in self.members if not any(existing is member for _, existing in matched)]
            self._set_members([existing or next(joining) for _, existing in matched])
            for (spec, _), member in zip(matched, self.members, strict=True):
                member.bind(spec, member.reported_slots)
            for member in removed:
                self._start_closing(member)
            _log_locations(joined)
            return MembershipChange([member.name for member in joined], [member.name for member in removed])

    def _set_members(self, members: Sequence[PoolMember]) -> None:
        self.members = members
        # set if there is one member, so that no choice is needed
        self.only_member = members[0] if len(members) == 1 else None

    async def _open_new(self, members: Sequence[PoolMember]) -> None:
        opened = False
        try:
            await _open_all(members)
            opened = True
        finally:
            if not opened:
                await asyncio.gather(*(member.engine.close() for member in members))

    def _match_specs(self, specs: Sequence[MemberSpec]) -> list[tuple[MemberSpec, PoolMember | None]]:
        """Pair each spec with the existing member that it describes, if any."""
        unmatched = [*self.members]
        matches: list[tuple[MemberSpec, PoolMember | None]] = []
        for spec in specs:
            existing = next((member for member in unmatched if member.matches(spec)), None)
            if existing is not None:
                unmatched.remove(existing)
            matches.append((spec, existing))
        return matches

    def _start_closing(self, member: PoolMember) -> None:
        member.leaving = True
        task = asyncio.get_running_loop().create_task(self._close_when_idle(member), name=f"closing of {member.name}")
        self._closing_tasks[member] = task
        task.add_done_callback(lambda _: self._closing_tasks.pop(member, None))

    async def _close_when_idle(self, member: PoolMember) -> None:
        try:
            async with asyncio.timeout(self._grace):
                if member.running:
                    await member.idle.wait()
        except TimeoutError:
            log.warning("%s is closed with %d running requests: its grace period is over", member.name, member.running)
        finally:
            await member.engine.close()
        log.info("%s is closed", member.name)


async def _open_all(members: Sequence[PoolMember]) -> None:
    """Open all members concurrently, since some take long; raise the first failure after all have finished."""
    outcomes = await asyncio.gather(*(member.engine.open() for member in members), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


def _log_locations(members: Sequence[PoolMember]) -> None:
    """Log the location behind each member name, which metrics use."""
    for member in members:
        log.info("The engine %s is at %s", member.name, member.spec.location)

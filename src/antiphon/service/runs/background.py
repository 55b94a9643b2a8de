"""Background work: the queue is the store, and this process runs as much of it as it has slots for.

    submit ── a slot is free ──▶ a session here
       └── else ──▶ given back ──▶ in the queue ──▶ claimed by whoever has a slot

What is in a hurry comes first, then whose tenant has least, then what is oldest (stores/sql/leases.py).

What a server that died left behind comes the same way: its lease runs out, and the next scan claims it. After a store
was away, all leases have run out: then only what was given back is claimed, before everybody had time for a sign of
life. Who starts cannot know whether it was away, and is as wary.

What clients sent for their MCP servers, of responses that wait in the queue: in memory alone, never in the store.

A response that another server takes up has none of it, and neither has one whose server was restarted.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from time import time

from msgspec import Struct
from msgspec.structs import replace

from antiphon.agent.recovery import remains
from antiphon.agent.run import Beyond
from antiphon.core.emitter.fold import Ending
from antiphon.core.load_shedding import Stage
from antiphon.core.replay.replay import reopened
from antiphon.errors import AntiphonError, Busy, ServerRestarted, Unavailable
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.tools import Credentials, McpTool
from antiphon.service.access.load_monitor import Pressure
from antiphon.service.persistence.background_tasks import Tasks
from antiphon.service.persistence.live_writer import Left, left_behind
from antiphon.service.persistence.notifications import QUEUE
from antiphon.service.persistence.response_writer import Keeper, Kept
from antiphon.service.persistence.stored_request import response_of, restored
from antiphon.service.planning.planner import Planner, Undertaking
from antiphon.service.runs.cancellation import Cancelling
from antiphon.service.runs.detached_runs import Background, Sessions
from antiphon.service.runs.follow import Following
from antiphon.service.runs.orphans import died, end_remains, reason_to_end
from antiphon.service.runs.source import Source
from antiphon.stores.base import Claimed, Lost, StoredResponse

MOST = 10_000  # responses; beyond, the oldest are forgotten


class Entrusted:
    def __init__(self) -> None:
        self._held: dict[str, dict[str, Credentials]] = {}

    def hold(self, response_id: str, request: CreateResponse) -> None:
        given = {tool.server_label: tool.credentials for tool in _servers(request) if _is_secret(tool.credentials)}
        if given:
            self._held[response_id] = given
            if len(self._held) > MOST:
                del self._held[next(iter(self._held))]

    def give_back(self, response_id: str, request: CreateResponse) -> None:
        """To the same request, as it comes from the store. Once."""
        given = self._held.pop(response_id, {})
        for tool in _servers(request):
            if tool.server_label in given:
                tool.entrust(given[tool.server_label])


def _servers(request: CreateResponse) -> list[McpTool]:
    return [tool for tool in request.tools if isinstance(tool, McpTool)]


def _is_secret(credentials: Credentials) -> bool:
    return bool(credentials.headers or credentials.authorization)


log = logging.getLogger(__name__)


class JobSettings(Struct, frozen=True, kw_only=True):
    """The operator's word."""

    slots: int = 16  # background responses that this process runs at once
    attempts: int = 5  # servers that may die of one before it is given up
    lease: float = 15.0


class Jobs:
    def __init__(
        self,
        keeper: Keeper,
        planner: Planner,
        sessions: Sessions,
        following: Following,
        settings: JobSettings,
        clock: Callable[[], float] = time,
        pressure: Pressure | None = None,
    ) -> None:
        self._keeper = keeper
        self._planner = planner
        self._sessions = sessions
        self._following = following
        self._settings = settings
        self._clock = clock
        self._pressure = pressure
        self._cancelling = Cancelling(keeper, sessions, clock)
        self._tasks = Tasks()
        self._entrusted = Entrusted()
        self._busy = 0  # slots
        self._queued = False  # is there more in the queue than we had slots for?
        self._resting = False
        self._wary_until = 0.0  # by the clock of the event loop
        self.taken_over = 0  # from servers that died

    async def submit(self, tenant: str, undertaking: Undertaking, kept: Kept) -> Source:
        """Run it now, or leave it in the queue until there is a slot. The Source is for a client that wants its stream.

        Takes over the undertaking and what is kept of it.
        """
        opening = undertaking.opening
        if self._queued or self._busy >= self._settings.slots or self._rests():
            undertaking.leave()
            self._entrusted.hold(opening.id, undertaking.decoded.request)
            await self._give_back(kept)
            self._queued = True
            await self._tell()
            return self._following.await_turn(tenant, opening, undertaking.obfuscates)
        deadline = opening.created_at + self._keeper.settings.background_timeout
        self._occupy(self._sessions.run(tenant, undertaking, kept, self._known(Left(), deadline)))
        running = self._sessions.find(tenant, opening.id)
        assert running is not None
        return self._following.follow(running)

    async def cancel(self, tenant: str, response_id: str) -> bytes:
        """The JSON of the Response, ended: cancelled, or as it had ended before. Raises NotFound, NotCancellable."""
        return await self._cancelling.cancel(tenant, response_id)

    async def attend(self) -> None:
        """Take up what waits or was left behind by servers that died, until cancelled.

        Then what was claimed and does not run yet is given back. Sessions are not ours to close.
        """
        now, due = asyncio.get_running_loop().time, 0.0
        self._wary_until = now() + self._settings.lease / 2  # longer than a heartbeat takes
        try:
            with self._sessions.words.of(QUEUE) as ear:
                while True:
                    ear.forget()
                    if now() >= due or self._busy < self._settings.slots:
                        due = now() + self._settings.lease / 2
                        await self._look()
                    else:
                        self._queued = True
                    await ear.listen(due - now())
        finally:
            await self._tasks.close()

    def rest(self) -> None:
        """Take up nothing more: the server is about to stop."""
        self._resting = True

    async def scan(self) -> None:
        """Claim what can be seen to here. First a sign of life: what is our own is not to be claimed by ourselves."""
        if self._rests():
            return
        wary = asyncio.get_running_loop().time() < self._wary_until
        free = max(0, self._settings.slots - self._busy) if self._takes() else 0
        self._busy += free  # nobody else may have them meanwhile
        try:
            await self._keeper.renew(anyway=wary)
            claimed = await self._keeper.store.claim(self._keeper.claim(), free, released=wary)
        finally:
            self._busy -= free
        self._queued = sum(each.row.background for each in claimed) >= free
        self.taken_over += sum(each.row.attempts > 1 for each in claimed)
        for each in claimed:
            task = self._tasks.start(self._take_up(each))
            if each.row.background:
                self._occupy(task)

    async def _look(self) -> None:
        try:
            await self.scan()
        except AntiphonError as error:
            # Longer than a look and a heartbeat take: if the store is still away at the next look, it begins anew.
            self._wary_until = asyncio.get_running_loop().time() + self._settings.lease
            log.warning("the queue could not be looked at: %s", error)

    def _takes(self) -> bool:
        """Or has the server enough to do without?"""
        return self._pressure is None or self._pressure.stage is Stage.ALL

    def _rests(self) -> bool:
        return self._resting or self._sessions.closed

    def _occupy(self, task: asyncio.Task[None]) -> None:
        """A slot, for as long as the task lasts."""
        self._busy += 1
        task.add_done_callback(self._free)

    def _free(self, task: asyncio.Task[None]) -> None:
        self._busy -= 1
        if self._queued:
            self._sessions.words.hear(QUEUE)

    async def _take_up(self, claimed: Claimed) -> None:
        """Until it has ended or is somebody else's."""
        row, session = claimed.row, None
        try:
            kept = await self._keeper.adopt(claimed.tenant, row)
        except AntiphonError as error:
            log.warning("%s could not be taken up: %s", row.id, error)
            await self._decline(claimed)
            return
        try:
            session = await self._resumed(kept, row)
        except ServerRestarted:
            log.info("%s was taken up by somebody else too", row.id)
        except (Unavailable, Busy) as error:
            log.warning("%s could not be taken up: %s", row.id, error)
            await self._give_back(kept)
        except asyncio.CancelledError:
            await self._give_back(kept)
            raise
        finally:
            if session is None:
                kept.forget()
        if session is not None:
            await asyncio.wait([session])

    async def _resumed(self, kept: Kept, row: StoredResponse) -> asyncio.Task[None] | None:
        left = await left_behind(self._keeper.live, kept.tenant, row.id) if row.background else Left()
        error = reason_to_end(row, left, self._settings.attempts, self._clock())
        if error is None:
            opening, asked = reopened(response_of(row.response)), restored(row)
            self._entrusted.give_back(row.id, asked.request)
            try:
                planned = await self._planner.plan(kept.tenant, asked, opening, patient=True)
                undertaking = _gone_on_with(planned, left)
            except (Unavailable, Busy):
                self._entrusted.hold(row.id, asked.request)
                raise
            except AntiphonError as refusal:  # it was fine once: the model or what it continued is gone
                error = refusal
            else:
                return self._sessions.run(kept.tenant, undertaking, kept, self._known(left, row.deadline))
        await end_remains(kept, row, left, Ending(status="failed", error=error), self._clock())
        return None

    def _known(self, left: Left, deadline: float | None) -> Background:
        return Background(left=left, seconds=None if deadline is None else deadline - self._clock())

    async def _give_back(self, kept: Kept) -> None:
        """To the queue; it is not looked for again at once, since what keeps us from it may last."""
        self._queued = False
        try:
            await kept.release()
        except AntiphonError as error:  # its lease runs out
            log.warning("%s could not be given back: %s", kept.id, error)
            kept.forget()

    async def _decline(self, claimed: Claimed) -> None:
        """One that nobody holds yet. If that fails too, its lease runs out."""
        self._queued = False
        with suppress(AntiphonError, Lost):
            await self._keeper.store.release(claimed.tenant, claimed.row.id, claimed.row.fence)

    async def _tell(self) -> None:
        """There is something in the queue: somebody may have a slot."""
        try:
            await self._keeper.live.tell(QUEUE)
        except AntiphonError as error:
            log.warning("nobody was told of the queue: %s", error)


def _gone_on_with(undertaking: Undertaking, left: Left) -> Undertaking:
    """Where the former owner stopped, between two turns; from the beginning, if it had not said anything."""
    if not left.spoken:
        return undertaking
    found = remains(left.entries)
    if found is None or not isinstance(undertaking.beyond, Beyond):
        undertaking.leave()
        raise died()
    return replace(undertaking, beyond=replace(undertaking.beyond, remains=found), left=left.entries)

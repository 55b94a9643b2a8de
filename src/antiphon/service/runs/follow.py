"""Following a response from any event on: while it runs here, while it runs elsewhere, and after it ended.

what runs here ──▶ live log and store ──▶ tape          each entry once, in order; it always ends
"""

from time import time

from antiphon.agent.run import Tell
from antiphon.core.emitter.event_log import Ended, Fault
from antiphon.core.replay.replay import reopened
from antiphon.errors import AntiphonError, EngineFailed, NotFound
from antiphon.protocol.types.response import Response
from antiphon.service.persistence.stored_request import response_of, restored
from antiphon.service.persistence.stored_responses import unknown
from antiphon.service.runs.active_runs import Running
from antiphon.service.runs.detached_runs import Sessions
from antiphon.service.runs.event_feed import Telling
from antiphon.service.runs.remote_run import Elsewhere, tape_of
from antiphon.service.runs.source import Source
from antiphon.stores.base import Store, StoredResponse
from antiphon.stores.live.base import LiveLog


class Following:
    def __init__(self, store: Store, live: LiveLog, sessions: Sessions) -> None:
        self._store = store
        self._live = live
        self._sessions = sessions

    def follow(self, running: Running) -> Source:
        """From its first event. Leaving it is how a foreground session loses its reader."""
        elsewhere = self._elsewhere(running.tenant, running.opening.id)
        return Follower(elsewhere, running.opening, running.obfuscates, running=running)

    def await_turn(self, tenant: str, opening: Response, padded: bool) -> Source:
        """Of one that is in the queue, whoever is going to run it."""
        return Follower(self._elsewhere(tenant, opening.id), opening, padded)

    async def replay(self, tenant: str, response_id: str, after: int = -1, obfuscates: bool | None = None) -> Source:
        """Its events with numbers above `after`; `result()` of the Source waits for its end and gives the JSON.

        Padded as its request said, or as `obfuscates` says. Raises NotFound.
        """
        elsewhere = self._elsewhere(tenant, response_id)
        if (running := self._sessions.find(tenant, response_id)) is not None:
            padded = running.obfuscates if obfuscates is None else obfuscates
            return Follower(elsewhere, running.opening, padded, after, running)
        row = await self._store.get(tenant, response_id)
        if row is None:
            raise unknown(response_id)
        padded = _wants_padding(row) if obfuscates is None else obfuscates
        return Follower(elsewhere, reopened(response_of(row.response)), padded, after)

    def _elsewhere(self, tenant: str, response_id: str) -> Elsewhere:
        return Elsewhere(self._store, self._live, self._sessions.words, tenant, response_id)


class Follower:
    """A Source of what is told to others too, or was."""

    def __init__(
        self,
        elsewhere: Elsewhere,
        opening: Response,
        padded: bool,
        after: int = -1,
        running: Running | None = None,
    ) -> None:
        self._elsewhere = elsewhere
        self._opening = opening
        self._padded = padded
        self._after = after
        self._running = running
        self._waits = False
        self._left = False
        if running is not None:
            running.attach()

    @property
    def waits(self) -> bool:
        return self._waits or self._elsewhere.waits

    async def drive(self, tell: Tell) -> None:
        telling = Telling(self._opening, self._padded, self._after, tell)
        await telling.open()
        if self._running is not None:
            await self._hear(self._running, telling)
        if telling.ended:
            return
        try:
            await self._elsewhere.follow(telling)
        except NotFound as error:
            await telling.fail(error, int(time()))
        except AntiphonError as error:
            await telling.break_off(error)

    async def result(self) -> bytes:
        if self._running is not None and (outcome := await self._outcome(self._running)) is not None:
            return outcome
        row = await self._elsewhere.ended()
        if row.status == "failed":
            last = (await tape_of(row))[-1]
            if isinstance(last, Ended) and last.fault is not None:
                raise _error(last.fault)
        return row.response

    def leave(self) -> None:
        if self._running is not None and not self._left:
            self._left = True
            self._running.detach()

    async def _hear(self, running: Running, telling: Telling) -> None:
        """What is shown here, to the end of that."""
        told = 0
        while not telling.ended:
            if told < (shown := running.shown):
                lists, told = running.log[told:shown], shown
                await telling.take([entry for entries in lists for entry in entries])
            elif running.over:
                return
            else:
                await self._wait(running, told)

    async def _outcome(self, running: Running) -> bytes | None:
        while not running.over:
            await self._wait(running, running.shown)
        if isinstance(running.outcome, AntiphonError):
            raise running.outcome
        return running.outcome

    async def _wait(self, running: Running, seen: int) -> None:
        self._waits = True
        try:
            await running.news(seen)
        finally:
            self._waits = False


def _wants_padding(row: StoredResponse) -> bool:
    options = restored(row).request.stream_options
    return options is not None and options.include_obfuscation


def _error(fault: Fault) -> AntiphonError:
    """As it was raised when the response failed."""
    kind = _KINDS.get((fault.type, fault.code), EngineFailed)
    return kind(fault.message, param=fault.param, retry_after=fault.retry_after)


def _kinds(kind: type[AntiphonError]) -> dict[tuple[str, str | None], type[AntiphonError]]:
    """The first of the tree that says so."""
    found = {(kind.type, kind.code): kind}
    for child in kind.__subclasses__():
        found = _kinds(child) | found
    return found


_KINDS = _kinds(AntiphonError)

"""All that runs in this process: bounded, found by its id, told of what happens elsewhere, and brought to an end."""

import asyncio
import logging
from collections.abc import Callable

from msgspec import Struct

from antiphon.agent.run import Run
from antiphon.errors import AntiphonError, EngineFailed, Unavailable
from antiphon.service.access.rate_limits import Quotas
from antiphon.service.persistence.background_tasks import Tasks
from antiphon.service.persistence.live_writer import Journal, Left
from antiphon.service.persistence.notifications import QUEUE, Words
from antiphon.service.persistence.response_writer import Kept
from antiphon.service.planning.planner import Undertaking
from antiphon.service.runs.active_runs import Place, Places, Running
from antiphon.service.runs.detached_run import Charge, Session
from antiphon.stores.base import Store
from antiphon.stores.live.base import LiveLog

log = logging.getLogger(__name__)

_LAST_WORDS = 5.0  # seconds for ends that are still to be written when all is closed


class SessionSettings(Struct, frozen=True, kw_only=True):
    """The operator's word."""

    most: int = 2000  # responses that run at once
    keep_streams: float = 0.0  # seconds that a foreground session whose last reader left runs on
    lease: float = 15.0


class Background(Struct, frozen=True, kw_only=True):
    """What is known of a background run beside what it is to do."""

    left: Left = Left()  # by a former owner
    seconds: float | None = None  # until it must have ended


class Sessions:
    """`on_end` is told of every run that ended, as of any other run."""

    def __init__(
        self,
        store: Store,
        live: LiveLog,
        settings: SessionSettings,
        on_end: Callable[[Run], None],
        quotas: Quotas | None = None,
    ) -> None:
        self._store = store
        self._live = live
        self._settings = settings
        self._on_end = on_end
        self._quotas = quotas or Quotas()
        self._places = Places(settings.most)
        self.enter: Callable[[str], Place] = self._places.enter  # before anything is written; raises Busy
        self._tasks = Tasks()
        self._questions = Tasks()
        self._asking: dict[str, bool] = {}  # about which there are questions; True: another one came meanwhile
        self.words = Words()
        self.closed = False

    @property
    def keeps_streams(self) -> bool:
        """Does a stream outlive its client?"""
        return self._settings.keep_streams > 0

    def count(self) -> int:
        """All that runs here, whoever drives it."""
        return len(self._places.held)

    def busy(self) -> bool:
        """Does anything run that no client drives?"""
        return len(self._tasks) > 0

    def find(self, tenant: str, response_id: str) -> Running | None:
        return self._places.find(tenant, response_id)

    def open(self, place: Place, tenant: str, undertaking: Undertaking, kept: Kept | None) -> Session:
        """Start a foreground session. Follow it (Following.follow) at once: with its last reader it ends.

        Takes over the place, the undertaking and what is kept of it: all is seen to the end here.
        """
        lease, keep_streams = self._settings.lease, self._settings.keep_streams
        charge = Charge(tenant=tenant, undertaking=undertaking, kept=kept, lease=lease, keep_streams=keep_streams)
        return self._start(place, charge)[0]

    def run(self, tenant: str, undertaking: Undertaking, kept: Kept, known: Background) -> asyncio.Task[None]:
        """Start a background session, and give its task. Takes over the undertaking and what is kept of it."""
        lease = self._settings.lease
        journal = Journal(self._live, kept, lease, known.left)
        charge = Charge(tenant=tenant, undertaking=undertaking, kept=kept, journal=journal, lease=lease)
        session, task = self._start(self._places.enter(tenant, extra=True), charge)
        if known.seconds is not None:
            late = EngineFailed("The response took longer than this server allows and was ended.")
            timer = asyncio.get_running_loop().call_later(max(0.0, known.seconds), session.interrupt, late)
            task.add_done_callback(lambda _: timer.cancel())
        return task

    def hear(self, response_id: str) -> None:
        """For LiveLog.open: a word came."""
        self.words.hear(response_id)
        running = self._places.taken.get(response_id)
        if not isinstance(running, Session) or not running.wonders():
            return
        asked = response_id in self._asking
        self._asking[response_id] = True
        if not asked:
            self._questions.start(self._ask(running))

    async def deleted(self, tenant: str, response_id: str) -> None:
        """It was, from the store: whoever runs or follows it is told."""
        await self._tell(response_id)

    def interrupt(self, error: AntiphonError) -> None:
        """The server's grace is over: what runs for a client ends now with this error, the others are handed over."""
        self.closed = True
        for place in [*self._places.held]:
            if place.run is not None:
                place.run.interrupt(error)
            elif isinstance(place.running, Session):
                place.running.hand_over(error)
        self.words.close()

    async def drained(self) -> None:
        """Wait until no session runs."""
        await self._tasks.settled()

    async def close(self) -> None:
        """Interrupt what still runs, and wait for all tasks."""
        self.interrupt(Unavailable("The server is shutting down.", retry_after=2.0))
        if len(self._tasks):
            await self._tasks.close(_LAST_WORDS)
            await self._tell(QUEUE)  # others may have a slot for what was handed over
        await self._questions.close()

    def _start(self, place: Place, charge: Charge) -> tuple[Session, asyncio.Task[None]]:
        session = Session(charge, self._on_end)
        place.take(session)
        with self._quotas.carried(charge.tenant, "" if charge.kept is None else charge.kept.bearer) as bill:
            task = self._tasks.start(session.live())
        task.add_done_callback(lambda _: place.leave())
        task.add_done_callback(lambda _: bill.leave())
        if self.closed:
            session.hand_over(Unavailable("The server is shutting down.", retry_after=2.0))
        return session, task

    async def _tell(self, word: str) -> None:
        try:
            await self._live.tell(word)
        except AntiphonError as error:
            log.warning("nobody was told of %s: %s", word, error)

    async def _ask(self, session: Session) -> None:
        tenant, response_id = session.tenant, session.opening.id
        try:
            while self._asking[response_id]:
                if (rest := session.echo()) > 0:
                    await asyncio.sleep(rest)
                    continue
                self._asking[response_id] = False
                if session.wonders():
                    session.learn(await self._store.get(tenant, response_id))
        except Unavailable as error:
            log.warning("whether %s is still ours could not be found out: %s", response_id, error)
        finally:
            del self._asking[response_id]

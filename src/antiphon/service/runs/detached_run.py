"""A run that does not hang on one client: a task of its own drives it, and any number of readers follow its log.

    foreground   shown as it goes on; ends, cancelled, when its last reader has been gone for a while
    background   shown when it is durable: batch by batch if it streams, as a whole at its end if not

One of three things becomes of it. It ends, and that is kept. Or it is handed over, as if it had never run here. Or it
is lost to another process; then the store tells its readers the rest, as it does when the end could not be kept.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Literal

from msgspec import Struct

from antiphon.agent.recovery import remains
from antiphon.agent.run import Beyond, Run
from antiphon.core.emitter.emitter import Log
from antiphon.errors import AntiphonError, ServerRestarted, Unavailable
from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.types.events import Event
from antiphon.service.persistence.live_writer import Journal, insist
from antiphon.service.persistence.response_writer import Kept
from antiphon.service.planning.planner import Undertaking
from antiphon.service.runs.active_runs import Running
from antiphon.stores.base import RUNNING, Lost, StoredResponse

log = logging.getLogger(__name__)

_Wish = Literal["cancelled", "handed over", "lost"]


class Charge(Struct, frozen=True, kw_only=True):
    """What a session takes over."""

    tenant: str
    undertaking: Undertaking
    kept: Kept | None
    journal: Journal | None = None  # of a background run
    lease: float
    keep_streams: float = 0.0


class Session(Running):
    def __init__(self, charge: Charge, on_end: Callable[[Run], None]) -> None:
        undertaking = charge.undertaking
        entries: Log = []
        super().__init__(charge.tenant, undertaking.opening, undertaking.obfuscates, entries)
        self._charge = charge
        self._journal = charge.journal
        self._kept = charge.kept
        self._run = Run(undertaking.plan, undertaking.emitter(entries), on_end, self._keep, undertaking.beyond)
        self._streams = undertaking.decoded.request.stream or isinstance(undertaking.beyond, Beyond)
        self._task: asyncio.Task[object] | None = None
        self._writer: asyncio.Task[None] | None = None
        self._wish: _Wish | None = None
        self._body: bytes | None = None
        self._unwritten: Unavailable | None = None  # why an end that nobody has heard of is not in the store yet
        self._readers = 0
        self._timer: asyncio.TimerHandle | None = None
        if self._kept is not None:
            self._kept.on_lost = self.lose
            undertaking.owned(self._kept.fence)
        if self._journal is not None:
            self._run.written = self._caught_up

    # ---- its readers

    def attach(self) -> None:
        self._readers += 1
        self._stop_timer()

    def detach(self) -> None:
        self._readers -= 1
        if self._journal is not None or self._readers or self.over:
            return
        if self._charge.keep_streams:
            self._timer = asyncio.get_running_loop().call_later(self._charge.keep_streams, self.cancel)
        else:
            self.cancel()

    # ---- what others want of it

    def cancel(self) -> None:
        """End it, cancelled. Who wants to know when that is done waits until it is over."""
        self._stop("cancelled")

    def interrupt(self, error: AntiphonError) -> None:
        """End it, failed."""
        if self._task is None:  # a run notices it only while it is driven
            asyncio.get_running_loop().call_soon(self._run.interrupt, error)
        else:
            self._run.interrupt(error)

    def lose(self) -> None:
        """It is not ours any more."""
        if self._journal is not None:
            self._stop("lost")
        elif self._kept is not None:
            self.interrupt(self._kept.gone())

    def hand_over(self, error: AntiphonError) -> None:
        """The server stops: who has not said anything yet, or is between two turns, can be run by another one."""
        if self._journal is None:
            self.interrupt(error)
            return
        self._journal.close()
        if self._journal.spoken and remains(self._journal.written(self.log)) is None:
            self.interrupt(ServerRestarted("The server was stopped while it worked on this response."))
        else:
            self._stop("handed over")

    def echo(self) -> float:
        """Seconds for which a word about it may be its own."""
        return 0.0 if self._journal is None else self._journal.echo()

    def wonders(self) -> bool:
        """A word came: should it ask whether it is still ours?"""
        return self._kept is not None and self._kept.fence > 0 and self._run.ended_at is None

    def learn(self, row: StoredResponse | None) -> None:
        """What the store says."""
        kept = self._kept
        if kept is None or self._run.ended_at is not None:
            return
        if row is None or row.fence != kept.fence or row.status not in RUNNING:
            kept.lose()

    # ---- its life

    async def live(self) -> None:
        """The task of it."""
        self._task = asyncio.current_task()
        if self._journal is not None:
            if self.log:  # what a former owner told: it is gone on with at once, also if there is nothing to add yet
                self._journal.grew(len(self.log))
            self._writer = asyncio.get_running_loop().create_task(self._write(self._journal))
        try:
            await self._drive()
        finally:
            self._stop_timer()
            if self._writer is not None:
                self._writer.cancel()
                await asyncio.wait([self._writer])
            self._settle()

    async def _drive(self) -> None:
        try:
            if self._wish is None:
                await self._run.drive(self._tell)
                return
        except asyncio.CancelledError:
            if self._wish is None:  # nobody's wish: all is being torn down
                raise
            assert self._task is not None
            while self._task.cancelling():
                self._task.uncancel()
        assert self._wish is not None
        try:
            await self._comply(self._wish)
        except AntiphonError as error:
            log.warning("response %s was %s, but that could not be written: %s", self.opening.id, self._wish, error)

    async def _comply(self, wish: _Wish) -> None:
        if wish == "cancelled":
            events = self._run.cancel()
            try:
                await self._keep(self._run)
            finally:
                self._tell(events)
            return
        self._charge.undertaking.leave()
        self._run.leave(wish)
        if wish == "handed over" and self._kept is not None:
            await self._written()
            await self._kept.release()

    def _tell(self, events: list[Event]) -> Awaitable[None] | None:
        """The token path."""
        if self._unwritten is not None:
            return None
        if self._journal is None or self._is_kept():
            self.show(len(self.log))
            return None
        self._journal.grew(len(self.log))
        return self._journal.begun() if self.log else None

    async def _keep(self, run: Run) -> None:
        await self._written()
        if (kept := self._kept) is None:
            return
        # A client of the foreground waits for its last word; the others may be patient.
        patience = 0.0 if self._journal is None and self._wish is None else self._charge.lease
        try:
            self._body = await insist(lambda: kept.end(run.response, self.log), patience)
        except Unavailable as error:
            if self._journal is not None or self._charge.undertaking.decoded.request.stream:
                raise
            # Its client is refused and asks again, with the same key: then it shall hear how it ended.
            self._unwritten = error

    async def _write(self, journal: Journal) -> None:
        try:
            await journal.write(self.log, self._streams, self.show)
        except (Lost, ServerRestarted):
            self.lose()
        except Unavailable as error:
            if journal.spoken:
                self.interrupt(error)
            else:  # nobody has heard anything: when the store is back, it is run by whoever finds it
                self._stop("lost")

    async def _caught_up(self) -> None:
        assert self._journal is not None
        await self._journal.caught_up(self.log)

    async def _written(self) -> None:
        """Nothing is being written any more."""
        if self._journal is not None and self._writer is not None:
            self._journal.close()
            await asyncio.wait([self._writer])

    def _settle(self) -> None:
        """What is said to those who wait for the result; and nothing of it is left to be seen to here."""
        ended = self._run.ended_at is not None
        if ended and (self._journal is None or self._is_kept()):
            self.outcome = self._unwritten or self._run.error or self._body or encode(self._run.response)
        if (kept := self._kept) is None:
            return
        kept.forget()
        if ended and self._journal is None and not kept.ended and not kept.lost:
            # Its readers know how it ended. Who reads it later should be told the same.
            kept.insist(self._run.response, self.log, lambda: None)

    def _is_kept(self) -> bool:
        return self._kept is not None and self._kept.ended

    def _stop(self, wish: _Wish) -> None:
        if self._wish is None and self._run.ended_at is None:
            self._wish = wish
            if self._task is not None:
                self._task.cancel()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

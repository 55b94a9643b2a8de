"""One Response's life: from `response.created` to exactly one terminal event, always last.

A run has one driver: whoever awaits `drive` and is told every event, or awaits `result`. Telling is awaited,
so a slow reader slows the engine down. A driver that goes away is cancelled, and then calls `cancel`. If the
response is kept, its end is told only when that is done.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import time

from msgspec import Struct

from antiphon.admission import Ticket
from antiphon.agent.declared import Declared
from antiphon.agent.patience import Deadlines, Patience
from antiphon.agent.turn import Turn
from antiphon.core.emitter import Emitter, Log
from antiphon.core.fold import Ending
from antiphon.core.prompt import Counts, Finish, Work
from antiphon.core.usage import usage
from antiphon.engines.base import Engine
from antiphon.errors import AntiphonError, EngineFailed, Internal
from antiphon.parsers.base import Parser
from antiphon.protocol.events import Event
from antiphon.protocol.response import Response

log = logging.getLogger(__name__)

Tell = Callable[[list[Event]], Awaitable[None] | None]  # gives what has to be awaited, if anything

_ENDINGS: dict[Finish, Ending] = {
    "stop": Ending(status="completed"),
    "tool_calls": Ending(status="completed"),
    "length": Ending(status="incomplete", reason="max_output_tokens"),
    "content_filter": Ending(status="incomplete", reason="content_filter"),
}


class Plan(Struct, frozen=True, kw_only=True):
    """What was settled before a run starts."""

    engine: Engine
    work: Work
    parser: Parser
    declared: Declared
    summarises: bool = False  # reasoning goes out as a summary
    ticket: Ticket | None = None
    deadlines: Deadlines = Deadlines()


class Run:
    """`keep` writes how it ended; what it raises is how the run ends instead."""

    def __init__(
        self, plan: Plan, emitter: Emitter, on_end: Callable[["Run"], None], keep: "Keep | None" = None
    ) -> None:
        self._plan = plan
        self._emitter = emitter
        self._on_end = on_end
        self._keep = keep
        self._ending = _ENDINGS["stop"]
        self._turns: list[Counts] = []
        self._patience = Patience(plan.deadlines)
        self.error: AntiphonError | None = None
        self.started_at = time()
        self.first_at: float | None = None
        self.ended_at: float | None = None

    @property
    def response(self) -> Response:
        return self._emitter.response

    @property
    def log(self) -> Log:
        """What has happened so far; nothing of a run that nobody keeps."""
        return [] if self._emitter.log is None else self._emitter.log

    @property
    def waits(self) -> bool:
        """Is it the engine, or a place at it, that everybody waits for just now?"""
        return self._patience.waits > 0

    async def drive(self, tell: Tell) -> None:
        """Tell every event, in lists: what came together is told together."""
        self.error = await self._tried(self._turn(tell))
        events = self._end(self._ending if self.error is None else Ending(status="failed", error=self.error))
        try:
            if self._keep is not None:
                fault = await self._tried(self._keep(self))
                if fault is not None and self.error is None:  # one that had failed has failed, kept or not
                    self.error = fault
                    events = self._emitter.instead(fault, int(time()))
        finally:
            self._on_end(self)
        if (telling := tell(events)) is not None:
            await telling

    async def result(self) -> Response:
        """Drive to the end and give the Response; raise what made it fail."""
        await self.drive(_nobody)
        if self.error is not None:
            raise self.error
        return self.response

    def cancel(self) -> list[Event]:
        """The end of a run whose driver went away; nothing if it had ended."""
        if self.ended_at is not None:
            return []
        events = self._end(Ending(status="cancelled"))
        self._on_end(self)
        return events

    def interrupt(self, error: AntiphonError) -> None:
        """End it at once, for this reason; its driver still gets the terminal event."""
        self._patience.end(error)

    async def _tried(self, work: Awaitable[None]) -> AntiphonError | None:
        """What a client can be told of whatever was raised."""
        try:
            await work
        except AntiphonError as error:
            return error
        except Exception:
            log.exception("response %s failed by a defect", self.response.id)
            return Internal("The server made a mistake while it worked on this response.")
        return None

    async def _turn(self, tell: Tell) -> None:
        if (telling := tell(self._emitter.created())) is not None:
            await telling
        plan, patience = self._plan, self._patience
        turn = Turn(plan.parser, plan.declared, self._emitter, plan.summarises)
        patience.start()
        try:
            if plan.ticket is not None:
                patience.waits = 1
                await plan.ticket.ready()
                patience.waits = 0
            if (telling := tell(self._emitter.in_progress())) is not None:
                await telling
            if patience.over is not None:
                raise patience.over
            await self._listen(turn, tell)
        except asyncio.CancelledError:
            if patience.over is not None and patience.was_us():
                raise patience.over from None
            raise
        finally:
            patience.stop()
            self._turns.append(turn.counts)
        if turn.finish not in _ENDINGS:  # none at all, or a word that nobody knows
            raise EngineFailed("The engine stopped in the middle of its answer.")
        self._ending = _ENDINGS[turn.finish]

    async def _listen(self, turn: Turn, tell: Tell) -> None:
        """The token path."""
        plan, patience = self._plan, self._patience
        patience.allow(plan.deadlines.first)
        source, waits = plan.engine.generate(plan.work), 1
        try:
            patience.waits = waits
            async for chunks in source:
                patience.waits = 0
                if events := turn.feed(chunks):
                    if self.first_at is None:
                        self.first_at = time()
                        patience.allow(plan.deadlines.idle)
                    if (telling := tell(events)) is not None:
                        await telling
                if patience.over is not None:
                    raise patience.over
                patience.waits = waits = waits + 1
        finally:
            patience.waits = 0
            await source.aclose()
        if (rest := turn.end()) and (telling := tell(rest)) is not None:
            await telling

    def _end(self, ending: Ending) -> list[Event]:
        self.ended_at = time()
        if self._plan.ticket is not None:
            self._plan.ticket.leave()
        return self._emitter.finish(ending, usage(self._turns), int(self.ended_at))


Keep = Callable[[Run], Awaitable[None]]


def _nobody(events: list[Event]) -> None:
    """Is told, and does not listen."""

"""One Response's life: from `response.created` to exactly one terminal event, always last.

A run has one driver: whoever awaits `drive` and is told every event, or awaits `result`. Telling is awaited,
so a slow reader slows the engine down. A driver that goes away is cancelled, and then calls `cancel`. If the
response is kept, its end is told only when that is done.
"""

from collections.abc import Awaitable, Callable
from time import time

from antiphon.agent.hearing import Hearing, tried
from antiphon.agent.plan import Plan
from antiphon.agent.turn import Turn
from antiphon.core.emitter import Emitter, Log
from antiphon.core.fold import Ending
from antiphon.core.prompt import Counts, Finish
from antiphon.core.usage import usage
from antiphon.errors import AntiphonError, EngineFailed
from antiphon.protocol.events import Event
from antiphon.protocol.response import Response

Tell = Callable[[list[Event]], Awaitable[None] | None]  # gives what has to be awaited, if anything

_ENDINGS: dict[Finish, Ending] = {
    "stop": Ending(status="completed"),
    "tool_calls": Ending(status="completed"),
    "length": Ending(status="incomplete", reason="max_output_tokens"),
    "content_filter": Ending(status="incomplete", reason="content_filter"),
}


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
        self._hearing = Hearing(plan)
        self.error: AntiphonError | None = None
        self.started_at = time()
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
        return self._hearing.waits

    @property
    def first_at(self) -> float | None:
        return self._hearing.first_at

    async def drive(self, tell: Tell) -> None:
        """Tell every event, in lists: what came together is told together."""
        self.error = await tried(self._turn(tell), self.response.id)
        events = self._end(self._ending if self.error is None else Ending(status="failed", error=self.error))
        try:
            if self._keep is not None:
                fault = await tried(self._keep(self), self.response.id)
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
        self._hearing.interrupt(error)

    async def _turn(self, tell: Tell) -> None:
        if (telling := tell(self._emitter.created())) is not None:
            await telling
        plan, hearing = self._plan, self._hearing
        turn = Turn(plan.parser, plan.declared, self._emitter, plan.summarises)
        try:
            with hearing:
                await hearing.ready()
                if (telling := tell(self._emitter.in_progress())) is not None:
                    await telling
                await hearing.listen(turn.feed, tell)
            if (rest := turn.end()) and (telling := tell(rest)) is not None:
                await telling
        finally:
            self._turns.append(turn.counts)
        if turn.finish not in _ENDINGS:  # none at all, or a word that nobody knows
            raise EngineFailed("The engine stopped in the middle of its answer.")
        self._ending = _ENDINGS[turn.finish]

    def _end(self, ending: Ending) -> list[Event]:
        self.ended_at = time()
        self._hearing.leave()
        return self._emitter.finish(ending, usage(self._turns), int(self.ended_at))


Keep = Callable[[Run], Awaitable[None]]


def _nobody(events: list[Event]) -> None:
    """Is told, and does not listen."""

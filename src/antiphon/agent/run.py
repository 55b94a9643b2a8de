"""One Response's life: from `response.created` to exactly one terminal event, always last.

A run has one driver: whoever awaits `drive` and is told every event, or awaits `result`. Telling is awaited,
so a slow reader slows the engine down. A driver that goes away is cancelled, and then calls `cancel`. If the
response is kept, its end is told only when that is done.
"""

from collections.abc import Awaitable, Callable, Sequence
from time import time

from antiphon.agent.hearing import Hearing, tried
from antiphon.agent.insist import Insisting, Outcome, insisting
from antiphon.agent.plan import Plan
from antiphon.agent.rules import Reason
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
        self._insisting = insisting(plan)
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

    @property
    def insisted(self) -> Sequence[tuple[Reason, Outcome]]:
        """What was wrong with what the model said, and what came of it."""
        return () if self._insisting is None else self._insisting.outcomes

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
        plan: Plan | None = self._plan
        while plan is not None:
            plan = await self._try(plan, tell)

    async def _try(self, plan: Plan, tell: Tell) -> Plan | None:
        """One call of the model; the plan of another, if one is needed."""
        hearing, insisting = self._hearing, self._insisting
        sieve = None if insisting is None else insisting.sieve
        turn = Turn(plan.parser, plan.declared, self._emitter, plan.thoughts(), sieve)
        try:
            with hearing:
                if plan is self._plan:
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
        return None if insisting is None else await self._judged(insisting, turn, plan, tell)

    async def _judged(self, insisting: Insisting, turn: Turn, plan: Plan, tell: Tell) -> Plan | None:
        await insisting.judge(turn.cut)
        if (rest := turn.release()) and (telling := tell(rest)) is not None:
            await telling
        if (again := await insisting.next(plan)) is not None:
            self._hearing.turn_to(again)
        return again

    def _end(self, ending: Ending) -> list[Event]:
        self.ended_at = time()
        self._hearing.leave()
        return self._emitter.finish(ending, usage(self._turns), int(self.ended_at))


Keep = Callable[[Run], Awaitable[None]]


def _nobody(events: list[Event]) -> None:
    """Is told, and does not listen."""

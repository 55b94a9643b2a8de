"""One Response's life: from `response.created` to exactly one terminal event, always last.

A run has one driver: whoever awaits `drive` and is told every event, or only looks how it ended. Telling is awaited,
so a slow reader slows the engine down. A driver that goes away is cancelled, and then calls `cancel`. If the
response is kept, its end is told only when that is done.
"""

import sys
from collections.abc import Awaitable, Callable, Sequence
from time import time

from msgspec import Struct

from antiphon.agent.completion_run import counts_of
from antiphon.agent.engine_stream import Hearing, tried
from antiphon.agent.model_call import Plan
from antiphon.agent.n_choices import Choices, Several
from antiphon.agent.output_gate import Sieve
from antiphon.agent.output_retry import Insisting, Outcome
from antiphon.agent.output_rules import Reason
from antiphon.agent.reasoning import Thoughts
from antiphon.agent.recovery import Remains
from antiphon.agent.run_tracer import Outcome as Seen
from antiphon.agent.tool_loop import Bounds, Loop
from antiphon.agent.turn import Turn, Warming
from antiphon.agent.turn_policy import Course
from antiphon.core.emitter.emitter import Emitter, Log
from antiphon.core.emitter.fold import Ending
from antiphon.core.prompt import Counts, Finish
from antiphon.core.usage import sum_of, usage
from antiphon.errors import AntiphonError, EngineFailed
from antiphon.protocol.types.events import Event
from antiphon.protocol.types.response import Response

Tell = Callable[[list[Event]], Awaitable[None] | None]  # gives what has to be awaited, if anything

_ENDINGS: dict[Finish | None, Ending] = {
    "stop": Ending(status="completed"),
    "tool_calls": Ending(status="completed"),
    "length": Ending(status="incomplete", reason="max_output_tokens"),
    "content_filter": Ending(status="incomplete", reason="content_filter"),
}
_WARMED = Ending(status="completed", silent=True)
_STEERED = Ending(status="incomplete", reason="steered")
_NONE = Counts()


class Steered(AntiphonError):
    """No failure: the run ends because somebody wants it to go on otherwise."""


class Beyond(Struct, frozen=True, kw_only=True):
    """What a run may do beyond one turn."""

    course: Course
    bounds: Bounds = Bounds()
    remains: Remains | None = None  # of another server, which had begun it; None: nobody had


class Run:
    """`keep` writes how it ended; what it raises is how the run ends instead."""

    def __init__(
        self,
        plan: Plan,
        emitter: Emitter,
        on_end: Callable[["Run"], None],
        keep: "Keep | None" = None,
        beyond: Beyond | Choices | None = None,
    ) -> None:
        self._plan = plan
        self._emitter = emitter
        self._on_end = on_end
        self._keep = keep
        self._beyond = beyond
        self._turns: list[Counts] = []
        self._witness = None if plan.watch is None else plan.watch(emitter.response.id)
        self.hearing = Hearing(plan)
        self.insisted: list[tuple[Reason, Outcome]] = []  # what was wrong with what the model said, and what came of it
        self.ran: Sequence[tuple[str, str, float]] = ()  # kinds of what the server ran, what came of it, seconds
        self.written: Callable[[], Awaitable[None]] | None = None  # until all that was told is durable
        self.error: AntiphonError | None = None
        self.ending = _ENDINGS["stop"]  # of one that has ended
        self.counts = _NONE  # of all turns of one that has ended
        self.heard = 0  # chunks of all turns
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
        return self.hearing.waits > 0

    async def drive(self, tell: Tell | None) -> None:
        """Tell every event, in lists: what came together is told together. None: nobody hears it before its end, and
        what only events need is not made."""
        if tell is None:
            self._emitter.hushed = True
            tell = _nobody
        name = self._emitter.told.id
        if (error := await tried(self._work(tell), name)) is not None:
            self._fail(error)
        events = self._end(self.ending)
        try:
            if self._keep is not None:
                fault = await tried(self._keep(self), name)
                if fault is not None and self.error is None:  # one that had failed has failed, kept or not
                    self._fail(fault)
                    events = self._emitter.instead(fault, int(time()))
        finally:
            self._on_end(self)
        if events and (telling := tell(events)) is not None:
            await telling

    def cancel(self) -> list[Event]:
        """The end of a run whose driver went away; nothing if it had ended."""
        if self.ended_at is not None:
            return []
        events = self._end(Ending(status="cancelled"))
        self._on_end(self)
        return events

    def interrupt(self, error: AntiphonError) -> None:
        """End it at once, for this reason; its driver still gets the terminal event."""
        self.hearing.end(error)

    def leave(self, why: str) -> None:
        """It goes on elsewhere, or nowhere; what was told of it here is all."""
        if self._witness is not None:
            self._witness.end(Seen(status=why, model=self.response.model, counts=sum_of(self._turns)))

    def steer(self) -> bool:
        """End it where it is, so that it can be gone on with otherwise. False: that would break a call off, or what the
        server runs, and it goes on."""
        if self._beyond is not None or self._emitter.calling:
            return False
        self.interrupt(Steered("The response was steered."))
        return True

    def _fail(self, error: AntiphonError) -> None:
        if isinstance(error, Steered):
            self.ending = _STEERED
        else:
            self.error, self.ending = error, Ending(status="failed", error=error)

    def _work(self, tell: Tell) -> Awaitable[object]:
        if self._beyond is None:
            return self._warmed(tell) if self._plan.warms else self._taken(self._plan, tell, begins=True)
        if isinstance(self._beyond, Choices):
            return self._chosen(self._beyond, tell)
        return self._looped(self._beyond, tell)

    async def _warmed(self, tell: Tell) -> None:
        """The engine has read the prompt; what it said is nobody's business."""
        hearing, ticket, read = self.hearing, self._plan.ticket, Warming()
        if (telling := tell(self._emitter.created())) is not None:
            await telling
        with hearing:
            if ticket is not None and not ticket.running:
                await hearing.ready(ticket)
            if (telling := tell(self._emitter.in_progress())) is not None:
                await telling
            await hearing.listen(read.feed, tell)
        self._turns.append(read.counts)
        self.ending = _WARMED

    async def _chosen(self, asked: Choices, tell: Tell) -> None:
        """One answer that was cut makes all of it incomplete."""
        await self._told_to_begin(tell)
        several = Several((self._plan, *asked.others), self._witness)
        try:
            with self.hearing, self.hearing.aside():
                await several.hear()
        finally:
            self._turns.append(counts_of(several.answers))
            for answer in several.answers:
                self.heard += answer.heard
                self.insisted += answer.insisted
        if (events := self._emitter.feed(several.told(asked.hides_logprobs))) and (telling := tell(events)) is not None:
            await telling
        endings = [_ENDINGS[answer.finish] for answer in several.answers]
        self.ending = next((one for one in endings if one.status != "completed"), endings[0])

    async def _looped(self, beyond: Beyond, tell: Tell) -> None:
        loop = Loop(beyond.course, beyond.bounds, self._emitter, self._turns)
        loop.witness = self._witness
        self.ran = loop.ran
        loop.tell_to(tell, self.written)
        try:
            plan = await self._begun(loop, beyond.remains, tell)
            while plan is not None:
                self.hearing.turn_to(plan)
                plan = (await self._taken(plan, tell)).plan
                if self.ending.status != "completed":  # a call that was cut is never run
                    return
                self.hearing.leave()
                plan = await self._aside(loop.after(plan))
            if loop.out_of_tokens:
                self.ending = _ENDINGS["length"]
        finally:
            await loop.close()

    async def _begun(self, loop: Loop, remains: Remains | None, tell: Tell) -> Plan | None:
        if remains is not None:
            return await self._aside(loop.resume(remains))
        await self._told_to_begin(tell)
        if loop.prelude:
            self.hearing.leave()  # others may have the place meanwhile
        return await self._aside(loop.begin(self._plan))

    async def _told_to_begin(self, tell: Tell) -> None:
        for events in (self._emitter.created(), self._emitter.in_progress()):
            if (telling := tell(events)) is not None:
                await telling

    async def _aside(self, work: Awaitable[Plan | None]) -> Plan | None:
        """What is done between the turns takes of the run's own time."""
        with self.hearing, self.hearing.aside():
            return await work

    def _taken(self, plan: Plan, tell: Tell, begins: bool = False) -> Awaitable[Turn]:
        """A call of the model, and others while it did not do as it must. Gives the last."""
        if plan.insists is None:
            return self._called(plan, tell, begins)
        return self._insisted(plan, Insisting(plan.insists), tell, begins)

    async def _insisted(self, plan: Plan, insisting: Insisting, tell: Tell, begins: bool) -> Turn:
        while True:
            turn = await self._called(plan, tell, begins, insisting.sieve)
            again = await self._judged(insisting, turn, plan, tell)
            if again is None:
                return turn
            self.hearing.turn_to(again)
            plan, begins = again, False

    async def _called(self, plan: Plan, tell: Tell, begins: bool, sieve: Sieve | None = None) -> Turn:
        """`begins`: the response does, with this call."""
        hearing, emitter = self.hearing, self._emitter
        thoughts = Thoughts(plan.summarises, plan.seal) if plan.summarises or plan.seal is not None else None
        turn = Turn(plan, emitter, thoughts, sieve)
        if begins and not emitter.hushed and (telling := tell(emitter.created())) is not None:
            await telling
        call = None if self._witness is None else self._witness.call(plan.engine.name, plan.work)
        feed = turn.feed if call is None else call.heard(turn.feed)
        try:
            with hearing:
                if (ticket := plan.ticket) is not None and not ticket.running:
                    await hearing.ready(ticket)
                if call is not None:
                    call.ready()
                if begins and (begun := emitter.in_progress()) and (telling := tell(begun)) is not None:
                    await telling
                if not plan.work.whole:
                    await hearing.listen(feed, tell)
                else:
                    chunks = await hearing.answer()
                    hearing.waits = 0
                    if (told := feed(chunks)) and (telling := tell(told)) is not None:
                        await telling
            if (rest := turn.end()) and (telling := tell(rest)) is not None:
                await telling
        finally:
            self._turns.append(turn.counts)
            self.heard += turn.heard
            if call is not None:
                call.end(turn.finish, turn.counts, sys.exception())
        if (ending := _ENDINGS.get(turn.finish)) is None:  # it said none at all, or a word that nobody knows
            raise EngineFailed("The engine stopped in the middle of its answer.")
        self.ending = ending
        return turn

    async def _judged(self, insisting: Insisting, turn: Turn, plan: Plan, tell: Tell) -> Plan | None:
        known = len(insisting.outcomes)
        try:
            await insisting.judge(turn.cut)
            if (rest := turn.release()) and (telling := tell(rest)) is not None:
                await telling
            return await insisting.next(plan)
        finally:
            self.insisted += insisting.outcomes[known:]

    def _end(self, ending: Ending) -> list[Event]:
        turns = self._turns
        self.ending, self.ended_at = ending, time()
        self.counts = turns[0] if len(turns) == 1 else sum_of(turns)
        self.hearing.leave()
        counted = ending.status == "completed" or self.counts != _NONE  # what was broken off, engines do not count
        events = self._emitter.finish(ending, usage(turns) if counted else None, int(self.ended_at))
        if self._witness is not None:
            code = "" if ending.error is None else ending.error.code or ""
            self._witness.end(Seen(status=ending.status, error=code, model=self.response.model, counts=self.counts))
        return events


Keep = Callable[[Run], Awaitable[None]]


def _nobody(events: list[Event]) -> None:
    """Is told, and does not listen."""

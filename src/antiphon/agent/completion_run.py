"""A question and its answers in another API's dialect: no run, no log, no store. core/dialects/dialect.py says the
words.

    exchange = Exchange(plans, dialect, on_end)      one plan for each choice
    await exchange.begin()          until there is something to tell: what fails before that is raised, a plain error
    await exchange.drive(tell)      everything is told, in lists; a failure is told too, as the last thing
    await exchange.result()         or, instead of both: the JSON body; whatever fails is raised
    await exchange.leave()          in any case: whoever left before the end cancels it

One choice is heard by the driver itself. Several are heard side by side, each in a task that `leave` waits for, and the
first that fails ends them all. `interrupt` ends an exchange at once; its driver still gets the end told.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from time import time
from typing import Literal, get_args

from msgspec import Struct

from antiphon.agent.engine_stream import Hearing, tried
from antiphon.agent.model_call import Plan
from antiphon.agent.output_retry import Insisting, Outcome, insisting
from antiphon.agent.output_rules import Reason
from antiphon.agent.run_tracer import Call, Witness
from antiphon.agent.run_tracer import Outcome as Seen
from antiphon.agent.turn import CUT
from antiphon.core.deltas import CallDone, Delta
from antiphon.core.dialects.dialect import Dialect, Speaker, Told
from antiphon.core.prompt import Chunk, Counts, Finish
from antiphon.core.usage import counted, sum_of
from antiphon.errors import AntiphonError, EngineFailed
from antiphon.parsers.base import Enough

Tell = Callable[[Told], Awaitable[None] | None]
Status = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]

Reword = Callable[[AntiphonError], AntiphonError]  # the same error in the words of the API

_KNOWN: frozenset[str | None] = frozenset(get_args(Finish))
_NAME = "an exchange"  # in logs


class Exchange:
    def __init__(
        self,
        plans: Sequence[Plan],
        dialect: Dialect,
        on_end: Callable[["Exchange"], None],
        reword: Reword | None = None,
    ) -> None:
        self._dialect = dialect
        self._reword = reword
        self._witness = None if (watch := plans[0].watch) is None else watch("")
        self._answers = [Answer(plan, dialect, number, self._witness) for number, plan in enumerate(plans)]
        self._choir = None if len(plans) == 1 else Choir(self._answers)
        self._on_end = on_end
        self._begun: Told | None = None  # what is told first
        self.error: AntiphonError | None = None
        self.status: Status = "in_progress"
        self.started_at = time()
        self.ended_at: float | None = None

    @property
    def waits(self) -> bool:
        """Is it the engine, or a place at it, that everybody waits for just now?"""
        return any(answer.hearing.waits > 0 for answer in self._answers)

    @property
    def first_at(self) -> float | None:
        return min((at for answer in self._answers if (at := answer.hearing.first_at) is not None), default=None)

    @property
    def counts(self) -> Counts:
        return counts_of(self._answers)

    @property
    def heard(self) -> int:
        """Chunks of all choices: mostly a token each."""
        return sum([answer.heard for answer in self._answers])

    @property
    def insisted(self) -> Sequence[tuple[Reason, Outcome]]:
        return [one for answer in self._answers for one in answer.insisted]

    async def begin(self) -> None:
        """Raises what went wrong before there was anything to tell."""
        self.error = self._worded(await tried(self._begin(), _NAME))
        if self.error is not None:
            raise self.error

    async def drive(self, tell: Tell) -> None:
        """To the end. What `begin` raised is told here, if somebody has to be told in a stream."""
        if self.error is None:
            self.error = self._worded(await tried(self._drive(tell), _NAME))
        told = self._dialect.close(self.counts) if self.error is None else self._dialect.fault(self.error)
        self._end(self._outcome())
        if told and (telling := tell(told)) is not None:
            await telling

    async def result(self) -> Struct:
        await self.begin()
        await self.drive(self._dialect.fold)
        if self.error is not None:
            raise self.error
        return self._dialect.result()

    async def leave(self) -> None:
        """Whatever the engines still do for it ends now."""
        if self._choir is not None:
            await self._choir.leave()
        else:
            await self._answers[0].hearing.close()
        self._end("failed" if self.error is not None else "cancelled")

    def interrupt(self, error: AntiphonError) -> None:
        for answer in self._answers:
            answer.hearing.end(error)

    def _worded(self, error: AntiphonError | None) -> AntiphonError | None:
        return error if error is None or self._reword is None else self._reword(error)

    async def _begin(self) -> None:
        begun = self._dialect.begin()
        if self._choir is not None:
            await self._choir.begin()
        else:
            begun += await self._answers[0].first()
        self._begun = begun

    async def _drive(self, tell: Tell) -> None:
        if self._begun is None:
            await self._begin()
        if self._begun and (telling := tell(self._begun)) is not None:
            await telling
        if self._choir is not None:
            await self._choir.go_on(tell)
            return
        await self._answers[0].go_on(tell)

    def _outcome(self) -> Status:
        if self.error is not None:
            return "failed"
        return "incomplete" if any(answer.finish in CUT for answer in self._answers) else "completed"

    def _end(self, status: Status) -> None:
        """Once; what comes first counts."""
        if self.ended_at is None:
            self.ended_at = time()
            self.status = status
            if self._witness is not None:
                self._tell(self._witness)
            self._on_end(self)

    def _tell(self, witness: Witness) -> None:
        for answer in self._answers:
            answer.seen(self.error)
        code = "" if self.error is None else self.error.code or ""
        model = self._answers[0].plan.work.model
        witness.end(Seen(status=self.status, error=code, model=model, counts=self.counts))


class Answer:
    """One choice: what a call of the model says, in the speaker's words."""

    def __init__(self, plan: Plan, dialect: Speaker, choice: int, witness: Witness | None = None) -> None:
        self.plan = plan
        self._witness = witness
        self._call: Call | None = None  # as the witness sees it
        self.hearing = Hearing(plan)
        self._insisting = insisting(plan)
        self._plan = plan  # of this try
        self._before: list[Counts] = []  # of the tries before this one
        self.finish: Finish | None = None
        self.heard = 0
        self._counts = Counts()
        self._parse = plan.parser.feed
        self._name = plan.declared.name
        self._say = dialect.feed
        self._dialect = dialect
        self._notes_tokens = plan.work.sampling.return_token_ids
        self._choice = choice

    @property
    def counts(self) -> Counts:
        """Of all tries together."""
        return sum_of([*self._before, self._counts]) if self._before else self._counts

    @property
    def insisted(self) -> Sequence[tuple[Reason, Outcome]]:
        """What was wrong with what the model said, and what came of it."""
        return () if self._insisting is None else self._insisting.outcomes

    async def first(self) -> Told:
        if self._witness is not None:
            self._watched(self._witness)
        with self.hearing:
            if (ticket := self._plan.ticket) is not None and not ticket.running:
                await self.hearing.ready(ticket)
            return await self.hearing.first(self.feed if self._call is None else self._fed())

    async def hear(self, tell: Tell) -> None:
        """All of it, in a task of its own."""
        if self._witness is not None:
            self._watched(self._witness)
        with self.hearing:
            if (ticket := self._plan.ticket) is not None and not ticket.running:
                await self.hearing.ready(ticket)
        await self.go_on(tell)

    async def go_on(self, tell: Tell) -> None:
        """To the end, from wherever it is; in several tries if it has to be."""
        again = True
        while again:
            with self.hearing:
                await self.hearing.listen(self.feed if self._call is None else self._fed(), tell)
            if self._insisting is None:
                again = False
                self.hearing.leave()
            if (rest := self._rest()) and (telling := tell(rest)) is not None:
                await telling
            if self._insisting is not None:
                again = await self._judged(self._insisting, tell)
        if (last := self._end()) and (telling := tell(last)) is not None:
            await telling

    def feed(self, chunks: list[Chunk]) -> Told:
        deltas: list[Delta] = []
        self.heard += len(chunks)
        try:
            for chunk in chunks:
                deltas += self._parse(chunk)
                if chunk.finish is not None:
                    self.finish = chunk.finish
                if chunk.counts is not None:
                    self._counts = chunk.counts
                if chunk.extras is not None or (self._notes_tokens and chunk.tokens):
                    self._dialect.note(chunk, self._choice)
        except Enough as enough:
            self._stop(enough.last)
            if not deltas:
                raise
        return self._told(deltas) if deltas else []

    def _stop(self, last: Chunk) -> None:
        """It has ended, whatever the model says: this is its end, and the engine's is none any more."""
        if self.finish is None:
            self._dialect.note(last, self._choice)
        self.finish, self._counts = last.finish, last.counts or self._counts

    async def _judged(self, insisting: Insisting, tell: Tell) -> bool:
        """Whether there is another try."""
        await insisting.judge(self.finish in CUT)
        if (held := insisting.sieve.release()) and (telling := tell(self._say(held, self._choice))) is not None:
            await telling
        if (plan := await insisting.next(self._plan)) is None:
            self.hearing.leave()
            return False
        self._before.append(self._counts)
        self._turn_to(plan)
        return True

    def _turn_to(self, plan: Plan) -> None:
        self.seen()
        self._plan = plan
        self._parse, self._name = plan.parser.feed, plan.declared.name
        self.finish, self._counts = None, Counts()
        self.hearing.turn_to(plan)
        if self._witness is not None:
            self._watched(self._witness)

    def _watched(self, witness: Witness) -> None:
        self._call = witness.call(self._plan.engine.name, self._plan.work)

    def _fed(self) -> Callable[[list[Chunk]], Told]:
        assert self._call is not None
        return self._call.heard(self.feed)

    def seen(self, error: BaseException | None = None) -> None:
        """The call is over, for whoever watches it."""
        if self._call is not None:
            self._call.end(self.finish, self._counts, error)
            self._call = None

    def _rest(self) -> Told:
        """What the parser had held back. A call that was cut stays open."""
        held = [*self._plan.parser.finish()]
        self._counts = counted(self._counts, self._plan.parser.reasoning_tokens)
        if self.finish in CUT:
            held = [delta for delta in held if type(delta) is not CallDone]
        told: Told = []
        with suppress(Enough):
            told = self._told(held) if held else []
        if self.finish is None or self.finish not in _KNOWN:
            raise EngineFailed("The engine stopped in the middle of its answer.")
        return told

    def _end(self) -> Told:
        assert self.finish is not None
        return self._dialect.end(self.finish, self.counts, self._choice)

    def _told(self, deltas: list[Delta]) -> Told:
        if self._insisting is None:
            return self._say(self._name(deltas), self._choice)
        try:
            told = self._insisting.sieve.feed(self._name(deltas))
        except Enough as enough:
            self._stop(enough.last)
            raise
        return self._say(told, self._choice) if told else []


def counts_of(answers: Sequence[Answer]) -> Counts:
    """Of all choices together: a prompt that several share counts once, as for the first of them."""
    prompts = {id(answer.plan.work.prompt): answer.counts for answer in reversed(answers)}.values()
    return Counts(
        input_tokens=sum([counts.input_tokens for counts in prompts]),
        cached_tokens=sum([counts.cached_tokens for counts in prompts]),
        output_tokens=sum([answer.counts.output_tokens for answer in answers]),
        reasoning_tokens=sum([answer.counts.reasoning_tokens for answer in answers]),
    )


class Choir:
    """Several answers at once. None of them tells anything before somebody listens; then all tell the same one."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self._answers = answers
        self._tasks: list[asyncio.Task[None]] = []
        self._tell: Tell | None = None
        self._held: Told = []  # of those who wait for a listener, one list each
        self._begun = asyncio.Event()
        self._listened = asyncio.Event()

    async def begin(self) -> None:
        """Until one of them has something to tell, or fails."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(answer.hear(self._told)) for answer in self._answers]
        for task in self._tasks:
            task.add_done_callback(lambda _: self._begun.set())
        await self._begun.wait()
        await self._check()

    async def go_on(self, tell: Tell) -> None:
        """To the end of all, or of the first that fails."""
        self._tell, held = tell, self._held
        if held and (telling := tell(held)) is not None:
            await telling
        self._listened.set()
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        await self._check()

    async def leave(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for answer in self._answers:
            await answer.hearing.close()

    def _told(self, told: Told) -> Awaitable[None] | None:
        if self._tell is not None:
            return self._tell(told)
        self._held += told
        self._begun.set()
        return self._listening()

    async def _listening(self) -> None:
        await self._listened.wait()

    async def _check(self) -> None:
        failed = [task for task in self._tasks if task.done() and not task.cancelled() and task.exception()]
        if failed:
            await self.leave()
            failed[0].result()

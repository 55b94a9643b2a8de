"""A question and its answers in another API's dialect: no run, no log, no store. core/dialect.py says the words.

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
from time import time
from typing import Literal, get_args

from msgspec import Struct

from antiphon.agent.hearing import Hearing, tried
from antiphon.agent.plan import Plan
from antiphon.agent.thoughts import as_summary
from antiphon.core.deltas import CallDone, Delta
from antiphon.core.dialect import Dialect, Told
from antiphon.core.prompt import Chunk, Counts, Finish
from antiphon.errors import AntiphonError, EngineFailed

Tell = Callable[[Told], Awaitable[None] | None]
Status = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]

Reword = Callable[[AntiphonError], AntiphonError]  # the same error in the words of the API

_KNOWN: frozenset[str | None] = frozenset(get_args(Finish))
_NAME = "an exchange"  # in logs
_CUT: frozenset[Finish | None] = frozenset({"length", "content_filter"})


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
        self._answers = [Answer(plan, dialect, number) for number, plan in enumerate(plans)]
        self._choir = None if len(plans) == 1 else _Choir(self._answers)
        self._on_end = on_end
        self._begun: Told | None = None  # what is told first
        self.error: AntiphonError | None = None
        self.status: Status = "in_progress"
        self.started_at = time()
        self.ended_at: float | None = None

    @property
    def waits(self) -> bool:
        """Is it the engine, or a place at it, that everybody waits for just now?"""
        return any(answer.hearing.waits for answer in self._answers)

    @property
    def first_at(self) -> float | None:
        return min((at for answer in self._answers if (at := answer.hearing.first_at) is not None), default=None)

    @property
    def counts(self) -> Counts:
        """Of all choices together: a prompt that several share counts once, as for the first of them."""
        prompts = {id(answer.plan.work.prompt): answer.counts for answer in reversed(self._answers)}.values()
        return Counts(
            input_tokens=sum([counts.input_tokens for counts in prompts]),
            cached_tokens=sum([counts.cached_tokens for counts in prompts]),
            output_tokens=sum([answer.counts.output_tokens for answer in self._answers]),
            reasoning_tokens=sum([answer.counts.reasoning_tokens for answer in self._answers]),
        )

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
        for answer in self._answers:
            await answer.hearing.close()
        self._end("failed" if self.error is not None else "cancelled")

    def interrupt(self, error: AntiphonError) -> None:
        for answer in self._answers:
            answer.hearing.interrupt(error)

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
        answer = self._answers[0]
        with answer.hearing:
            await answer.hearing.listen(answer.feed, tell)
        answer.hearing.leave()
        if (rest := answer.end()) and (telling := tell(rest)) is not None:
            await telling

    def _outcome(self) -> Status:
        if self.error is not None:
            return "failed"
        return "incomplete" if any(answer.finish in _CUT for answer in self._answers) else "completed"

    def _end(self, status: Status) -> None:
        """Once; what comes first counts."""
        if self.ended_at is None:
            self.ended_at = time()
            self.status = status
            self._on_end(self)


class Answer:
    """One choice: what a call of the model says, in the dialect's words."""

    def __init__(self, plan: Plan, dialect: Dialect, choice: int) -> None:
        self.plan = plan
        self.hearing = Hearing(plan)
        self.finish: Finish | None = None
        self.counts = Counts()
        self._parse = plan.parser.feed
        self._name = plan.declared.name
        self._say = dialect.feed
        self._dialect = dialect
        self._notes_tokens = plan.work.sampling.return_token_ids
        self._choice = choice

    async def first(self) -> Told:
        with self.hearing:
            await self.hearing.ready()
            return await self.hearing.first(self.feed)

    async def hear(self, tell: Tell) -> None:
        """All of it, in a task of its own."""
        with self.hearing:
            await self.hearing.ready()
            await self.hearing.listen(self.feed, tell)
        self.hearing.leave()
        if (rest := self.end()) and (telling := tell(rest)) is not None:
            await telling

    def feed(self, chunks: list[Chunk]) -> Told:
        deltas: list[Delta] = []
        for chunk in chunks:
            deltas += self._parse(chunk)
            if chunk.finish is not None:
                self.finish = chunk.finish
            if chunk.counts is not None:
                self.counts = chunk.counts
            if chunk.extras is not None or (self._notes_tokens and chunk.tokens):
                self._dialect.note(chunk, self._choice)
        return self._told(deltas) if deltas else []

    def end(self) -> Told:
        """What the parser had held back, and the end. A call that was cut stays open."""
        held = [*self.plan.parser.finish()]
        if self.finish in _CUT:
            held = [delta for delta in held if type(delta) is not CallDone]
        told = self._told(held) if held else []
        if self.finish is None or self.finish not in _KNOWN:
            raise EngineFailed("The engine stopped in the middle of its answer.")
        return told + self._dialect.end(self.finish, self.counts, self._choice)

    def _told(self, deltas: list[Delta]) -> Told:
        named = self._name(deltas)
        return self._say(as_summary(named) if self.plan.summarises else named, self._choice)


class _Choir:
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

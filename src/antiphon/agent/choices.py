"""Several answers to one request: heard side by side, told one after another, the likeliest first.

Which one that is is known when all are there, so nothing is told before. The first that fails ends them all.
"""

import asyncio
from collections.abc import Iterable, Sequence
from sys import exception

from msgspec import Struct

from antiphon.agent.hearing import Hearing
from antiphon.agent.insist import Insisting, Outcome, insisting
from antiphon.agent.plan import Plan
from antiphon.agent.rules import Reason
from antiphon.agent.thoughts import Thoughts
from antiphon.agent.turn import CUT, Turn
from antiphon.agent.witness import Witness
from antiphon.core.deltas import Break, Delta, Text
from antiphon.core.prompt import Chunk, Counts, Finish
from antiphon.core.scores import mean
from antiphon.core.usage import of_choices, sum_of
from antiphon.protocol.events import Event


class Choices(Struct, frozen=True, kw_only=True):
    """Whom to ask for the answers beside the first; each waits for its own place at the model."""

    others: Sequence[Plan]
    hides_logprobs: bool  # they were asked for to compare the answers, and by nobody else


class Choice:
    """One of the answers, as it is heard; in several tries, if it has to be."""

    def __init__(self, plan: Plan, witness: Witness | None) -> None:
        self._plan = plan
        self._witness = witness
        self._notes = _Notes()
        self._hearing = Hearing(plan)
        self._insisting = insisting(plan)
        self._tries: list[Counts] = []
        self.finish: Finish | None = None
        self.heard = 0  # chunks of all tries

    @property
    def cut(self) -> bool:
        return self.finish in CUT

    @property
    def counts(self) -> Counts:
        return sum_of(self._tries)

    @property
    def insisted(self) -> Sequence[tuple[Reason, Outcome]]:
        return () if self._insisting is None else self._insisting.outcomes

    @property
    def score(self) -> float:
        """By its text alone: thoughts have no log probabilities."""
        said = [delta for delta in self._notes.deltas if type(delta) is Text]
        return mean([one.logprob for delta in said for one in delta.logprobs])

    async def hear(self) -> None:
        """In a task of its own."""
        plan: Plan | None = self._plan
        try:
            while plan is not None:
                self._hearing.turn_to(plan)
                turn = await self._called(plan)
                plan = None if self._insisting is None else await self._judged(self._insisting, turn, plan)
        finally:
            await self._hearing.close()

    def told(self, hides_logprobs: bool) -> list[Delta]:
        """All that it says, as an item that has ended. An answer is a message, even if it says nothing."""
        said = self._notes.deltas
        if hides_logprobs:
            said = [Text(delta.text) if type(delta) is Text else delta for delta in said]
        silent = not self.cut and not any(type(delta) is Text for delta in said)
        return [*said, *([Text("")] if silent else []), Break(cut=self.cut)]

    async def _called(self, plan: Plan) -> Turn:
        hearing, thoughts = self._hearing, None
        if plan.summarises or plan.seal is not None:
            thoughts = Thoughts(plan.summarises, plan.seal)
        turn = Turn(plan, self._notes, thoughts, None if self._insisting is None else self._insisting.sieve)
        call = None if self._witness is None else self._witness.call(plan.engine.name, plan.work)

        def feed(chunks: list[Chunk]) -> list[Chunk]:
            """The chunks are what is told, to nobody: so it is known that there were some."""
            turn.feed(chunks)
            return chunks

        try:
            with hearing:
                if (ticket := plan.ticket) is not None and not ticket.running:
                    await hearing.ready(ticket)
                if call is not None:
                    call.ready()
                await hearing.listen(feed if call is None else call.heard(feed), _nobody)
            turn.end()
        finally:
            self.finish = turn.finish
            self._tries.append(turn.counts)
            self.heard += turn.heard
            if call is not None:
                call.end(turn.finish, turn.counts, exception())
        return turn

    async def _judged(self, insisting: Insisting, turn: Turn, plan: Plan) -> Plan | None:
        await insisting.judge(turn.cut)
        turn.release()
        return await insisting.next(plan)


async def hear(choices: Sequence[Choice]) -> Sequence[Choice]:
    """All of them, the likeliest first."""
    tasks = [asyncio.create_task(choice.hear()) for choice in choices]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return sorted(choices, key=lambda choice: choice.score, reverse=True)


def counts_of(choices: Sequence[Choice]) -> Counts:
    return of_choices([choice.counts for choice in choices])


class _Notes:
    """Takes what an emitter would, and tells nothing."""

    def __init__(self) -> None:
        self.deltas: list[Delta] = []

    def feed(self, deltas: Iterable[Delta]) -> list[Event]:
        self.deltas += deltas
        return []

    def say(self, texts: Sequence[Text]) -> list[Event]:
        self.deltas += texts
        return []


def _nobody(chunks: list[Chunk]) -> None:
    """Is told, and does not listen."""

"""Several answers to one request: heard side by side, told one after another, the likeliest first.

Which one that is is known when all are there, so nothing is told before. The first that fails ends them all.
"""

from collections.abc import Iterable, Sequence
from sys import exception

from msgspec import Struct

from antiphon.agent.completion_run import Answer, Choir
from antiphon.agent.model_call import Plan
from antiphon.agent.reasoning import Thoughts
from antiphon.agent.run_tracer import Witness
from antiphon.agent.turn import CUT
from antiphon.core.deltas import Break, Delta, Text
from antiphon.core.dialects.dialect import Told
from antiphon.core.prompt import Chunk, Counts, Finish
from antiphon.core.scores import mean


class Choices(Struct, frozen=True, kw_only=True):
    """Whom to ask for the answers beside the first; each waits for its own place at the model."""

    others: Sequence[Plan]
    hides_logprobs: bool  # they were asked for to compare the answers, and by nobody else


class Several:
    """The answers, and their Speaker: what is said of each is kept."""

    def __init__(self, plans: Sequence[Plan], witness: Witness | None) -> None:
        self._said: list[list[Delta]] = [[] for _ in plans]
        self.answers = [Answer(plan, self, number, witness) for number, plan in enumerate(plans)]

    async def hear(self) -> None:
        choir = Choir(self.answers)
        try:
            await choir.begin()
            await choir.go_on(_nobody)
        finally:
            await choir.leave()
            for answer in self.answers:
                answer.seen(exception())

    def told(self, hides_logprobs: bool) -> list[Delta]:
        """All that they say, each as items that have ended."""
        order = sorted(range(len(self.answers)), key=self._score, reverse=True)
        told = [delta for choice in order for delta in self._items(choice)]
        return [Text(delta.text) if hides_logprobs and type(delta) is Text else delta for delta in told]

    def note(self, chunk: Chunk, choice: int = 0) -> None:
        """Of no use here."""

    def feed(self, deltas: Iterable[Delta], choice: int = 0) -> Told:
        """To whom this is told, nobody listens; but so it is known that something was said."""
        said = [*deltas]
        self._said[choice] += said
        return [*said]

    def end(self, finish: Finish, counts: Counts, choice: int = 0) -> Told:
        return []

    def _score(self, choice: int) -> float:
        """By its text alone: thoughts have no log probabilities."""
        said = [delta for delta in self._said[choice] if type(delta) is Text]
        return mean([one.logprob for delta in said for one in delta.logprobs])

    def _items(self, choice: int) -> list[Delta]:
        """An answer is a message, even if it says nothing, unless it was cut before."""
        answer, said = self.answers[choice], self._said[choice]
        thoughts = Thoughts(answer.plan.summarises, answer.plan.seal)
        cut = answer.finish in CUT
        silent = not cut and not any(type(delta) is Text for delta in said)
        return [*thoughts.feed(said), *thoughts.finish(), *([Text("")] if silent else []), Break(cut=cut)]


def _nobody(told: Told) -> None:
    """Is told, and does not listen."""

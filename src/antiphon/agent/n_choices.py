"""Several choices for one request (`n`): generated concurrently, emitted one after another, the likeliest first.

The order is known only when all choices have ended, so nothing is emitted before. The first failure ends them all.
"""

from collections.abc import Iterable, Sequence
from sys import exception

from msgspec import Struct

from antiphon.agent.completion_run import ChoiceGroup, ChoiceRun
from antiphon.agent.model_call import ModelCall
from antiphon.agent.reasoning import ReasoningFilter
from antiphon.agent.run_tracer import RunTracer
from antiphon.agent.turn import CUT_FINISHES
from antiphon.core.deltas import Break, Delta, Text
from antiphon.core.dialects.dialect import WireEvents
from antiphon.core.prompt import Chunk, FinishKind, TokenCounts
from antiphon.core.scores import mean_logprob


class ExtraChoices(Struct, frozen=True, kw_only=True):
    """The model calls for the choices after the first; each waits for its own slot of the model."""

    others: Sequence[ModelCall]
    hide_logprobs: bool  # the client did not request them; they only serve to compare the choices


class ChoiceCollector:
    """Runs the choices and, as their `Speaker`, collects the deltas of each."""

    def __init__(self, calls: Sequence[ModelCall], tracer: RunTracer | None) -> None:
        self._deltas: list[list[Delta]] = [[] for _ in calls]
        self.choices = [ChoiceRun(call, self, number, tracer) for number, call in enumerate(calls)]

    async def run(self) -> None:
        group = ChoiceGroup(self.choices)
        try:
            await group.begin()
            await group.drive(_discard_output)
        finally:
            await group.close()
            for choice in self.choices:
                choice.end_trace(exception())

    def to_deltas(self, hide_logprobs: bool) -> list[Delta]:
        """Return the deltas of all choices in order of their score, each as complete items."""
        order = sorted(range(len(self.choices)), key=self._score, reverse=True)
        deltas = [delta for choice in order for delta in self._to_items(choice)]
        return [Text(delta.text) if hide_logprobs and type(delta) is Text else delta for delta in deltas]

    def note(self, chunk: Chunk, choice: int = 0) -> None:
        """No-op: extras are not used here."""

    def feed(self, deltas: Iterable[Delta], choice: int = 0) -> WireEvents:
        """Collect the deltas. They are returned because a non-empty result marks the first output."""
        batch = [*deltas]
        self._deltas[choice] += batch
        return [*batch]

    def end(self, finish: FinishKind, counts: TokenCounts, choice: int = 0) -> WireEvents:
        return []

    def _score(self, choice: int) -> float:
        """Return the mean log probability of the text; reasoning has none."""
        texts = [delta for delta in self._deltas[choice] if type(delta) is Text]
        return mean_logprob([one.logprob for delta in texts for one in delta.logprobs])

    def _to_items(self, choice: int) -> list[Delta]:
        """Return the deltas of one choice. It always has a message, even an empty one, unless it was cut before."""
        choice_run, deltas = self.choices[choice], self._deltas[choice]
        reasoning = ReasoningFilter(choice_run.call.summarise_reasoning, choice_run.call.encrypt_reasoning)
        is_cut = choice_run.finish in CUT_FINISHES
        is_empty = not is_cut and not any(type(delta) is Text for delta in deltas)
        return [*reasoning.feed(deltas), *reasoning.finish(), *([Text("")] if is_empty else []), Break(cut=is_cut)]


def _discard_output(output: WireEvents) -> None:
    """No-op output sink."""

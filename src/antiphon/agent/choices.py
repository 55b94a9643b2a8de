"""The choices of one request (`n`): a model call for each. Chat and completions emit them as they are generated;
a response emits them one after another, the likeliest first, once all have ended.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from math import inf
from typing import Generic, TypeVar

from msgspec import Struct

from antiphon.agent.engine_stream import EngineStream, ModelCall
from antiphon.agent.model_call_run import ModelCallRun, Sink, emit_all
from antiphon.agent.output_gate import RetryOutcome
from antiphon.agent.output_rules import Reason
from antiphon.agent.run_tracer import RunTracer
from antiphon.core.deltas import Break, Delta, Text
from antiphon.core.prompt import TokenCounts

E = TypeVar("E")


class ChoiceGroup(Generic[E]):
    """Runs the choices of one request. The first failure ends them all.

    A single choice is read by the driver itself. Several choices run concurrently, each in a task that `stop` waits
    for; their output is held until `run_all` attaches a sink. `render_end` renders the end of a choice, by its number.
    """

    def __init__(
        self, choices: Sequence[ModelCallRun[E]], render_end: Callable[[ModelCallRun[E], int], list[E]]
    ) -> None:
        self.choices = choices
        self._render_end = render_end
        self._prompts = [id(choice.call.generation.prompt) for choice in choices]
        self._tasks: list[asyncio.Task[None]] = []
        self._emit: Sink[E] | None = None
        self._held: list[E] = []  # output that waits for a sink, one list per choice

    @property
    def waits(self) -> bool:
        """Whether a choice waits for the engine or for a slot of the model."""
        return any(choice.stream.wait_number > 0 for choice in self.choices)

    @property
    def first_at(self) -> float | None:
        return min((at for choice in self.choices if (at := choice.stream.first_at) is not None), default=None)

    @property
    def is_cut(self) -> bool:
        return any(choice.is_cut for choice in self.choices)

    @property
    def chunk_count(self) -> int:
        """Chunks of all choices; most chunks hold one token."""
        return sum([choice.chunk_count for choice in self.choices])

    @property
    def retry_outcomes(self) -> list[tuple[Reason, RetryOutcome]]:
        return [outcome for choice in self.choices for outcome in choice.retry_outcomes]

    @property
    def counts(self) -> TokenCounts:
        """Token counts of all choices. A prompt that several choices share counts once, as for the first of them."""
        totals = [choice.total_counts for choice in self.choices]
        if len(totals) == 1:
            return totals[0]
        prompts = dict(zip(reversed(self._prompts), reversed(totals), strict=True)).values()
        return TokenCounts(
            input_tokens=sum([counts.input_tokens for counts in prompts]),
            cached_tokens=sum([counts.cached_tokens for counts in prompts]),
            output_tokens=sum([counts.output_tokens for counts in totals]),
            reasoning_tokens=sum([counts.reasoning_tokens for counts in totals]),
        )

    async def start(self) -> list[E]:
        """Start all choices, wait until one has output or fails, and return the output of a single choice."""
        if len(self.choices) == 1:
            return await self.choices[0].begin()
        self._started, self._sink_ready = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._run_choice(number, self._forward)) for number in range(len(self.choices))]
        for task in self._tasks:
            task.add_done_callback(lambda _: self._started.set())
        await self._started.wait()
        await self._raise_failure()
        return []

    async def run_all(self, emit: Sink[E]) -> None:
        """Run until all choices have ended or the first one fails. `start` must have been called."""
        if len(self.choices) == 1:
            await self._run_choice(0, emit)
            return
        self._emit = emit
        await emit_all(emit, self._held)
        self._sink_ready.set()
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        await self._raise_failure()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for choice in self.choices:
            await choice.close()

    async def _run_choice(self, number: int, emit: Sink[E]) -> None:
        await self._drive_choice(number, emit)
        await emit_all(emit, self._render_end(self.choices[number], number))

    async def _drive_choice(self, number: int, emit: Sink[E]) -> None:
        """Run one choice to its end; subclasses may add output to it."""
        await self.choices[number].drive(emit)

    def _forward(self, output: list[E]) -> Awaitable[None] | None:
        if self._emit is not None:
            return self._emit(output)
        self._held += output
        self._started.set()
        return self._wait_for_sink()

    async def _wait_for_sink(self) -> None:
        await self._sink_ready.wait()

    async def _raise_failure(self) -> None:
        failed = [task for task in self._tasks if task.done() and not task.cancelled() and task.exception()]
        if failed:
            await self.stop()
            failed[0].result()


class ExtraChoices(Struct, frozen=True, kw_only=True):
    """The model calls for the choices of a response after the first; each waits for its own slot of the model."""

    others: Sequence[ModelCall]
    hide_logprobs: bool  # the client did not request them; they only serve to compare the choices


class ChoiceCollector:
    """Runs the choices of a response and collects the deltas of each: their order is known when all have ended."""

    def __init__(self, calls: Sequence[ModelCall], tracer: RunTracer | None) -> None:
        self._deltas: list[list[Delta]] = [[] for _ in calls]
        choices = []
        for number, call in enumerate(calls):
            collect = partial(self._collect, number)
            choices.append(ModelCallRun(call, EngineStream(call), collect, collect, tracer=tracer))
        self.group = ChoiceGroup(choices, lambda choice, number: [])

    async def run(self) -> None:
        try:
            await self.group.start()
            await self.group.run_all(lambda output: None)
        finally:
            await self.group.stop()

    def to_deltas(self, hide_logprobs: bool) -> list[Delta]:
        """Return the deltas of all choices in order of their score, each as complete items."""
        order = sorted(range(len(self._deltas)), key=self._score, reverse=True)
        deltas = [delta for choice in order for delta in self._to_items(choice)]
        return [Text(delta.text) if hide_logprobs and type(delta) is Text else delta for delta in deltas]

    def _collect(self, choice: int, deltas: Iterable[Delta]) -> list[Delta]:
        """Collect the deltas. They are returned because a non-empty result marks the first output."""
        batch = [*deltas]
        self._deltas[choice] += batch
        return batch

    def _score(self, choice: int) -> float:
        """Return the mean log probability of the text, so that short answers are not favoured. Reasoning has none, and
        empty answers rank last.
        """
        texts = [delta for delta in self._deltas[choice] if type(delta) is Text]
        scores = [one.logprob for delta in texts for one in delta.logprobs]
        return sum(scores) / len(scores) if scores else -inf

    def _to_items(self, choice: int) -> list[Delta]:
        """Return the deltas of one choice. It always has a message, even an empty one, unless it was cut before."""
        is_cut, deltas = self.group.choices[choice].is_cut, self._deltas[choice]
        return [*deltas, *([] if deltas or is_cut else [Text("")]), Break(cut=is_cut)]

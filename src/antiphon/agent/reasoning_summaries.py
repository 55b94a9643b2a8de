"""Summaries of reasoning that the model writes in a call of its own, while the call that reasoned is read on.

    model call   reasoning ─▶ text, calls, more reasoning …   held from the end of the reasoning
    summary                 └─▶ summary deltas ─▶ what was held, up to the end of the next reasoning

Nothing blocks the model call: an engine with a single slot writes the summary once that call has ended.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from antiphon.agent.engine_stream import Summarise
from antiphon.agent.model_call_run import Sink
from antiphon.agent.reasoning import CLOSING_DELTAS
from antiphon.core.deltas import Delta, EncryptedReasoning, ReasoningDelta, Summary
from antiphon.core.prompt import TokenCounts
from antiphon.protocol.types.events import Event

_ENDS = CLOSING_DELTAS | {EncryptedReasoning}  # the encrypted content is the last delta of its item


class ReasoningSummariser:
    """Renders the deltas of one model call, each reasoning item with its summary.

    `render` turns deltas into events, and `sink` writes them. The model call is driven with `feed` and `emit`.
    """

    def __init__(
        self, summarise: Summarise, render: Callable[[Iterable[Delta]], list[Event]], sink: Sink[Event]
    ) -> None:
        self._summarise = summarise
        self._render = render
        self._sink = sink
        self._write_lock = asyncio.Lock()  # a sink is awaited by one task at a time
        self._reasoning: list[str] = []  # of the open item
        self._held: list[Delta] = []
        self._task: asyncio.Task[None] | None = None  # writes summaries; while it runs, deltas are held
        self.counts: list[TokenCounts] = []  # of all summaries

    def feed(self, deltas: Iterable[Delta]) -> list[Event]:
        """Render the deltas up to the end of the first reasoning, or hold them while a summary is written."""
        self._held += deltas
        if self._task is not None:
            return []
        ready, is_due = self._take_ready()
        if is_due:
            self._task = asyncio.get_running_loop().create_task(self._run())
        return self._render(ready) if ready else []

    def emit(self, events: list[Event]) -> Awaitable[None] | None:
        pending = self._sink(events)
        return None if pending is None else self._wait(pending)

    async def finish(self) -> None:
        """Wait for the summaries, also that of reasoning which ended with the model call."""
        while self._task is not None or self._reasoning:
            self._task = self._task or asyncio.get_running_loop().create_task(self._run())
            await self._task

    async def close(self) -> None:
        """Stop a summary that is being written."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        """Write the summary that is due, then emit what was held, until no other summary is due."""
        is_due = True
        while is_due:
            reasoning, self._reasoning = "".join(self._reasoning), []
            self.counts.append(await self._summarise(reasoning, self._write_summary))
            ready, is_due = self._take_ready()
            await self._write(ready)
            while self._held and not is_due:  # arrived while the events were written
                ready, is_due = self._take_ready()
                await self._write(ready)
        self._task = None

    def _take_ready(self) -> tuple[list[Delta], bool]:
        """Take the held deltas up to the end of reasoning, and return whether that end was found."""
        for index, delta in enumerate(self._held):
            if type(delta) is ReasoningDelta:
                self._reasoning.append(delta.text)
            elif self._reasoning and type(delta) in _ENDS:
                ready, self._held = self._held[:index], self._held[index:]
                return ready, True
        ready, self._held = self._held, []
        return ready, False

    async def _write_summary(self, text: str) -> None:
        await self._write([Summary(text)] if text else [])

    async def _write(self, deltas: list[Delta]) -> None:
        async with self._write_lock:
            if deltas and (events := self._render(deltas)) and (pending := self._sink(events)) is not None:
                await pending

    async def _wait(self, pending: Awaitable[None]) -> None:
        async with self._write_lock:
            await pending

"""Hears one call of a model out: waits for a place, then for chunk after chunk, and never longer than is patient.

    with hearing:                          the clocks run; what patience ends is raised here as its reason
        await hearing.ready(ticket)        a place at the model, unless it is there already
        await hearing.first(feed)          optional: until there is something to tell
        await hearing.listen(feed, tell)   the token path, to the end
        await hearing.answer()             or, instead of both: all of it, in one piece
    hearing.leave()                        in any case: the place is free again

A Run and an Exchange share this and nothing else awaits an engine's chunks. What they feed and tell is their own.
"""

import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from time import time
from typing import TypeVar

from antiphon.admission import Ticket
from antiphon.agent.model_call import Plan
from antiphon.agent.timeouts import Patience
from antiphon.core.prompt import Chunk
from antiphon.engines.base import Flow
from antiphon.errors import AntiphonError, Internal
from antiphon.parsers.base import Enough

log = logging.getLogger(__name__)

T = TypeVar("T")


class Hearing(Patience):
    __slots__ = ("_answered", "_number", "_plan", "_source", "first_at")

    def __init__(self, plan: Plan) -> None:
        Patience.__init__(self, plan.deadlines)
        self._plan = plan
        self._source: AsyncGenerator[list[Chunk], None] | None = None
        self._number = 1  # of the next wait
        self._answered = False  # in one piece
        self.first_at: float | None = None

    def turn_to(self, plan: Plan) -> None:
        """Another call of the model: what is left of the time for all of it is left for this. The place that the last
        one had is free again, unless it has the same."""
        if plan.ticket is not self._plan.ticket:
            self.leave()
        self._plan, self._source, self._answered = plan, None, False

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Somebody else than the engine is waited for: only the time for all of it counts. Within `with hearing`."""
        self.allow(math.inf)
        self.waits = 1
        try:
            yield
        finally:
            self.waits = 0

    async def ready(self, ticket: Ticket) -> None:
        """Until there is a place at the model, of which this is the ticket."""
        self.waits = 1
        await ticket.ready()
        self.waits = 0

    async def first(self, feed: Callable[[list[Chunk]], list[T]]) -> list[T]:
        """What there is to tell first; nothing if the engine ends without a word. `listen` goes on from there."""
        if self._plan.work.whole:
            chunks = await self.answer()
            self.waits = 0
            return feed(chunks)
        source = self._begun()
        try:
            self.waits = self._number
            async for chunks in source:
                self.waits = 0
                self._number += 1
                if told := feed(chunks):
                    self._heard()
                    return told
                self.waits = self._number
        except Enough:
            pass  # `listen` hears it again, and ends there
        finally:
            self.waits = 0
        return []

    def listen(
        self, feed: Callable[[list[Chunk]], list[T]], tell: Callable[[list[T]], Awaitable[None] | None]
    ) -> Awaitable[None]:
        """To the end. Telling is awaited if it has to be, so a slow reader slows the engine down."""
        return self._hear_whole(feed, tell) if self._plan.work.whole else self._hear(feed, tell)

    async def _hear(
        self, feed: Callable[[list[Chunk]], list[T]], tell: Callable[[list[T]], Awaitable[None] | None]
    ) -> None:
        """The token path."""
        source, number = self._begun(), self._number
        try:
            self.waits = number
            async for chunks in source:
                self.waits = 0
                if told := feed(chunks):
                    if self.first_at is None:
                        self._heard()
                    if (telling := tell(told)) is not None:
                        await telling
                elif isinstance(chunks, Flow):
                    await self._pour(chunks, feed, tell)
                if self.over is not None:
                    raise self.over
                self.waits = number = number + 1
        except Enough:
            pass  # to close the source is to tell the engine
        finally:
            self.waits = 0
            await source.aclose()

    async def _hear_whole(
        self, feed: Callable[[list[Chunk]], list[T]], tell: Callable[[list[T]], Awaitable[None] | None]
    ) -> None:
        chunks = await self.answer()
        self.waits = 0
        if (told := feed(chunks)) and (telling := tell(told)) is not None:
            await telling

    def answer(self) -> Awaitable[list[Chunk]]:
        """An answer in one piece, once. Nobody knows when such a one began: only the time for all of it counts.

        Who has it does not wait any more, and says so (`waits`).
        """
        if self.over is not None:
            raise self.over
        if self._answered:
            return _nothing()
        self._answered, self.waits = True, 1
        return self._plan.engine.answer(self._plan.work)

    async def _pour(
        self, flow: Flow, feed: Callable[[list[Chunk]], list[T]], tell: Callable[[list[T]], Awaitable[None] | None]
    ) -> None:
        """The token path of engines that can tell by a call, with no wake-up of this task between."""

        def take(chunks: list[Chunk]) -> Awaitable[None] | None:
            self.waits += 1
            try:
                if not (told := feed(chunks)):
                    return None
                if self.first_at is None:
                    self._heard()
                telling = tell(told)
            except Exception as error:  # where this is called, in a callback of the loop, nobody could do anything
                return _raised(error)
            return None if telling is None else self._told(telling)

        self.waits = 1
        await flow.pour(take)
        self.waits = 0

    async def _told(self, telling: Awaitable[None]) -> None:
        """It is the reader who is waited for, not the engine."""
        self.waits, waits = 0, self.waits
        await telling
        if self.over is not None:
            raise self.over
        self.waits = waits + 1

    async def close(self) -> None:
        """Nobody listens any more: the engine's work ends, and the place is free."""
        if self._source is not None:
            await self._source.aclose()
        self.leave()

    def leave(self) -> None:
        if self._plan.ticket is not None:
            self._plan.ticket.leave()

    def _begun(self) -> AsyncGenerator[list[Chunk], None]:
        if self.over is not None:
            raise self.over
        if self._source is None:
            self.allow(self._plan.deadlines.first)
            self._source = self._plan.engine.generate(self._plan.work)
        return self._source

    def _heard(self) -> None:
        self.first_at = time()
        self.allow(self._plan.deadlines.idle)


async def _nothing() -> list[Chunk]:
    return []


async def _raised(error: Exception) -> None:
    raise error


async def tried(work: Awaitable[object], name: str) -> AntiphonError | None:
    """What a client can be told of whatever was raised. `name` is for the log."""
    try:
        await work
    except AntiphonError as error:
        return error
    except Exception:
        log.exception("%s failed by a defect", name)
        return Internal("The server made a mistake while it worked on this response.")
    return None

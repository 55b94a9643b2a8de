"""What one listener is told of a response: each event once, in order, above the number that it asked for.

Whatever the entries come from, the log of this process, a live log or a tape, they are counted: who goes on from one to
the next neither skips nor repeats any.
"""

import asyncio
from collections.abc import Sequence
from itertools import islice

from msgspec import UNSET

from antiphon.agent.run import Tell
from antiphon.core.emitter.event_log import Ended, Entry
from antiphon.core.emitter.fold import Ending
from antiphon.core.replay.replay import Replay
from antiphon.errors import AntiphonError
from antiphon.protocol.types.events import Error, ErrorBody, Event
from antiphon.protocol.types.response import Response

_AT_ONCE = 200  # entries, until others get their turn


class Telling:
    def __init__(self, opening: Response, obfuscates: bool, after: int, tell: Tell) -> None:
        self._replay = Replay(opening, obfuscates)
        self._after = after
        self._tell = tell
        self._last = -1  # number that was made, told or not
        self.entries = 0  # that were taken
        self.ended = False

    async def open(self) -> None:
        await self._told(self._replay.open())

    async def take(self, entries: Sequence[Entry], skip: int = 0) -> None:
        """What comes next. `skip`: so many of the first were taken before."""
        rest = islice(entries, skip, None)
        while some := [*islice(rest, _AT_ONCE)]:
            self.entries += len(some)
            self.ended = type(some[-1]) is Ended
            await self._told(self._replay.feed(some))
            if len(some) == _AT_ONCE:
                await asyncio.sleep(0)

    async def fail(self, error: AntiphonError, at: int) -> None:
        """The response is no more: what was told of it gets an end."""
        self.ended = True
        await self._told(self._replay.emitter.finish(Ending(status="failed", error=error), None, at))

    async def break_off(self, error: AntiphonError) -> None:
        """The response may well go on, but not here. That is no event of its log, so it takes no number of its own."""
        body = ErrorBody(type=error.type, code=error.code, message=error.message, param=error.param)
        retry_after = UNSET if error.retry_after is None else error.retry_after
        event = Error(code=error.code, message=error.message, error=body, retry_after=retry_after)
        event.sequence_number = max(self._last, 0)
        if (telling := self._tell([event])) is not None:
            await telling

    async def _told(self, events: list[Event]) -> None:
        if not events:
            return
        self._last = events[-1].sequence_number
        if events[0].sequence_number <= self._after:
            events = [event for event in events if event.sequence_number > self._after]
        if events and (telling := self._tell(events)) is not None:
            await telling

"""The events of a response for one reader: each once, in order, above the requested sequence number.

Entries may come from the log of this process, a live log or a packed log. They are counted, so a reader that moves from
one to the next neither skips nor repeats any.
"""

import asyncio
import logging
from collections.abc import Sequence
from itertools import islice

from msgspec import UNSET

from antiphon.agent.run import EventSink
from antiphon.core.emitter.event_log import LogEntry, RunEnded
from antiphon.core.emitter.fold import ResponseEnding
from antiphon.core.replay import Replay, UnreadableLog, unpack
from antiphon.errors import AntiphonError, Internal
from antiphon.offload import run_sized
from antiphon.protocol.types.events import Error, ErrorBody, Event
from antiphon.protocol.types.response import Response
from antiphon.stores.base import StoredResponse

log = logging.getLogger(__name__)

_BATCH_SIZE = 200  # entries before other tasks get to run


class EventFeed:
    """Replays log entries as events to one sink."""

    def __init__(self, opening: Response, obfuscates: bool, after: int, emit: EventSink) -> None:
        self._replay = Replay(opening, obfuscates)
        self._after = after
        self._emit = emit
        self._last_number = -1  # last sequence number produced, emitted or not
        self.entry_count = 0  # entries fed so far
        self.ended = False

    async def open(self) -> None:
        await self._emit_new(self._replay.open())

    async def feed(self, entries: Sequence[LogEntry], skip: int = 0) -> None:
        """Feed the next entries. `skip`: number of leading entries that were fed before."""
        remaining = islice(entries, skip, None)
        while batch := [*islice(remaining, _BATCH_SIZE)]:
            self.entry_count += len(batch)
            self.ended = type(batch[-1]) is RunEnded
            await self._emit_new(self._replay.feed(batch))
            if len(batch) == _BATCH_SIZE:
                await asyncio.sleep(0)

    async def fail(self, error: AntiphonError, at: int) -> None:
        """Emit a failed end for a response that no longer exists."""
        self.ended = True
        await self._emit_new(self._replay.emitter.finish(ResponseEnding(status="failed", error=error), None, at))

    async def break_off(self, error: AntiphonError) -> None:
        """Emit an error because the response cannot be followed here; it may continue.

        The error is not part of the log, so it has no sequence number of its own.
        """
        body = ErrorBody(type=error.type, code=error.code, message=error.message, param=error.param)
        retry_after = UNSET if error.retry_after is None else error.retry_after
        event = Error(code=error.code, message=error.message, error=body, retry_after=retry_after)
        event.sequence_number = max(self._last_number, 0)
        if (pending := self._emit([event])) is not None:
            await pending

    async def _emit_new(self, events: list[Event]) -> None:
        """Emit the events above the requested sequence number."""
        if not events:
            return
        self._last_number = events[-1].sequence_number
        if events[0].sequence_number <= self._after:
            events = [event for event in events if event.sequence_number > self._after]
        if events and (pending := self._emit(events)) is not None:
            await pending


async def load_log(row: StoredResponse) -> list[LogEntry]:
    """Return all log entries of a response that has ended."""
    return await run_sized(len(row.response), _unpack_row, row)


def _unpack_row(row: StoredResponse) -> list[LogEntry]:
    assert row.packed_log is not None  # the response has ended
    try:
        return unpack(row.packed_log, row.response)
    except UnreadableLog as error:
        log.error("the events of %s cannot be read: %s", row.id, error)
        raise Internal("The events of this response can no longer be read; the response itself is still available.")

"""A response that runs in another process, or runs no more: what the live log and the store say of it.

Who waits is woken by a word, and looks by itself after a second if none comes. A store that does not answer is asked
again for a while, and then it is Unavailable.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from antiphon.core.emitter.event_log import Entry
from antiphon.core.replay.packed_log import UnreadableTape, unpack
from antiphon.core.replay.replay import decode_entries
from antiphon.errors import Internal, Unavailable
from antiphon.service.persistence.notifications import Ear, Words
from antiphon.service.persistence.stored_request import response_of
from antiphon.service.persistence.stored_responses import unknown
from antiphon.service.runs.event_feed import Telling
from antiphon.stores.base import RUNNING, Store, StoredResponse
from antiphon.stores.live.base import LiveLog

T = TypeVar("T")
log = logging.getLogger(__name__)

_LOOK = 1.0  # seconds without a word
_PATIENCE = 30.0  # seconds in which a store does not answer
_AT_ONCE = 256 * 1024  # bytes of a Response whose tape is read where it is asked for; more goes to a thread


class Elsewhere:
    """One response, for one who follows it."""

    def __init__(self, store: Store, live: LiveLog, words: Words, tenant: str, response_id: str) -> None:
        self._store = store
        self._live = live
        self._words = words
        self._key = tenant, response_id
        self._loop = asyncio.get_running_loop()
        self.waits = False

    async def ended(self) -> StoredResponse:
        """Its row, once it has ended. Raises NotFound if it is deleted."""
        with self._words.of(self._key[1]) as ear:
            while True:
                ear.forget()
                row = await self._asked(self._row, ear)
                if row.status not in RUNNING:
                    return row
                await self._listen(ear)

    async def follow(self, telling: Telling) -> None:
        """Tell all that has not been told yet. Raises NotFound if it is deleted."""
        with self._words.of(self._key[1]) as ear:
            batches = entries = 0  # of the live log
            while not telling.ended:
                ear.forget()
                if some := await self._asked(lambda: self._live.read(*self._key, batches - 1), ear):  # noqa: B023
                    fresh = [entry for batch in some for entry in decode_entries(batch)]
                    before, batches, entries = entries, batches + len(some), entries + len(fresh)
                    await telling.take(fresh, telling.entries - before)
                    continue
                row = await self._asked(self._row, ear)
                if row.status not in RUNNING:
                    await telling.take(await tape_of(row), telling.entries)
                    return
                await self._listen(ear)

    async def _row(self) -> StoredResponse:
        row = await self._store.get(*self._key)
        if row is None:
            raise unknown(self._key[1])
        return row

    async def _asked(self, ask: Callable[[], Awaitable[T]], ear: Ear) -> T:
        until = self._loop.time() + _PATIENCE
        while True:
            try:
                return await ask()
            except Unavailable:
                if self._loop.time() >= until:
                    raise
            ear.forget()
            await self._listen(ear)

    async def _listen(self, ear: Ear) -> None:
        if self._words.closed:
            raise Unavailable("The server is shutting down.", retry_after=2.0)
        self.waits = True
        try:
            await ear.listen(_LOOK)
        finally:
            self.waits = False


async def tape_of(row: StoredResponse) -> list[Entry]:
    """All that happened in a response that has ended."""
    if len(row.response) <= _AT_ONCE:
        return _unpacked(row)
    return await asyncio.to_thread(_unpacked, row)


def _unpacked(row: StoredResponse) -> list[Entry]:
    assert row.tape is not None  # it has ended
    try:
        return unpack(row.tape, response_of(row.response))
    except UnreadableTape as error:
        log.error("the events of %s are lost: %s", row.id, error)
        raise Internal("The events of this response can no longer be told; the response itself is there.")

"""What this process has in the store while it runs: begun, kept alive by a heartbeat, and ended exactly once.

    begin ──▶ Kept ── start ── end ──▶ in the store, as it will always be
    adopt ──▶   │        └── release ──▶ somebody else's
    later ──▶   └── lost: another process has it, or it was deleted; nothing that is said here counts any more

Only what is held here is renewed. So a row whose beginning or end went wrong is left alone, its lease runs out, and the
next scan ends it.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from time import time
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.errors import AntiphonError, NotFound, ServerRestarted, Unavailable
from antiphon.ids import new_id
from antiphon.protocol.decoding.codec import Decoded, encode
from antiphon.protocol.types.response import Response
from antiphon.service.persistence.background_tasks import Tasks
from antiphon.service.persistence.retention import Own, Sweeper
from antiphon.service.persistence.rows import Finished, Log, end_row, new_row, takes_long
from antiphon.service.persistence.stored_request import shown, stored_request
from antiphon.stores.base import Bounds, Claim, End, Key, Lost, Store, StoredResponse
from antiphon.stores.live.base import LiveLog

log = logging.getLogger(__name__)

Remember = Callable[[str, Response, Decoded, int], None]  # the tenant, how it ended, what was asked, bytes of both

_aside = asyncio.to_thread

_SOON = 1.0  # seconds in which a store that fails does so at once
_PATIENCE, _LONGEST_PAUSE = 0.2, 1.0  # seconds before an end is written again; each time twice as long, up to this
_INSISTENCE = 600.0  # seconds for which a store that is away is waited for with an end


class Keeping(Struct, frozen=True, kw_only=True):
    """The operator's word on what is kept."""

    lease: float = 15.0
    ttl: float = 2_592_000.0
    background_room: int = 1000  # background responses of a tenant that have not ended
    background_timeout: float = 86_400.0
    sweep_seconds: float = 60.0
    bounds: Bounds = Bounds()
    room_of: Callable[[str], int | None] | None = None  # the same for each tenant, if it is not the same for all
    own_bytes: Own = dict  # of tenants for whom something else holds than `bounds`

    def room(self, tenant: str) -> int | None:
        return self.background_room if self.room_of is None else self.room_of(tenant)


class Keeper:
    """`remember` is told of every end that was written, so that who continues it need not read it (Past.remember)."""

    def __init__(self, store: Store, live: LiveLog, settings: Keeping, remember: Remember | None = None) -> None:
        self.owner = new_id("item")
        self.store = store
        self.live = live
        self.settings = settings
        self.remember = remember
        self.sweeper = Sweeper(store, settings.bounds, settings.sweep_seconds, settings.own_bytes)
        self._held: dict[str, Kept] = {}
        self._tasks = Tasks()
        self.lost = 0  # to others, or deleted

    async def begin(
        self, tenant: str, decoded: Decoded, response: Response, key: Key | None = None, rooted: bool = False
    ) -> "Kept | str":
        """Write its row, with the status that it has. Gives the id of the response that has this key already.
        `rooted`: what it continues is nowhere in the store.

        Raises what Store.begin raises. Background: within the tenant's room, with a deadline.
        """
        settings = self.settings
        request = await _aside(stored_request, decoded) if takes_long(decoded) else stored_request(decoded)
        new = new_row(response, encode(response), request, time(), settings.background_timeout)
        if rooted:
            new = replace(new, previous=None)
        room = settings.room(tenant) if response.background else None
        other = await self.store.begin(tenant, new, self.claim(), key, room)
        if other is not None:
            return other
        return self.own(Kept(self, tenant, response.id, 1, decoded, len(request), new.created))

    async def keyed(self, tenant: str, key: Key) -> str | None:
        """The id of the response that has this key."""
        return await self.store.keyed(tenant, key)

    async def current(self, tenant: str, response_id: str) -> bytes:
        """The JSON of a response, ended or not."""
        row = await self.store.get(tenant, response_id)
        if row is None:
            raise NotFound(f"There is no response {response_id!r}.")
        return shown(row)

    def later(self, tenant: str, decoded: Decoded, response: Response) -> "Kept":
        """For one that nobody hears of before its end: it is written then, all at once."""
        return Kept(self, tenant, response.id, 0, decoded, 0, time())

    async def adopt(self, tenant: str, row: StoredResponse) -> "Kept":
        """For a row that was claimed or taken. Its former owner is kept out of the live log too."""
        await self.live.fence(tenant, row.id, row.fence)
        kept = Kept(self, tenant, row.id, row.fence, row.request, len(row.request), row.created, row.bearer)
        return self.own(kept)

    def claim(self) -> Claim:
        """This process, from now on for the length of a lease: for Store.claim and Store.take."""
        return Claim(self.owner, time() + self.settings.lease)

    @property
    def held(self) -> int:
        return len(self._held)

    def hold(self, work: Coroutine[Any, Any, None]) -> None:
        """See to it that this gets done, though nobody waits for it."""
        self._tasks.start(work)

    async def attend(self) -> None:
        """Heartbeat and sweep, until cancelled. A store that does not answer is logged and asked again."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._beat())
            group.create_task(self.sweeper.attend())

    async def drain(self, seconds: float) -> None:
        """Wait for what is still being written; what takes longer is given up, and ended by the next scan."""
        await self._tasks.close(seconds)

    def drop(self, kept: "Kept") -> None:
        """It is no longer renewed."""
        if self._held.get(kept.id) is kept:
            del self._held[kept.id]

    def own(self, kept: "Kept") -> "Kept":
        """It is renewed."""
        self._held[kept.id] = kept
        return kept

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self.settings.lease / 3)
            try:
                await self.renew()
            except AntiphonError as error:
                log.warning("the lease could not be renewed: %s", error)

    async def renew(self, anyway: bool = False) -> None:
        """One heartbeat: who is lost is told. `anyway`: also if nothing is held."""
        mine = dict(self._held)
        if not mine and not anyway:
            return
        alive = await self.store.renew(self.claim(), mine.keys())
        for response_id, kept in mine.items():
            if response_id not in alive and self._held.get(response_id) is kept:
                kept.lose()


class Kept(Struct, eq=False):
    """One response of this process in the store."""

    _keeper: Keeper
    tenant: str
    id: str
    fence: int  # 0: it is not in the store before its end
    _asked: Decoded | bytes  # bytes: as it is kept, if it was not here that it was asked
    _size: int  # of how it is kept; 0 as long as the row is not written
    _created: float
    bearer: str = ""  # the key that it is charged to, if it was taken up here
    ended: bool = False  # its end is written
    lost: bool = False
    on_lost: Callable[[], None] | None = None  # is called at most once, on the event loop
    _tried: str = ""  # how it ended when that was last to be written
    _instead: bool = False  # it ended otherwise before, and nobody knows what of that was written

    async def start(self) -> None:
        """queued → in_progress. Raises ServerRestarted if it was lost, Unavailable if the store does not answer."""
        try:
            await self._keeper.store.start(self.tenant, self.id, self.fence)
        except Lost:
            raise self.gone() from None

    async def end(self, response: Response, log: Log) -> bytes:
        """Write how it ended; gives the JSON of the Response. May be tried again after it was cancelled or failed.

        Raises ServerRestarted if it was lost (deleted, or another process has ended it), Unavailable if the store does
        not answer: then the row is left to the next scan. A background response's live log is dropped, and everybody
        is told.
        """
        body = encode(response)
        if self.ended:
            return body
        if self.lost:
            raise self.gone()
        keeper, asked = self._keeper, self._asked
        if self.fence:  # else it was never held
            keeper.drop(self)
        if self._tried != response.status:
            self._instead, self._tried = self._tried != "", response.status
        ttl = keeper.settings.ttl
        ended = Finished(response, body, asked, self._size, self.fence, self._created, ttl, self._instead)
        end = await _aside(end_row, ended, log) if ended.takes_long(log) else end_row(ended, log)
        try:
            await keeper.store.finish(self.tenant, end)
        except Unavailable:
            if time() - end.ended > _SOON:
                raise
            await self._finish(end)
        except Lost:
            raise self.gone() from None
        self.ended = True
        size = len(body) + (self._size if end.new is None else len(end.new.request))
        keeper.sweeper.wrote(size)
        if type(asked) is Decoded and keeper.remember is not None:
            keeper.remember(self.tenant, response, asked, size)
        if response.background:
            await self._tell()
        return body

    def insist(self, response: Response, log: Log, then: Callable[[], None]) -> None:
        """Have its end written though nobody waits for it, again and again while the store does not answer: somebody
        may have been told of this end. So that nobody makes another one, it is renewed meanwhile.

        `then` is called when that is done or given up.
        """
        self.on_lost = None
        self._keeper.hold(self._insisted(response, log, then))

    async def release(self) -> None:
        """Give it back, to be run again by whoever scans next."""
        self.forget()
        try:
            await self._keeper.store.release(self.tenant, self.id, self.fence)
        except Lost:
            raise self.gone() from None
        await self._tell()

    def forget(self) -> None:
        """Hold it no longer, whatever its state: its lease runs out."""
        self._keeper.drop(self)

    def lose(self) -> None:
        """For the Keeper: it is no longer ours."""
        self.forget()
        if not self.lost:
            self.lost = True
            self._keeper.lost += 1
            if self.on_lost is not None:
                self.on_lost()

    async def _finish(self, end: End) -> None:
        """Whether a failed attempt got through is not known. To write the same again does no harm, and then it is."""
        try:
            await self._keeper.store.finish(self.tenant, end)
        except Lost:
            raise self.gone() from None

    async def _insisted(self, response: Response, log: Log, then: Callable[[], None]) -> None:
        over, pause = time() + _INSISTENCE, _PATIENCE
        try:
            while not await self._written(response, log) and time() + pause < over:
                self._keeper.own(self)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        finally:
            self.forget()
            then()

    async def _written(self, response: Response, entries: Log) -> bool:
        """False: it may be tried again."""
        try:
            await self.end(response, entries)
        except Unavailable as error:
            log.warning("the end of %s could not be written: %s", self.id, error)
            return False
        except AntiphonError as error:
            log.warning("the end of %s was not written: %s", self.id, error)
        return True

    async def _tell(self) -> None:
        """What is in the store is there; that others hear of it at once is worth no failure."""
        live = self._keeper.live
        try:
            if self.ended:
                await live.drop(self.tenant, self.id)
            await live.tell(self.id)
        except AntiphonError as error:
            log.warning("nobody was told of %s: %s", self.id, error)

    def gone(self) -> ServerRestarted:
        """It is lost: what there is to say about that."""
        self._keeper.lost += not self.lost
        self.lost = True
        self.forget()
        return ServerRestarted("This response was deleted, or taken over by another server, while it ran.")

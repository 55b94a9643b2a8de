"""Creating a Response, without a transport: all is checked and settled, its beginning is kept if anybody may hear of
it before its end, then it is handed out.

    foreground ──────────────────────────────▶ Direct: its client drives it
    with an Idempotency-Key, or kept streams ─▶ a session, which others can join
    background ──────────────────────────────▶ a job

What is wrong with a request is raised before anything is handed out, so a client gets a plain 4xx for it.
"""

from collections.abc import Callable, Sequence

from msgspec import Struct

from antiphon.errors import Unavailable, UnsupportedParameter
from antiphon.protocol.decoding.codec import Decoded, encode
from antiphon.protocol.types.items import InputItem
from antiphon.service.access.load_monitor import Pressure
from antiphon.service.persistence.connection_cache import Recent
from antiphon.service.persistence.response_writer import Keeper, Kept
from antiphon.service.planning.planner import Planner, Undertaking
from antiphon.service.runs.accounting import Tally
from antiphon.service.runs.background import Jobs
from antiphon.service.runs.detached_runs import Sessions
from antiphon.service.runs.direct_run import Direct
from antiphon.service.runs.follow import Following
from antiphon.service.runs.source import Source
from antiphon.stores.base import Key


class Accepted(Struct, frozen=True):
    """What to answer with, and the names of fields that change nothing."""

    source: Source | None  # to be driven or waited for, and left
    given: bytes | None  # the JSON to answer with at once
    ignored: list[str]
    past: Sequence[InputItem] | None = None  # of one that only its connection remembers: all before its output
    steer: Callable[[], bool] | None = None  # for its connection: ends it where it is, if that can be (Run.steer)


class Responses:
    def __init__(
        self,
        planner: Planner,
        keeper: Keeper,
        sessions: Sessions,
        following: Following,
        jobs: Jobs,
        tally: Tally,
        pressure: Pressure | None = None,
    ) -> None:
        self._planner = planner
        self._keeper = keeper
        self._sessions = sessions
        self._following = following
        self._jobs = jobs
        self._tally = tally
        self._pressure = pressure

    async def create(
        self, tenant: str, decoded: Decoded, key: Key | None = None, recent: Recent | None = None
    ) -> Accepted:
        """Whoever gets the source drives it or waits for its result, and leaves it in any case. `recent`: what the
        connection remembers that it came by."""
        if key is not None:
            if not self._planner.stores(decoded.request):
                raise UnsupportedParameter("An Idempotency-Key needs a response that is stored.", param="store")
            if (known := await self._keeper.keyed(tenant, key)) is not None:
                return await self._joined(tenant, known, decoded)
        if decoded.request.background:
            return await self._queued(tenant, decoded, key)
        place = self._sessions.enter(tenant)
        kept: Kept | str | None = ""
        try:
            undertaking = await self._planner.plan(tenant, decoded, recent=recent)
            if not undertaking.opening.store:
                kept = None
            else:
                kept = self._later(tenant, undertaking, key) or await self._begun(tenant, undertaking, key)
        finally:
            if isinstance(kept, str):
                place.leave()
        if isinstance(kept, str):
            return await self._joined(tenant, kept, decoded)
        source: Source
        if key is not None or (decoded.request.stream and self._sessions.keeps_streams):
            source = self._following.follow(self._sessions.open(place, tenant, undertaking, kept))
        else:
            source = Direct(place, tenant, undertaking, kept, self._tally.ended)
        if recent is None:
            return Accepted(source, None, undertaking.ignored)
        forgotten = not undertaking.opening.store
        past = (*undertaking.earlier, *undertaking.decoded.request.input) if forgotten else None
        steer = source.run.steer if isinstance(source, Direct) else None
        return Accepted(source, None, undertaking.ignored, past, steer)

    def interrupt(self) -> None:
        """The server's grace is over: whatever runs ends now, each with its terminal event."""
        self._sessions.interrupt(Unavailable("The server is shutting down.", retry_after=2.0))

    def _later(self, tenant: str, undertaking: Undertaking, key: Key | None) -> Kept | None:
        """It is written at its end, all at once, if nobody can hear of it before."""
        decoded, opening = undertaking.decoded, undertaking.opening
        if key is not None or decoded.request.stream or opening.background:
            return None
        if opening.previous_response_id is not None or opening.conversation is not None:
            return None
        return self._keeper.later(tenant, decoded, opening)

    async def _begun(self, tenant: str, undertaking: Undertaking, key: Key | None) -> Kept | str:
        """In the store. A str: the id of the one that has the key.

        Then, and if anything is wrong, its place at the model is free again.
        """
        kept: Kept | str = ""
        try:
            kept = await self._keeper.begin(tenant, undertaking.decoded, undertaking.opening, key, undertaking.rooted)
        finally:
            if isinstance(kept, str):
                undertaking.leave()
        return kept

    async def _queued(self, tenant: str, decoded: Decoded, key: Key | None) -> Accepted:
        if self._pressure is not None:
            self._pressure.check_background()
        undertaking = await self._planner.plan(tenant, decoded, patient=True)
        assert undertaking.opening.store  # what is not stored was refused
        kept = await self._begun(tenant, undertaking, key)
        if isinstance(kept, str):
            return await self._joined(tenant, kept, decoded)
        source = await self._jobs.submit(tenant, undertaking, kept)
        if decoded.request.stream:
            return Accepted(source, None, undertaking.ignored)
        source.leave()
        return Accepted(None, encode(undertaking.opening), undertaking.ignored)

    async def _joined(self, tenant: str, response_id: str, decoded: Decoded) -> Accepted:
        """The request came before, and this is its response."""
        request = decoded.request
        if request.background and not request.stream:
            return Accepted(None, await self._keeper.current(tenant, response_id), [])
        return Accepted(await self._following.replay(tenant, response_id), None, [])

"""A run whose own client drives it, with no task and no queue between them: the way of most requests.

Its end is kept before it is told. Whoever leaves it before that ends it, cancelled; a row that was begun is then ended
in the store though nobody waits for that.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from msgspec import Struct

from antiphon.agent.run import Run, Tell
from antiphon.core.emitter.emitter import Emitter
from antiphon.core.emitter.event_log import EVERY
from antiphon.protocol.decoding.codec import encode
from antiphon.service.persistence.response_writer import Kept
from antiphon.service.planning.planner import Undertaking
from antiphon.service.runs.active_runs import Place


class Direct:
    """`kept`: None for one that nobody keeps. It is in the store already if others may know its id."""

    __slots__ = ("_emitter", "_keep", "_kept", "_place", "run")

    def __init__(
        self, place: Place, tenant: str, undertaking: Undertaking, kept: Kept | None, on_end: Callable[[Run], None]
    ) -> None:
        self._place = place
        self._kept = kept
        self._emitter = emitter = undertaking.emitter(None if kept is None else [])
        self._keep = None
        if kept is not None:
            emitter.gathers = EVERY
            self._keep = _Keep(kept, place, emitter)
        self.run = place.run = Run(undertaking.plan, emitter, on_end, self._keep, undertaking.beyond)
        if kept is not None and kept.fence:
            kept.on_lost = self._lose
            undertaking.owned(kept.fence)
            place.show(tenant, undertaking, emitter)

    @property
    def waits(self) -> bool:
        return self.run.waits

    def drive(self, tell: Tell) -> Coroutine[Any, Any, None]:
        return self.run.drive(tell)

    async def result(self) -> bytes:
        run = self.run
        await run.drive(None)
        if run.error is not None:
            raise run.error
        return encode(self._emitter.told) if self._keep is None else self._keep.body

    def leave(self) -> None:
        if self.run.ended_at is None:
            self.run.cancel()
        kept = self._kept
        if kept is None or kept.ended or kept.lost or not kept.fence:
            self._place.leave()
        else:
            kept.insist(self.run.response, self.run.log, self._place.leave)
        if kept is not None:
            kept.on_lost = None

    def _lose(self) -> None:
        assert self._kept is not None
        self.run.interrupt(self._kept.gone())


class _Keep(Struct, eq=False):
    """What a run does at its end. It knows neither the run nor who drives it, but for its place, which forgets it when
    it is left: a circle would be left to the collector, with everything in it, and that costs a request more than all
    the rest of being kept."""

    _kept: Kept
    _place: Place
    _emitter: Emitter
    body: bytes = b""

    async def __call__(self, run: Run) -> None:
        emitter = self._emitter
        assert emitter.log is not None
        self.body = await self._kept.end(emitter.told, emitter.log)
        self._place.leave()

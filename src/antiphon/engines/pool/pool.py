"""Several engines as one. A work whose engine fails before the first chunk moves to another; after that, never.

    generate ──▶ choose ──▶ member ── fails before a chunk ──▶ choose among the others ──▶ …
                              └────── a chunk ──▶ that member's answer, to its end or its failure

Each member is tried once. What is wrong with a request itself is not tried again. All attempts have one deadline.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from time import monotonic as _now
from typing import TypeVar

from msgspec import Struct

from antiphon.core.prompt import Chunk, Prompt, Work
from antiphon.engines.base import JSON, Capabilities, Deed, Embedded, Engine, Level, Model, Relayed, State
from antiphon.engines.pool.balancer import Candidate, affinity, choose, least
from antiphon.engines.pool.capabilities import Able, Merged, level_of
from antiphon.engines.pool.member import Member, Seat, moves_on
from antiphon.engines.pool.membership import Change, Roster
from antiphon.errors import AntiphonError, Busy, EngineFailed, ModelNotFound, Unavailable

T = TypeVar("T")

LOOK_SECONDS = 1.0  # between looks for room, where nobody says that there is some
_SOON = 1.0


class Pool:
    """`patience`: seconds for all attempts at a work together; `grace`: for what a member that leaves still does."""

    def __init__(self, seats: Sequence[Seat], patience: float = 600.0, grace: float = 3600.0) -> None:
        self._roster = Roster(seats, grace)
        self._patience = patience
        self._merged = Merged()
        self.name = self._kinds()
        self._waiting: dict[asyncio.Event, None] = {}  # set when a member has one less to do; the oldest first

    async def open(self) -> None:
        await self._roster.open()

    async def close(self) -> None:
        await self._roster.close()

    async def renew(self, seats: Sequence[Seat]) -> Change:
        """From now on these are its members. Those that go end what they do."""
        change = await self._roster.renew(seats)
        self._merged.forget()
        self.name = self._kinds()
        return change

    def members(self) -> Sequence[Member]:
        return self._roster.members

    def models(self) -> Sequence[Model]:
        known: dict[str, Model] = {}
        for member in self._roster.members:
            for model in member.engine.models():
                known.setdefault(model.id, model)
        return [*known.values()]

    def first(self) -> Model | None:
        """Of the first member that has any. While one before it was never there, its models may come first."""
        for member in self._roster.members:
            first = member.engine.first()
            if first is not None or not member.engine.healthy():
                return first
        return None

    def serves(self, model: str) -> bool:
        for member in self._roster.members:  # noqa: SIM110  # a generator would cost more than all else here
            if member.engine.serves(model):
                return True
        return False

    def healthy(self) -> bool:
        return any(member.engine.healthy() and not member.draining for member in self._roster.members)

    def states(self) -> Sequence[State]:
        now = _now()
        return [member.state(now) for member in (*self._roster.members, *self._roster.leaving)]

    async def capabilities(self, model: str) -> Capabilities:
        """Of those that can be given work now; of all that have the model if none can."""
        serving = await self._able(model)
        if not serving:
            raise self._nobody(model)
        present = serving
        if len(serving) > 1:
            now = _now()
            present = [one for one in serving if one.member.fit(now)] or serving
        return self._merged.of(model, present, serving, alone=len(self._roster.members) == 1)

    async def generate(self, work: Work) -> AsyncGenerator[list[Chunk], None]:
        """An async generator around the member's costs some 0.2 µs for each list, less than any other wrapping."""
        attempts = _Attempts(_now() + self._patience)
        while True:
            member = self._roster.alone
            if member is None or attempts.tried or member.running >= member.most:
                member = await self._choose(work, attempts)
            begun, epoch = False, member.enter(work.model)
            try:
                async with aclosing(member.engine.generate(work)) as source:
                    async for chunks in source:
                        if not begun:
                            begun, epoch = True, member.breaker.began(epoch)
                        yield chunks
            except AntiphonError as error:
                member.failed(error, epoch)
                if begun:
                    raise
                attempts.failed(member, error)
            else:
                member.breaker.ended()
                return
            finally:
                member.leave(work.model, epoch)
                if self._waiting:
                    self._tell_of_room()

    async def answer(self, work: Work) -> list[Chunk]:
        attempts = _Attempts(_now() + self._patience)
        while True:
            member = self._roster.alone
            if member is None or attempts.tried or member.running >= member.most:
                member = await self._choose(work, attempts)
            epoch = member.enter(work.model)
            try:
                chunks = await member.engine.answer(work)
            except AntiphonError as error:
                member.failed(error, epoch)
                attempts.failed(member, error)
            else:
                if not member.breaker.calm:
                    member.breaker.answered(epoch)
                return chunks
            finally:
                member.leave(work.model, epoch)
                if self._waiting:
                    self._tell_of_room()

    async def count(self, model: str, prompt: Prompt) -> int:
        return await self._ask(model, lambda engine: engine.count(model, prompt))

    async def embed(
        self,
        model: str,
        inputs: Sequence[str | Sequence[int]],
        dimensions: int | None = None,
        truncate: int | None = None,
    ) -> Embedded:
        return await self._ask(model, lambda engine: engine.embed(model, inputs, dimensions, truncate))

    async def tokenize(self, model: str, prompt: Prompt, special: bool = True) -> tuple[int, ...]:
        return await self._ask(model, lambda engine: engine.tokenize(model, prompt, special))

    async def detokenize(self, model: str, tokens: Sequence[int]) -> str:
        return await self._ask(model, lambda engine: engine.detokenize(model, tokens))

    async def relay(self, model: str, deed: Deed, body: bytes, media_type: str = JSON) -> Relayed:
        return await self._ask(model, lambda engine: engine.relay(model, deed, body, media_type))

    async def _ask(self, model: str, call: Callable[[Engine], Awaitable[T]]) -> T:
        """Whoever has least to do, and another if that one fails."""
        attempts = _Attempts(_now() + self._patience)
        level: Level | None = None
        while True:
            fit = self._fit(await self._able(model), attempts)
            level = level or (level_of(fit) if fit else None)
            fit = [one for one in fit if one.able.prompt == level]
            if not fit:
                raise attempts.error or self._nobody(model)
            member = fit[least([_candidate(one, model) for one in fit])].member
            epoch = member.enter(model)
            try:
                given = await call(member.engine)
            except AntiphonError as error:
                member.failed(error, epoch)
                attempts.failed(member, error)
            else:
                member.breaker.answered(epoch)
                return given
            finally:
                member.leave(model, epoch)
                if self._waiting:
                    self._tell_of_room()

    async def _choose(self, work: Work, attempts: "_Attempts") -> Member:
        """Whoever may be given this work now, and has room: or wait until somebody has."""
        while True:
            able = [one for one in await self._able(work.model) if work.level in (None, one.able.prompt)]
            fit = self._fit(able, attempts)
            if not fit:
                raise attempts.error or self._nobody(work.model)
            roomy = [one for one in fit if one.member.has_room(work.model, one.able)]
            if len(roomy) == 1:
                return roomy[0].member
            if roomy:
                return roomy[choose([_candidate(one, work.model) for one in roomy], affinity(work))].member
            await self._room(attempts)

    def _fit(self, able: list[Able], attempts: "_Attempts") -> list[Able]:
        """Who may be given work and was not tried. Where there is but one, it is asked however it is: who else?"""
        now = _now()
        if len(able) == 1 and not attempts.tried:
            return able
        return [one for one in able if one.member not in attempts.tried and one.member.fit(now)]

    async def _able(self, model: str) -> list[Able]:
        """All that serve it. Who has lost the model meanwhile does not, nor who fails at it where others do."""
        found, fault = [], None
        for member in self._having(model):
            if not member.draining:
                try:
                    able = await member.engine.capabilities(model)
                except (ModelNotFound, Unavailable):
                    continue
                except EngineFailed as error:
                    fault = error
                    continue
                if member.told != able.slots:
                    member.bind(member.seat, able.slots)
                found.append(Able(member, able))
        if fault is not None and not found:
            raise fault
        return found

    def _having(self, model: str) -> list[Member]:
        """Those that list it; if none does, those that serve it all the same."""
        members = self._roster.members
        listing = [member for member in members if member.lists(model)]
        return listing or [member for member in members if member.engine.serves(model)]

    def _kinds(self) -> str:
        return "+".join(sorted({member.engine.name for member in self._roster.members}))

    async def _room(self, attempts: "_Attempts") -> None:
        """Until somebody may have some."""
        attempts.check()
        freed = asyncio.Event()
        self._waiting[freed] = None
        try:
            async with asyncio.timeout(min(LOOK_SECONDS, attempts.left)):
                await freed.wait()
        except TimeoutError:
            pass  # an engine may have come back, which nobody says
        finally:
            del self._waiting[freed]

    def _tell_of_room(self) -> None:
        for freed in self._waiting:
            freed.set()

    def _nobody(self, model: str) -> AntiphonError:
        if not (having := self._having(model)):
            return ModelNotFound(f"The model '{model[:80]}' does not exist here.", param="model")
        now = _now()
        soonest = min(member.fit_in(now) for member in having)
        return Unavailable("No engine that serves this model can be given work now.", retry_after=max(soonest, _SOON))


class _Attempts(Struct):
    """At one work: who was tried, and how the last one failed."""

    until: float
    tried: tuple[Member, ...] = ()
    error: AntiphonError | None = None

    @property
    def left(self) -> float:
        return max(0.0, self.until - _now())

    def failed(self, member: Member, error: AntiphonError) -> None:
        """Raises the error if no other may be tried."""
        self.tried += (member,)
        self.error = error
        if not moves_on(error) or not self.left:
            raise error

    def check(self) -> None:
        if not self.left:
            raise self.error or Busy("No engine had room for this in time.", retry_after=_SOON)


def _candidate(one: Able, model: str) -> Candidate:
    return Candidate(one.member.seat.place, one.member.load(model, one.able), one.slots)

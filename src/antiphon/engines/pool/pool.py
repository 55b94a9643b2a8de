"""Pool of engines behind the `Engine` protocol. A request whose engine fails before the first chunk is retried on
another.

    generate ──▶ choose ──▶ member ── fails before a chunk ──▶ choose among the others ──▶ …
                              └────── first chunk ──▶ this member's output, to its end or its failure

Each member is tried once. Invalid requests are not retried. All attempts share one deadline. Members may change while
the pool runs; if a new one cannot be opened, nothing changes:

    joining ──▶ member ──no longer configured──▶ leaving ──its requests ended, or the grace period is over──▶ closed
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from time import monotonic as _now
from typing import TypeVar

from antiphon.core.prompt import Chunk, GenerationRequest, Prompt
from antiphon.engines import base
from antiphon.engines.pool.capabilities import MemberCapabilities, merge_capabilities
from antiphon.engines.pool.members import MemberSpec, PoolMember
from antiphon.engines.pool.selection import Attempts, MemberSelector
from antiphon.errors import AntiphonError

log = logging.getLogger(__name__)

T = TypeVar("T")

_MAX_CACHED = 256  # some engines serve any model name that a client sends


class EnginePool:
    """Engine that distributes requests over its members.

    `timeout`: seconds for all attempts of a request; `grace`: seconds for running requests of a removed member.
    """

    def __init__(self, specs: Sequence[MemberSpec], timeout: float = 600.0, grace: float = 3600.0) -> None:
        self._timeout = timeout
        self._grace = grace
        self._selector = MemberSelector(())
        self._closing_tasks: dict[PoolMember, asyncio.Task[None]] = {}
        self._update_lock = asyncio.Lock()
        self._set_members([PoolMember(spec, spec.build()) for spec in specs])

    def _set_members(self, members: Sequence[PoolMember]) -> None:
        self._selector.members = members
        self._only_member = members[0] if len(members) == 1 else None  # if there is one, no choice is needed
        self.name = "+".join(sorted({member.engine.name for member in members}))
        # model → the members that are available and that serve it, and their merged capabilities, which rarely change
        self._merged: dict[str, tuple[list[MemberCapabilities], list[MemberCapabilities], base.Capabilities]] = {}

    async def open(self) -> None:
        await _open_all(self.members())
        if len(self.members()) > 1:
            _log_locations(self.members())

    async def close(self) -> None:
        tasks = [*self._closing_tasks.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await _close_all(self.members())

    async def update_members(self, specs: Sequence[MemberSpec]) -> tuple[list[str], list[str]]:
        """Replace the members by those of the specs and return the names of those that joined and that were removed.

        Removed ones finish their running requests. Raises StartupError if a new one cannot be opened.
        """
        async with self._update_lock:
            removed, members, joined = [*self.members()], list[PoolMember](), list[PoolMember]()
            for spec in specs:
                if (existing := next((member for member in removed if member.matches(spec)), None)) is None:
                    joined.append(PoolMember(spec, spec.build()))
                else:
                    removed.remove(existing)
                members.append(existing or joined[-1])
            await _open_new(joined)
            for spec, member in zip(specs, members, strict=True):
                member.bind(spec, member.reported_slots)
            self._set_members(members)
            for member in removed:
                self._start_closing(member)
            _log_locations(joined)
            return [member.name for member in joined], [member.name for member in removed]

    def _start_closing(self, member: PoolMember) -> None:
        member.leaving = True
        task = asyncio.get_running_loop().create_task(self._close_when_idle(member), name=f"closing of {member.name}")
        self._closing_tasks[member] = task
        task.add_done_callback(lambda _: self._closing_tasks.pop(member, None))

    async def _close_when_idle(self, member: PoolMember) -> None:
        try:
            async with asyncio.timeout(self._grace):
                if member.running:
                    await member.idle.wait()
        except TimeoutError:
            log.warning("%s is closed with %d running requests: its grace period is over", member.name, member.running)
        finally:
            await member.engine.close()
        log.info("%s is closed", member.name)

    def members(self) -> Sequence[PoolMember]:
        return self._selector.members

    def models(self) -> Sequence[base.Model]:
        models: dict[str, base.Model] = {}
        for member in self.members():
            for model in member.engine.models():
                models.setdefault(model.id, model)
        return [*models.values()]

    def default_model(self) -> base.Model | None:
        """Return the first default model of the members; None while an earlier member was never reachable."""
        for member in self.members():
            first = member.engine.default_model()
            if first is not None or not member.engine.is_healthy():
                return first
        return None

    def serves(self, model: str) -> bool:
        for member in self.members():  # noqa: SIM110  # a generator expression would cost more than the loop
            if member.engine.serves(model):
                return True
        return False

    def is_healthy(self) -> bool:
        return any(member.engine.is_healthy() and not member.draining for member in self.members())

    def statuses(self) -> Sequence[base.EngineStatus]:
        now = _now()
        return [member.status(now) for member in (*self.members(), *self._closing_tasks)]

    async def capabilities(self, model: str) -> base.Capabilities:
        """Return the merged capabilities of the available members, or of all with the model if none is."""
        if not (serving := await self._selector.serving_members(model)):
            raise self._selector.unavailable_error(model)
        available = serving
        if len(serving) > 1:
            now = _now()
            available = [one for one in serving if one.member.is_available(now)] or serving
        cached = self._merged.get(model)
        if cached is None or (cached[0], cached[1]) != (available, serving):
            if len(self._merged) >= _MAX_CACHED:
                self._merged.clear()
            cached = self._merged[model] = available, serving, merge_capabilities(available, serving)
        return cached[2]

    def generate(self, request: GenerationRequest) -> AsyncGenerator[list[Chunk], None]:
        choose = partial(self._selector.choose_for_generation, request)
        return self._forward(request.model, choose, lambda engine: engine.generate(request), request.note_attempt)

    def speak(self, model: str, body: bytes, as_events: bool = False) -> AsyncGenerator[bytes, None]:
        choose = partial(self._selector.choose_for_task, model)
        return self._forward(model, choose, lambda engine: engine.speak(model, body, as_events))

    async def _forward(
        self,
        model: str,
        choose: Callable[[Attempts], Awaitable[PoolMember]],
        start: Callable[[base.Engine], AsyncGenerator[T, None]],
        note_attempt: Callable[[str, str], None] | None = None,
    ) -> AsyncGenerator[T, None]:
        """Forward the output of a member. This async generator costs 0.2 µs per list, less than other wrappers."""
        attempts = Attempts(_now() + self._timeout)
        while True:
            member = self._only_member
            if member is None or attempts.tried or member.running >= member.max_running:
                member = await choose(attempts)
            started, epoch = False, member.start_request(model)
            if note_attempt is not None:
                note_attempt(member.name, "")
            source = start(member.engine)
            try:
                async for output in source:
                    if not started:
                        started, epoch = True, member.breaker.record_start(epoch)
                    yield output
            except AntiphonError as error:
                member.record_failure(error, epoch)
                if note_attempt is not None:
                    note_attempt(member.name, error.code or type(error).__name__)
                if started:
                    raise
                attempts.record_failure(member, error)
            else:
                member.breaker.record_end()
                return
            finally:
                await source.aclose()
                member.end_request(model, epoch)
                if self._selector.waiters:
                    self._selector.wake_waiters()

    async def count_tokens(self, model: str, prompt: Prompt) -> int:
        return await self._call_member(model, lambda engine: engine.count_tokens(model, prompt))

    async def embed(
        self, model: str, inputs: base.EmbeddingInputs, dimensions: int | None = None, truncate: int | None = None
    ) -> base.EmbeddingResult:
        return await self._call_member(model, lambda engine: engine.embed(model, inputs, dimensions, truncate))

    async def tokenize(self, model: str, prompt: Prompt, special: bool = True) -> tuple[int, ...]:
        return await self._call_member(model, lambda engine: engine.tokenize(model, prompt, special))

    async def detokenize(self, model: str, tokens: Sequence[int]) -> str:
        return await self._call_member(model, lambda engine: engine.detokenize(model, tokens))

    async def pass_through(
        self, model: str, task: base.Task, body: bytes, media_type: str = base.JSON_MEDIA_TYPE
    ) -> base.PassthroughReply:
        return await self._call_member(model, lambda engine: engine.pass_through(model, task, body, media_type))

    async def _call_member(self, model: str, call: Callable[[base.Engine], Awaitable[T]]) -> T:
        """Call the least loaded member, and another one if it fails."""
        attempts = Attempts(_now() + self._timeout)
        while True:
            member = await self._selector.choose_for_task(model, attempts)
            epoch = member.start_request(model)
            try:
                result = await call(member.engine)
            except AntiphonError as error:
                member.record_failure(error, epoch)
                attempts.record_failure(member, error)
            else:
                member.breaker.record_success(epoch)
                return result
            finally:
                member.end_request(model, epoch)
                if self._selector.waiters:
                    self._selector.wake_waiters()


async def _open_new(members: Sequence[PoolMember]) -> None:
    """Open the members, or close them all if one fails."""
    async with AsyncExitStack() as stack:
        stack.push_async_callback(_close_all, members)
        await _open_all(members)
        stack.pop_all()


async def _open_all(members: Sequence[PoolMember]) -> None:
    """Open all members concurrently, since some take long; raise the first failure after all have finished."""
    outcomes = await asyncio.gather(*(member.engine.open() for member in members), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


async def _close_all(members: Sequence[PoolMember]) -> None:
    await asyncio.gather(*(member.engine.close() for member in members))


def _log_locations(members: Sequence[PoolMember]) -> None:
    """Log the location behind each member name, which metrics use."""
    for member in members:
        log.info("The engine %s is at %s", member.name, member.spec.location)

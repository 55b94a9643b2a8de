"""Kill points: end the process before or after the n-th call of a method of the store or the live log, or at a token.

store.finish:after:3      live.append:before:1      engine.token:at:40
"""

import inspect
import os
import secrets
import signal
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec

from antiphon.core.prompt import Chunk, GenerationRequest
from antiphon.stores.live.base import LiveLog
from antiphon.stores.sql.store import Store
from drills.harness.journal import Journal, find_nonce


def _operations(protocol: type) -> set[str]:
    return {name for name, method in vars(protocol).items() if inspect.iscoroutinefunction(method)}


OPERATIONS = (_operations(Store) | _operations(LiveLog)) - {"open", "close"}


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class KillPoint:
    def __init__(self, on_reached: Callable[[], None] = kill_self) -> None:
        self._on_reached = on_reached
        self._point = ""
        self._remaining = 0

    def arm(self, point: str) -> None:
        """Set the point, as `name:when:n`; it replaces the previous one."""
        self._point, _, count = point.rpartition(":")
        self._remaining = int(count)

    def reach(self, point: str) -> None:
        if point == self._point:
            self._remaining -= 1
            if self._remaining == 0:
                self._on_reached()


class InstrumentedStorage:
    """Wraps a store or a live log: reports every call to the kill point and writes begun and committed responses to the
    journal.
    """

    def __init__(self, inner: Any, kind: str, kill_point: KillPoint, journal: Journal) -> None:
        self._inner = inner
        self._kind = kind
        self._kill_point = kill_point
        self._journal = journal

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        if name not in OPERATIONS:
            return attribute

        async def call(*args: Any, **kwargs: Any) -> Any:
            self._kill_point.reach(f"{self._kind}.{name}:before")
            if name == "begin":
                self._journal.write("begun", id=args[1].id, nonce=find_nonce(args[1].request))
            result = await attribute(*args, **kwargs)
            if name == "finish":
                self._log_commit(args[1])
            self._kill_point.reach(f"{self._kind}.{name}:after")
            return result

        return call

    def _log_commit(self, end: Any) -> None:
        nonce = find_nonce(end.new.request) if end.new is not None else ""
        self._journal.write("committed", id=end.id, fence=end.fence, nonce=nonce)


class InstrumentedEngine:
    """Wraps an engine and writes its work to the journal.

    With `mark_answers`, every answer begins and ends with a unique word, so that an answer combined from two attempts
    is detected.
    """

    def __init__(self, inner: Any, kill_point: KillPoint, journal: Journal, mark_answers: bool) -> None:
        self._inner = inner
        self._kill_point = kill_point
        self._journal = journal
        self._mark_answers = mark_answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[list[Chunk], None]:
        nonce, ended = find_nonce(msgspec.json.encode(request.prompt)), False
        self._journal.write("generate", nonce=nonce)
        self._kill_point.reach("engine.generate:at")
        source = (
            self._add_markers(self._inner.generate(request)) if self._mark_answers else self._inner.generate(request)
        )
        try:
            point = "engine.first:at"
            async for chunks in source:
                self._kill_point.reach(point)
                point = "engine.token:at"
                yield chunks
            ended = True
            self._kill_point.reach("engine.last:at")
        finally:
            await source.aclose()
            self._journal.write("generated" if ended else "cancelled", nonce=nonce)

    async def _add_markers(self, source: AsyncGenerator[list[Chunk], None]) -> AsyncGenerator[list[Chunk], None]:
        marker = secrets.token_hex(3)
        try:
            yield [Chunk(text=f"{marker} ")]
            async for chunks in source:
                if any(chunk.finish for chunk in chunks):
                    yield [Chunk(text=f" {marker}")]
                yield chunks
        finally:
            await source.aclose()

"""Kill points: end the process before or after the n-th call of a method of the store or the live log, or at a token.

store.finish:after:3      live.append:before:1      engine.token:at:40

A hold delays all calls of such a method until it is released: a process that is paused meanwhile makes them when it
resumes, whatever has happened to its leases.
"""

import asyncio
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


class CallHold:
    """Delays the calls of one method, such as `store.finish`. Used on the event loop only."""

    def __init__(self) -> None:
        self._method = ""
        self._released = asyncio.Event()

    def set(self, method: str) -> None:
        self._method = method
        self._released.clear()

    def release(self) -> None:
        self._method = ""
        self._released.set()

    def holds(self, method: str) -> bool:
        return method == self._method

    async def wait(self) -> None:
        await self._released.wait()


class InstrumentedStorage:
    """Wraps a store or a live log: reports every call to the kill point and writes begun, claimed and committed
    responses to the journal, and those whose call is held.
    """

    def __init__(self, inner: Any, kind: str, kill_point: KillPoint, hold: CallHold, journal: Journal) -> None:
        self._inner = inner
        self._kind = kind
        self._kill_point = kill_point
        self._hold = hold
        self._journal = journal

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        if name not in OPERATIONS:
            return attribute

        async def call(*args: Any, **kwargs: Any) -> Any:
            self._kill_point.reach(f"{self._kind}.{name}:before")
            if name == "begin":
                self._journal.write("begun", id=args[1].id, nonce=find_nonce(args[1].request))
            if self._hold.holds(f"{self._kind}.{name}"):
                self._journal.write("held", id=args[1].id)
                await self._hold.wait()
            result = await attribute(*args, **kwargs)
            if name == "finish":
                self._log_commit(args[1])
            elif name in ("claim", "take"):
                self._log_claims(result)
            self._kill_point.reach(f"{self._kind}.{name}:after")
            return result

        return call

    def _log_claims(self, result: Any) -> None:
        rows = [claimed.row for claimed in result] if isinstance(result, list) else [result]
        for row in filter(None, rows):
            self._journal.write("claimed", id=row.id, fence=row.fence)

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

"""Kills the process at a named point: before or after the n-th call of a store's or live log's method, or at a token.

store.finish:after:3      live.append:before:1      engine.token:at:40
"""

import inspect
import os
import secrets
import signal
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec

from antiphon.core.prompt import Chunk, Work
from antiphon.stores.base import Store
from antiphon.stores.live.base import LiveLog
from drills.harness.journal import Journal, nonce_in


def _operations(protocol: type) -> set[str]:
    return {name for name, method in vars(protocol).items() if inspect.iscoroutinefunction(method)}


OPERATIONS = (_operations(Store) | _operations(LiveLog)) - {"open", "close"}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Trap:
    def __init__(self, spring: Callable[[], None] = die) -> None:
        self._spring = spring
        self._point = ""
        self._left = 0

    def arm(self, point: str) -> None:
        """`name:when:n`; what was armed before is forgotten."""
        self._point, _, count = point.rpartition(":")
        self._left = int(count)

    def reach(self, point: str) -> None:
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                self._spring()


class Trapped:
    """Stands before a store or a live log and calls it, passing by the trap and writing down what was committed."""

    def __init__(self, inner: Any, kind: str, trap: Trap, journal: Journal) -> None:
        self._inner = inner
        self._kind = kind
        self._trap = trap
        self._journal = journal

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in OPERATIONS:
            return found

        async def call(*given: Any, **named: Any) -> Any:
            self._trap.reach(f"{self._kind}.{name}:before")
            if name == "begin":
                self._journal.write("begun", id=given[1].id, nonce=nonce_in(given[1].request))
            result = await found(*given, **named)
            if name == "finish":
                self._committed(given[1])
            self._trap.reach(f"{self._kind}.{name}:after")
            return result

        return call

    def _committed(self, end: Any) -> None:
        nonce = nonce_in(end.new.request) if end.new is not None else ""
        self._journal.write("committed", id=end.id, fence=end.fence, nonce=nonce)


class TrappedEngine:
    """Stands before an engine and writes down its work. If it `marks`, every answer begins and ends with the same word,
    which no other answer has: what was put together from two of them is seen."""

    def __init__(self, inner: Any, trap: Trap, journal: Journal, marks: bool) -> None:
        self._inner = inner
        self._trap = trap
        self._journal = journal
        self._marks = marks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def generate(self, work: Work) -> AsyncGenerator[list[Chunk], None]:
        nonce, ended = nonce_in(msgspec.json.encode(work.prompt)), False
        self._journal.write("generate", nonce=nonce)
        self._trap.reach("engine.generate:at")
        source = self._marked(self._inner.generate(work)) if self._marks else self._inner.generate(work)
        try:
            point = "engine.first:at"
            async for chunks in source:
                self._trap.reach(point)
                point = "engine.token:at"
                yield chunks
            ended = True
            self._trap.reach("engine.last:at")
        finally:
            await source.aclose()
            self._journal.write("generated" if ended else "cancelled", nonce=nonce)

    async def _marked(self, source: AsyncGenerator[list[Chunk], None]) -> AsyncGenerator[list[Chunk], None]:
        mark = secrets.token_hex(3)
        try:
            yield [Chunk(text=f"{mark} ")]
            async for chunks in source:
                if any(chunk.finish for chunk in chunks):
                    yield [Chunk(text=f" {mark}")]
                yield chunks
        finally:
            await source.aclose()

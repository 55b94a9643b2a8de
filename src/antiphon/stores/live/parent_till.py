"""The till that the parent of several workers keeps (drawer.py), as a worker asks it: one question at a time.

An answer that nobody waited for any more is read before the next question: so the pipe never has more than one message
on its way, and nobody blocks who writes to it.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from antiphon.errors import Unavailable
from antiphon.stores.live.drawer import Exchange, Question, Running, encode
from antiphon.stores.live.till import Ask, Got

DEADLINE = 2.0  # seconds: whoever waits is a client that was not let in yet
_AT_ONCE = 64  # buckets of one message: a few thousand bytes

_given = msgspec.msgpack.Decoder(list[Got])
_counts = msgspec.msgpack.Decoder(dict[str, int])


class ParentTill:
    name = "the parent process"

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._turn = asyncio.Lock()
        self._owed = False  # an answer is still to come

    async def exchange(self, tenant: str, asks: Sequence[Ask]) -> list[Got]:
        given: list[Got] = []
        for some in _parts(asks):
            given += _given.decode(await self._ask(Exchange(tenant, some)))
        return given

    async def running(self, tenant: str, counts: Mapping[str, int]) -> dict[str, int]:
        elsewhere: dict[str, int] = {}
        for some in _parts(counts.items()):
            elsewhere |= _counts.decode(await self._ask(Running(tenant, dict(some))))
        return elsewhere

    async def close(self) -> None:
        self._pipe.close()

    async def _ask(self, question: Question) -> bytes:
        try:
            async with asyncio.timeout(DEADLINE), self._turn:
                if self._owed:
                    await self._answer()
                self._pipe.send_bytes(encode(question))
                self._owed = True
                return await self._answer()
        except (OSError, EOFError) as error:  # a TimeoutError too
            raise Unavailable("The parent process does not answer.", retry_after=1.0) from error

    async def _answer(self) -> bytes:
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        loop.add_reader(self._pipe.fileno(), _done, ready)
        try:
            await ready
        finally:
            loop.remove_reader(self._pipe.fileno())
        answer = self._pipe.recv_bytes()
        self._owed = False
        return answer


def _done(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _parts(all: Iterable[Any]) -> list[list[Any]]:
    """At least one, since a question without buckets is one too: is anybody there?"""
    whole = [*all]
    return [whole[start : start + _AT_ONCE] for start in range(0, max(1, len(whole)), _AT_ONCE)]

"""The till of several workers, as their parent keeps it in memory: the same promises as Redis' (redis_till.py).

Workers ask in messages of a pipe, one at a time each; what is said in them is here too.

The till that the parent of several workers keeps (drawer.py), as a worker asks it: one question at a time.

An answer that nobody waited for any more is read before the next question: so the pipe never has more than one message
on its way, and nobody blocks who writes to it.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.core.token_bucket import Bucket
from antiphon.errors import Unavailable
from antiphon.stores.live.base import Ask, Got

_FORGET = 4096  # buckets after which those are looked for that are full


class Exchange(Struct, frozen=True, tag=True, array_like=True):
    tenant: str
    asks: list[Ask]


class Running(Struct, frozen=True, tag=True, array_like=True):
    tenant: str
    counts: Mapping[str, int]


Question = Exchange | Running

encode = msgspec.msgpack.Encoder().encode
_questions = msgspec.msgpack.Decoder(Question)


class Drawer:
    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._buckets: dict[tuple[str, str], Bucket] = {}
        self._room = _FORGET
        self._running: dict[tuple[str, str], dict[int, int]] = {}  # by worker

    def answer(self, worker: int, question: bytes) -> bytes:
        asked: Question = _questions.decode(question)
        match asked:
            case Exchange(tenant, asks):
                return encode([self._exchanged(tenant, ask) for ask in asks])
            case Running(tenant, counts):
                return encode({name: self._elsewhere(worker, (tenant, name), n) for name, n in counts.items()})

    def forget(self, worker: int) -> None:
        """It is gone, and nothing runs there any more. What it had taken comes back as the buckets fill."""
        for key in [key for key, counts in self._running.items() if worker in counts]:
            self._elsewhere(worker, key, 0)

    def _exchanged(self, tenant: str, ask: Ask) -> Got:
        now, bucket = self._clock(), self._bucket(tenant, ask)
        bucket.take(-ask.back, now)
        left = bucket.left(now)
        taken = min(left, max(ask.want, ask.most)) if 0 < ask.want <= left else 0.0
        bucket.take(taken, now)
        return Got(taken, left - taken)

    def _bucket(self, tenant: str, ask: Ask) -> Bucket:
        bucket = self._buckets.get((tenant, ask.name))
        if bucket is None:
            self._make_room()
            bucket = self._buckets[tenant, ask.name] = Bucket(ask.size, self._clock())
        elif bucket.size != ask.size:
            bucket.resize(ask.size, self._clock())
        return bucket

    def _make_room(self) -> None:
        if len(self._buckets) >= self._room:
            now = self._clock()
            self._buckets = {key: one for key, one in self._buckets.items() if one.left(now) < one.size}
            self._room = max(_FORGET, 2 * len(self._buckets))

    def _elsewhere(self, worker: int, key: tuple[str, str], count: int) -> int:
        counts = self._running.setdefault(key, {})
        counts[worker] = count
        if not count:
            del counts[worker]
        if not counts:
            del self._running[key]
        return sum(counts.values()) - count


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

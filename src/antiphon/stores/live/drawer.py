"""The till of several workers, as their parent keeps it in memory: the same promises as Redis' (redis_till.py).

Workers ask in messages of a pipe, one at a time each; what is said in them is here too.
"""

from collections.abc import Callable, Mapping
from time import monotonic

import msgspec
from msgspec import Struct

from antiphon.core.token_bucket import Bucket
from antiphon.stores.live.till import Ask, Got

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

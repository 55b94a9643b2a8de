"""Rate limits shared by the workers of one server, with the same guarantees as in `stores/live/redis.py`.

The parent process holds the buckets in memory (`LimitServer`). Each worker sends messages over a pipe, one at a time
(`ParentLimits`). A reply whose request was abandoned is read before the next request, so a pipe never holds more than
one message and writing to it never blocks.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.errors import Unavailable
from antiphon.stores.live.base import BucketGrant, BucketRequest
from antiphon.token_bucket import TokenBucket

_MIN_EVICTION_SIZE = 4096  # number of buckets from which on full ones are evicted


class BucketExchange(Struct, frozen=True, tag=True, array_like=True):
    """Message: run requests on buckets."""

    tenant: str
    requests: list[BucketRequest]


class RunningCounts(Struct, frozen=True, tag=True, array_like=True):
    """Message: report running responses."""

    tenant: str
    counts: Mapping[str, int]


LimitMessage = BucketExchange | RunningCounts

encode = msgspec.msgpack.Encoder().encode
_message_decoder = msgspec.msgpack.Decoder(LimitMessage)


class LimitServer:
    """Holds the shared limits in the parent process."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._buckets: dict[tuple[str, str], TokenBucket] = {}
        self._eviction_size = _MIN_EVICTION_SIZE
        self._running: dict[tuple[str, str], dict[int, int]] = {}  # by worker

    def handle(self, worker: int, body: bytes) -> bytes:
        """Process a message of a worker and return the encoded reply."""
        message: LimitMessage = _message_decoder.decode(body)
        match message:
            case BucketExchange(tenant, requests):
                return encode([self._exchange(tenant, request) for request in requests])
            case RunningCounts(tenant, counts):
                return encode(
                    {name: self._count_others(worker, (tenant, name), count) for name, count in counts.items()}
                )

    def forget(self, worker: int) -> None:
        """Drop the running counts of a worker that exited. Amounts it had taken return as the buckets refill."""
        for key in [key for key, counts in self._running.items() if worker in counts]:
            self._count_others(worker, key, 0)

    def _exchange(self, tenant: str, request: BucketRequest) -> BucketGrant:
        now, bucket = self._clock(), self._bucket(tenant, request)
        bucket.take(-request.back, now)
        remaining = bucket.available(now)
        taken = min(remaining, max(request.want, request.most)) if 0 < request.want <= remaining else 0.0
        bucket.take(taken, now)
        return BucketGrant(taken, remaining - taken)

    def _bucket(self, tenant: str, request: BucketRequest) -> TokenBucket:
        bucket = self._buckets.get((tenant, request.name))
        if bucket is None:
            self._evict_full_buckets()
            bucket = self._buckets[tenant, request.name] = TokenBucket(request.size, self._clock())
        elif bucket.size != request.size:
            bucket.resize(request.size, self._clock())
        return bucket

    def _evict_full_buckets(self) -> None:
        if len(self._buckets) >= self._eviction_size:
            now = self._clock()
            self._buckets = {
                key: bucket for key, bucket in self._buckets.items() if bucket.available(now) < bucket.size
            }
            self._eviction_size = max(_MIN_EVICTION_SIZE, 2 * len(self._buckets))

    def _count_others(self, worker: int, key: tuple[str, str], count: int) -> int:
        """Store the count of this worker and return the sum of all others."""
        counts = self._running.setdefault(key, {})
        counts[worker] = count
        if not count:
            del counts[worker]
        if not counts:
            del self._running[key]
        return sum(counts.values()) - count


DEADLINE = 2.0  # seconds; a client is waiting for admission
_BATCH_SIZE = 64  # buckets per message, which is a few thousand bytes

_grants_decoder = msgspec.msgpack.Decoder(list[BucketGrant])
_counts_decoder = msgspec.msgpack.Decoder(dict[str, int])


class ParentLimits:
    """Accesses the shared limits of the parent process from a worker."""

    name = "the parent process"

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = asyncio.Lock()
        self._reply_pending = False  # a reply is still to be read

    async def exchange(self, tenant: str, requests: Sequence[BucketRequest]) -> list[BucketGrant]:
        grants: list[BucketGrant] = []
        for batch in _split(requests):
            grants += _grants_decoder.decode(await self._request(BucketExchange(tenant, batch)))
        return grants

    async def report_running(self, tenant: str, counts: Mapping[str, int]) -> dict[str, int]:
        others: dict[str, int] = {}
        for batch in _split(counts.items()):
            others |= _counts_decoder.decode(await self._request(RunningCounts(tenant, dict(batch))))
        return others

    async def close(self) -> None:
        self._pipe.close()

    async def _request(self, message: LimitMessage) -> bytes:
        try:
            async with asyncio.timeout(DEADLINE), self._lock:
                if self._reply_pending:
                    await self._read_reply()
                self._pipe.send_bytes(encode(message))
                self._reply_pending = True
                return await self._read_reply()
        except (OSError, EOFError) as error:  # TimeoutError is an OSError
            raise Unavailable("The parent process does not answer.", retry_after=1.0) from error

    async def _read_reply(self) -> bytes:
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        loop.add_reader(self._pipe.fileno(), _set_ready, ready)
        try:
            await ready
        finally:
            loop.remove_reader(self._pipe.fileno())
        reply = self._pipe.recv_bytes()
        self._reply_pending = False
        return reply


def _set_ready(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _split(items: Iterable[Any]) -> list[list[Any]]:
    """Split into batches; at least one, since an empty message still checks that the parent is alive."""
    entries = [*items]
    return [entries[start : start + _BATCH_SIZE] for start in range(0, max(1, len(entries)), _BATCH_SIZE)]

"""The live log and the shared rate limits in Redis or Valkey.

    antiphon:{tenant:id}:log          a stream; batch n is entry n+1-0, so none can be written twice or skipped
    antiphon:{tenant:id}:fence        the highest fence seen; owners below it are rejected
    antiphon:{tenant}:bucket:NAME     level and time, in one string; expires when the bucket would be full
    antiphon:{tenant}:running:NAME    a hash: server → number of running responses, and until when that counts

The keys of a log expire some time after the last batch. Writing a batch again, after a lost reply, changes nothing.
One channel carries the notifications. Buckets refill by the clock of Redis. `inspect_server` reads facts about a server
without changing anything.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from importlib.resources import files
from typing import Any, cast
from urllib.parse import urlsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff
from redis.exceptions import AuthenticationError, RedisError

from antiphon.errors import StartupError, Unavailable
from antiphon.ids import new_id
from antiphon.stores.base import OwnershipLost
from antiphon.stores.live.base import BucketGrant, BucketRequest, NotifyCallback, run_with_reconnect

DEADLINE = 5.0
PROBE_SECONDS = 10.0
MAX_CONNECTIONS = 16
CHANNEL = "antiphon:words"
# lifetime of the fence of an ended response; an owner that resumes later finds no log to append to
TOMBSTONE_SECONDS = 600.0
LIMITS_DEADLINE = 2.0  # seconds; a client is waiting for admission
COUNT_TTL_MS = 3_000  # milliseconds that a reported count is valid
ENDED = 2**53 - 1  # a fence above all others

FAULTS = (RedisError, OSError)  # an expired deadline is an OSError (TimeoutError)

OK, FENCED, GAP = range(3)


class RedisLiveLog:
    """The live log on Redis. `ttl`: seconds that a log outlives its last batch if it is not dropped."""

    name = "redis"

    def __init__(self, url: str, ttl: float) -> None:
        self._redis = make_client(url)
        self._url = url
        self._ttl = str(round(ttl * 1000))
        self._sender_id = new_id("conn")
        self._append_script = self._redis.register_script(_read_script("append"))
        self._fence_script = self._redis.register_script(_read_script("fence"))
        self._subscription: asyncio.Task[None] | None = None

    async def open(self, notify: NotifyCallback) -> None:
        self._notify = notify
        pubsub = self._redis.pubsub(ignore_subscribe_messages=True)
        async with _startup_deadline(self._url):
            await pubsub.subscribe(CHANNEL)
        self._first_pubsub: Any = pubsub
        self._subscription = asyncio.create_task(
            run_with_reconnect(self._listen, FAULTS), name="notifications from Redis"
        )

    async def close(self) -> None:
        if self._subscription is not None:
            self._subscription.cancel()
            await asyncio.wait([self._subscription])
        await self._redis.aclose()

    async def append(self, tenant: str, response_id: str, fence: int, number: int, batch: bytes) -> None:
        message = f"{self._sender_id} {response_id}"
        values: list[bytes | str | int] = [fence, number, f"{number + 1}-0", batch, self._ttl, CHANNEL, message]
        async with _deadline(DEADLINE, "The live log"):
            outcome = await self._append_script(keys=_keys(tenant, response_id), args=values)
        if outcome == FENCED:
            raise OwnershipLost(response_id)
        if outcome == GAP:
            raise Unavailable("The live log has lost the beginning of this response.")
        self._notify(response_id)

    async def read(self, tenant: str, response_id: str, after: int) -> list[bytes]:
        log_key, _ = _keys(tenant, response_id)
        async with _deadline(DEADLINE, "The live log"):
            entries = await self._redis.xrange(log_key, min=f"{after + 2}-0")
        return [fields[b"b"] for _, fields in cast("list[tuple[bytes, dict[bytes, bytes]]]", entries)]

    async def fence(self, tenant: str, response_id: str, fence: int) -> None:
        _, fence_key = _keys(tenant, response_id)
        async with _deadline(DEADLINE, "The live log"):
            await self._fence_script(keys=[fence_key], args=[fence, self._ttl])

    async def drop(self, tenant: str, response_id: str) -> None:
        log_key, fence_key = _keys(tenant, response_id)
        async with _deadline(DEADLINE, "The live log"), self._redis.pipeline(transaction=True) as pipeline:
            pipeline.set(fence_key, ENDED, px=round(TOMBSTONE_SECONDS * 1000))
            pipeline.unlink(log_key)
            await pipeline.execute()

    async def tell(self, response_id: str) -> None:
        async with _deadline(DEADLINE, "The live log"):
            await self._redis.publish(CHANNEL, f"{self._sender_id} {response_id}")
        self._notify(response_id)

    async def _listen(self) -> None:
        pubsub, self._first_pubsub = self._first_pubsub or self._redis.pubsub(ignore_subscribe_messages=True), None
        async with pubsub:
            async with asyncio.timeout(DEADLINE):
                await pubsub.subscribe(CHANNEL)
            while True:
                async with asyncio.timeout(PROBE_SECONDS + DEADLINE):  # includes the time to reconnect
                    message = await pubsub.get_message(timeout=PROBE_SECONDS)
                if message is not None:
                    self._on_message(message["data"].decode())

    def _on_message(self, text: str) -> None:
        sender, _, response_id = text.partition(" ")
        if sender != self._sender_id:  # its own were already delivered
            self._notify(response_id)


class RedisLimits:
    """Rate limits shared through Redis."""

    name = "Redis"

    def __init__(self, url: str) -> None:
        self._redis = make_client(url)
        self._client_id = new_id("conn")
        self._exchange_script = self._redis.register_script(_read_script("exchange"))
        self._running_script = self._redis.register_script(_read_script("running"))

    async def exchange(self, tenant: str, requests: Sequence[BucketRequest]) -> list[BucketGrant]:
        keys = [f"antiphon:{{{tenant}}}:bucket:{request.name}" for request in requests]
        values: list[bytes | str | int | float] = []
        for request in requests:
            values += [request.size, request.back, request.want, request.most]
        async with _deadline(LIMITS_DEADLINE, "Redis"):
            reply = [float(number) for number in await self._exchange_script(keys=keys, args=values)]
        return [BucketGrant(taken, remaining) for taken, remaining in zip(reply[::2], reply[1::2], strict=True)]

    async def report_running(self, tenant: str, counts: Mapping[str, int]) -> dict[str, int]:
        keys = [f"antiphon:{{{tenant}}}:running:{name}" for name in counts]
        async with _deadline(LIMITS_DEADLINE, "Redis"):
            reply = await self._running_script(keys=keys, args=[self._client_id, COUNT_TTL_MS, *counts.values()])
        return dict(zip(counts, map(int, reply), strict=True))

    async def close(self) -> None:
        await self._redis.aclose()


@contextlib.asynccontextmanager
async def _deadline(seconds: float, subject: str) -> AsyncIterator[None]:
    """Raise Unavailable, about the subject, if Redis fails or takes longer."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except FAULTS as error:
        raise Unavailable(f"{subject} does not answer.", retry_after=1.0) from error


@contextlib.asynccontextmanager
async def _startup_deadline(url: str) -> AsyncIterator[None]:
    """Raise StartupError for the operator if Redis fails or does not answer in time."""
    parts = urlsplit(url)
    address = f"{parts.netloc}{parts.path}".rpartition("@")[2]  # without user and password
    try:
        async with asyncio.timeout(DEADLINE):
            yield
    except AuthenticationError:
        raise StartupError(f"Redis at {address} rejects the password in --live.") from None
    except FAULTS as error:
        raise StartupError(f"Redis at {address} does not answer: {error or 'timed out'}") from None


def _read_script(name: str) -> str:
    return files("antiphon.stores.live").joinpath(f"{name}.lua").read_text("utf-8")


def make_client(url: str) -> Redis:
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            encoding_errors="surrogatepass",  # an id from a client may contain any character
            max_connections=MAX_CONNECTIONS,
            timeout=DEADLINE,
            # Deadlines are enforced here only: with its own timeout, redis-py sends under `asyncio.wait_for`, which in
            # Python 3.11 swallows a cancellation that arrives when the send completes.
            socket_timeout=None,
            socket_connect_timeout=DEADLINE,
            health_check_interval=PROBE_SECONDS,
            retry=Retry(ConstantBackoff(0.02), 2),  # bridges a server restart; every command may be repeated
        )
    except ValueError:  # its text may contain a part of the password
        raise StartupError("--live is not a valid Redis URL, such as redis://user:password@host:6379/0.") from None
    return Redis.from_pool(pool)


def _keys(tenant: str, response_id: str) -> list[str]:
    prefix = f"antiphon:{{{tenant}:{response_id}}}"  # the hash tag in braces puts both keys on one shard
    return [f"{prefix}:log", f"{prefix}:fence"]


async def inspect_server(url: str) -> dict[str, Any]:
    """Return what INFO reports. Raises StartupError if the server cannot be reached."""
    redis = make_client(url)
    try:
        async with _startup_deadline(url):
            info: dict[str, Any] = await redis.info()
    finally:
        await redis.aclose()
    return info

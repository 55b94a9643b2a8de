"""The live log in Redis or Valkey: a stream per response, and one channel for notifications.

    antiphon:{tenant:id}:log      a stream; batch n is entry n+1-0, so none can be written twice or skipped
    antiphon:{tenant:id}:fence    the highest fence seen; owners below it are rejected

Both keys expire some time after the last batch. Writing a batch again, after a lost reply, changes nothing.
`inspect_server` reads facts about a server without changing anything.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast
from urllib.parse import urlsplit

from msgspec import Struct
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff
from redis.exceptions import AuthenticationError, RedisError

from antiphon.errors import StartupError, Unavailable
from antiphon.ids import new_id
from antiphon.stores.base import OwnershipLost
from antiphon.stores.live.base import NotifyCallback
from antiphon.stores.live.reconnect import run_with_reconnect

DEADLINE = 5.0
PROBE_SECONDS = 10.0
MAX_CONNECTIONS = 16
CHANNEL = "antiphon:words"
# lifetime of the fence of an ended response; an owner that resumes later finds no log to append to
TOMBSTONE_SECONDS = 600.0
ENDED = 2**53 - 1  # a fence above all others

FAULTS = (RedisError, OSError)  # an expired deadline is an OSError (TimeoutError)

OK, FENCED, GAP = range(3)

# KEYS: log, fence. ARGV: fence, number, entry id, batch, milliseconds, channel, message.
_APPEND = """
local fence, number = tonumber(ARGV[1]), tonumber(ARGV[2])
if fence < tonumber(redis.call('GET', KEYS[2]) or '0') then return 1 end
local length = redis.call('XLEN', KEYS[1])
if number > length then return 2 end
if number < length then
  local there = redis.call('XRANGE', KEYS[1], ARGV[3], ARGV[3])[1]
  if there[2][2] == ARGV[4] then return 0 end
  return 1
end
redis.call('XADD', KEYS[1], ARGV[3], 'b', ARGV[4])
redis.call('PEXPIRE', KEYS[1], ARGV[5])
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[5])
redis.call('PUBLISH', ARGV[6], ARGV[7])
return 0
"""

# KEYS: fence. ARGV: fence, milliseconds.
_FENCE = """
if tonumber(ARGV[1]) > tonumber(redis.call('GET', KEYS[1]) or '0') then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
"""


class RedisLiveLog:
    """The live log on Redis. `ttl`: seconds that a log outlives its last batch if it is not dropped."""

    name = "redis"

    def __init__(self, url: str, ttl: float) -> None:
        self._redis = make_client(url)
        self._address = describe_address(url)
        self._ttl = str(round(ttl * 1000))
        self._sender_id = new_id("conn")
        self._append_script = self._redis.register_script(_APPEND)
        self._fence_script = self._redis.register_script(_FENCE)
        self._subscription: asyncio.Task[None] | None = None

    async def open(self, notify: NotifyCallback) -> None:
        self._notify = notify
        pubsub = self._redis.pubsub(ignore_subscribe_messages=True)
        try:
            async with asyncio.timeout(DEADLINE):
                await pubsub.subscribe(CHANNEL)
        except AuthenticationError:
            raise StartupError(f"Redis at {self._address} rejects the password in --live.") from None
        except FAULTS as error:
            raise StartupError(f"Redis at {self._address} does not answer: {error or 'timed out'}") from None
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
        values: list[bytes | str | int] = [fence, number, _entry_id(number), batch, self._ttl, CHANNEL, message]
        async with self._deadline():
            outcome = await self._append_script(keys=_keys(tenant, response_id), args=values)
        if outcome == FENCED:
            raise OwnershipLost(response_id)
        if outcome == GAP:
            raise Unavailable("The live log has lost the beginning of this response.")
        self._notify(response_id)

    async def read(self, tenant: str, response_id: str, after: int) -> list[bytes]:
        log_key, _ = _keys(tenant, response_id)
        async with self._deadline():
            entries = await self._redis.xrange(log_key, min=_entry_id(after + 1))
        return [fields[b"b"] for _, fields in cast("list[tuple[bytes, dict[bytes, bytes]]]", entries)]

    async def fence(self, tenant: str, response_id: str, fence: int) -> None:
        _, fence_key = _keys(tenant, response_id)
        async with self._deadline():
            await self._fence_script(keys=[fence_key], args=[fence, self._ttl])

    async def drop(self, tenant: str, response_id: str) -> None:
        log_key, fence_key = _keys(tenant, response_id)
        async with self._deadline(), self._redis.pipeline(transaction=True) as pipeline:
            pipeline.set(fence_key, ENDED, px=round(TOMBSTONE_SECONDS * 1000))
            pipeline.unlink(log_key)
            await pipeline.execute()

    async def tell(self, response_id: str) -> None:
        async with self._deadline():
            await self._redis.publish(CHANNEL, f"{self._sender_id} {response_id}")
        self._notify(response_id)

    @contextlib.asynccontextmanager
    async def _deadline(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(DEADLINE):
                yield
        except FAULTS as error:
            raise Unavailable("The live log does not answer.", retry_after=1.0) from error

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


def describe_address(url: str) -> str:
    """Return host, port and database, without user and password."""
    parts = urlsplit(url)
    return f"{parts.netloc}{parts.path}".rpartition("@")[2]


def _keys(tenant: str, response_id: str) -> list[str]:
    prefix = f"antiphon:{{{tenant}:{response_id}}}"  # the hash tag in braces puts both keys on one shard
    return [f"{prefix}:log", f"{prefix}:fence"]


def _entry_id(number: int) -> str:
    return f"{number + 1}-0"


class RedisInfo(Struct, frozen=True, kw_only=True):
    """Facts about a Redis or Valkey server."""

    name: str
    version: str
    replica: bool
    evicts: str  # maxmemory-policy; "noeviction" never evicts
    bounded: bool  # whether maxmemory is set


async def inspect_server(url: str) -> RedisInfo:
    """Query the server. Raises StartupError if it cannot be reached."""
    redis = make_client(url)
    try:
        async with asyncio.timeout(DEADLINE):
            info: dict[str, Any] = await redis.info()
    except AuthenticationError:
        raise StartupError(f"Redis at {describe_address(url)} rejects the password in --live.") from None
    except FAULTS as error:
        raise StartupError(f"Redis at {describe_address(url)} does not answer: {error or 'timed out'}") from None
    finally:
        await redis.aclose()
    valkey = info.get("valkey_version")
    return RedisInfo(
        name="Valkey" if valkey else "Redis",
        version=str(valkey or info.get("redis_version", "(unknown version)")),
        replica=info.get("role") == "slave",
        evicts=str(info.get("maxmemory_policy", "noeviction")),
        bounded=bool(info.get("maxmemory", 0)),
    )

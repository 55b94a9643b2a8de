"""The live log in Redis or Valkey: a stream for each response, and one channel for words.

    antiphon:{tenant:id}:log      a stream; batch n is entry n+1-0, so that none can be written twice or left out
    antiphon:{tenant:id}:fence    the highest fence that was seen; owners below it are refused

Both go by themselves some time after the last batch. A batch that is written again, because its answer got lost,
changes nothing.

What can be told of a Redis or Valkey without using it: nothing is changed.
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
from antiphon.stores.base import Lost
from antiphon.stores.live.base import Hear
from antiphon.stores.live.reconnect import again_and_again

DEADLINE = 5.0
PROBE_SECONDS = 10.0
CONNECTIONS = 16
CHANNEL = "antiphon:words"
TOMBSTONE_SECONDS = 600.0  # an ended response's; whoever wakes later finds no log to go on with
ENDED = 2**53 - 1  # a fence above all others

FAULTS = (RedisError, OSError)  # a deadline that passed is an OSError

OK, FENCED, GAP = range(3)

# KEYS: log, fence. ARGV: fence, number, id, batch, milliseconds, channel, word.
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


class RedisLive:
    """`ttl`: seconds that a log outlives its last batch if nobody drops it."""

    name = "redis"

    def __init__(self, url: str, ttl: float) -> None:
        self._redis = client(url)
        self._where = where(url)
        self._ttl = str(round(ttl * 1000))
        self._me = new_id("conn")
        self._append = self._redis.register_script(_APPEND)
        self._fence = self._redis.register_script(_FENCE)
        self._listener: asyncio.Task[None] | None = None

    async def open(self, hear: Hear) -> None:
        self._hear = hear
        words = self._redis.pubsub(ignore_subscribe_messages=True)
        try:
            async with asyncio.timeout(DEADLINE):
                await words.subscribe(CHANNEL)
        except AuthenticationError:
            raise StartupError(f"Redis at {self._where} refuses the password of --live.") from None
        except FAULTS as error:
            raise StartupError(f"Redis at {self._where} does not answer: {error or 'it takes too long'}") from None
        self._first: Any = words
        self._listener = asyncio.create_task(again_and_again(self._listen, FAULTS), name="words from Redis")

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.wait([self._listener])
        await self._redis.aclose()

    async def append(self, tenant: str, response_id: str, fence: int, number: int, batch: bytes) -> None:
        word = f"{self._me} {response_id}"
        values: list[bytes | str | int] = [fence, number, _entry(number), batch, self._ttl, CHANNEL, word]
        async with self._answering():
            outcome = await self._append(keys=_keys(tenant, response_id), args=values)
        if outcome == FENCED:
            raise Lost(response_id)
        if outcome == GAP:
            raise Unavailable("The live log has lost the beginning of this response.")
        self._hear(response_id)

    async def read(self, tenant: str, response_id: str, after: int) -> list[bytes]:
        log, _ = _keys(tenant, response_id)
        async with self._answering():
            entries = await self._redis.xrange(log, min=_entry(after + 1))
        return [fields[b"b"] for _, fields in cast("list[tuple[bytes, dict[bytes, bytes]]]", entries)]

    async def fence(self, tenant: str, response_id: str, fence: int) -> None:
        _, held = _keys(tenant, response_id)
        async with self._answering():
            await self._fence(keys=[held], args=[fence, self._ttl])

    async def drop(self, tenant: str, response_id: str) -> None:
        log, held = _keys(tenant, response_id)
        async with self._answering(), self._redis.pipeline(transaction=True) as both:
            both.set(held, ENDED, px=round(TOMBSTONE_SECONDS * 1000))
            both.unlink(log)
            await both.execute()

    async def tell(self, response_id: str) -> None:
        async with self._answering():
            await self._redis.publish(CHANNEL, f"{self._me} {response_id}")
        self._hear(response_id)

    @contextlib.asynccontextmanager
    async def _answering(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(DEADLINE):
                yield
        except FAULTS as error:
            raise Unavailable("The live log does not answer.", retry_after=1.0) from error

    async def _listen(self) -> None:
        words, self._first = self._first or self._redis.pubsub(ignore_subscribe_messages=True), None
        async with words:
            async with asyncio.timeout(DEADLINE):
                await words.subscribe(CHANNEL)
            while True:
                async with asyncio.timeout(PROBE_SECONDS + DEADLINE):  # it may have to connect again
                    message = await words.get_message(timeout=PROBE_SECONDS)
                if message is not None:
                    self._pass_on(message["data"].decode())

    def _pass_on(self, word: str) -> None:
        sender, _, response_id = word.partition(" ")
        if sender != self._me:  # one's own was heard at once
            self._hear(response_id)


def client(url: str) -> Redis:
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            encoding_errors="surrogatepass",  # an id may be anything when it is looked for
            max_connections=CONNECTIONS,
            timeout=DEADLINE,
            # Deadlines are ours alone: with one of its own, redis-py sends under `asyncio.wait_for`, which in
            # Python 3.11 swallows a cancellation that comes as the sending is done.
            socket_timeout=None,
            socket_connect_timeout=DEADLINE,
            health_check_interval=PROBE_SECONDS,
            retry=Retry(ConstantBackoff(0.02), 2),  # a server that came back; every command may be given twice
        )
    except ValueError:  # whose text may hold a part of the password
        raise StartupError("--live is no address of a Redis, such as redis://user:password@host:6379/0.") from None
    return Redis.from_pool(pool)


def where(url: str) -> str:
    """Without who, and with which password."""
    parts = urlsplit(url)
    return f"{parts.netloc}{parts.path}".rpartition("@")[2]


def _keys(tenant: str, response_id: str) -> list[str]:
    stem = f"antiphon:{{{tenant}:{response_id}}}"  # what is in braces decides over the shard: both are on one
    return [f"{stem}:log", f"{stem}:fence"]


def _entry(number: int) -> str:
    return f"{number + 1}-0"


class Looked(Struct, frozen=True, kw_only=True):
    name: str
    version: str
    replica: bool
    evicts: str  # how it makes room; "noeviction": it does not
    bounded: bool  # in its memory


async def look(url: str) -> Looked:
    """Raises StartupError."""
    redis = client(url)
    try:
        async with asyncio.timeout(DEADLINE):
            told: dict[str, Any] = await redis.info()
    except AuthenticationError:
        raise StartupError(f"Redis at {where(url)} refuses the password of --live.") from None
    except FAULTS as error:
        raise StartupError(f"Redis at {where(url)} does not answer: {error or 'it takes too long'}") from None
    finally:
        await redis.aclose()
    valkey = told.get("valkey_version")
    return Looked(
        name="Valkey" if valkey else "Redis",
        version=str(valkey or told.get("redis_version", "of unknown version")),
        replica=told.get("role") == "slave",
        evicts=str(told.get("maxmemory_policy", "noeviction")),
        bounded=bool(told.get("maxmemory", 0)),
    )
